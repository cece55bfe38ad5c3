/*-------------------------------------------------------------------------
 * blockers.c
 *		Who holds up a traced session that waits for a lock for too long.
 *
 * Afterwards nobody knows.  So the worker that writes kept traces looks during
 * the wait, at most once a second, and asks for each wait once: the answer takes
 * every lock of the lock manager's table.  The victim of a deadlock says itself who
 * else was in it.
 *-------------------------------------------------------------------------
 */
#include "keeper.h"

#include "miscadmin.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

#define MOST_IN_QUEUE 32
#define MOST_ASKED 4			/* processes of a queue, for each that waits */
#define MOST_VICTIMS 8			/* for which the lock manager is asked at once */

/* By number of the PGPROC: the wait that we have asked for, by when it began */
static TimestampTz *asked_for = NULL;

/* By number of the PGPROC: the incident in which its trace was kept, as it held up others */
static int64 *blocks_in = NULL;

/* Does a process wait for a lock for longer than it wants to, and have we not asked for that? */
static bool
is_new_victim(Shared *shared, const KeptShared *kept, uint32 number)
{
	const LockWatch *watch = &kept->watch[number];
	PGPROC	   *proc = &ProcGlobal->allProcs[number];
	TimestampTz since;

	if (watch->pid == 0 || watch->limit_ms < 0 || watch->pid != proc->pid ||
		shmem_slot(shared, number)->trace.level == 0 ||
		proc->waitStatus != PROC_WAIT_STATUS_WAITING)
		return false;
	since = (TimestampTz) pg_atomic_read_u64(&proc->waitStart);
	if (since == 0 || asked_for[number] == since ||
		!TimestampDifferenceExceeds(since, GetCurrentTimestamp(), watch->limit_ms))
		return false;
	asked_for[number] = since;
	return true;
}

/* The number of the PGPROC of a process; -1: it has ended. */
static int
number_of(const Shared *shared, int pid)
{
	for (uint32 i = 0; i < shared->nslots; i++)
		if (ProcGlobal->allProcs[i].pid == pid)
			return (int) i;
	return -1;
}

static bool
waits(int number)
{
	return ProcGlobal->allProcs[number].waitStatus == PROC_WAIT_STATUS_WAITING;
}

/* An incident goes on as long as one of its victims waits. */
static bool
goes_on(const Shared *shared, const KeptShared *kept, int64 incident)
{
	for (uint32 i = 0; i < shared->nslots; i++)
		if (incident != 0 && kept->watch[i].incident == incident &&
			kept->watch[i].pid == ProcGlobal->allProcs[i].pid && waits(i))
			return true;
	return false;
}

/* Add those that hold up a process, each once, to "n" that are there already. */
static int
add_blocking(int pid, int *pids, int n)
{
	/* it takes memory for all processes that there can be */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "blocking",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);
	ArrayType  *found = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
															   Int32GetDatum(pid)));
	const int32 *all = (const int32 *) ARR_DATA_PTR(found);
	int			nall = ARR_NDIM(found) == 1 ? ARR_DIMS(found)[0] : 0;

	for (int i = 0; i < nall && n < MOST_IN_QUEUE; i++)
	{
		bool		known = all[i] == 0;

		for (int k = 0; k < n && !known; k++)
			known = pids[k] == all[i];
		if (!known)
			pids[n++] = all[i];
	}
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
	return n;
}

/*
 * Those that hold up a process, as far as they are traced: they and it are one
 * incident, and so are all that wait for them at that time.  Of a queue, those at
 * its head count: who only waits in it is a victim, too.  Those whose traces were
 * kept already in that incident are not found again.
 */
static int
blockers_of(Shared *shared, KeptShared *kept, uint32 victim, Blocker *found, int most)
{
	int			pid = kept->watch[victim].pid;
	int			pids[MOST_IN_QUEUE];
	int			npids = add_blocking(pid, pids, 0);
	int			asked = 1;
	int64		incident = 0;
	bool		known = false;
	int			n = 0;

	for (int i = 0; i < npids; i++)
	{
		int			number = number_of(shared, pids[i]);
		int64		other;

		if (number < 0)
			continue;
		other = waits(number) ? kept->watch[number].incident : blocks_in[number];
		if (incident == 0 && goes_on(shared, kept, other))
			incident = other;
		if (waits(number) && asked++ < MOST_ASKED)
			npids = add_blocking(pids[i], pids, npids);
	}
	if (incident == 0)
		incident = (int64) pg_atomic_add_fetch_u64(&kept->last_incident, 1);
	for (int i = 0; i < npids && n < most; i++)
	{
		int			number = number_of(shared, pids[i]);

		if (number < 0 || waits(number) || !shmem_find_trace(shared, pids[i], false, &found[n].trace))
			continue;
		known = true;
		if (blocks_in[number] == incident)
			continue;
		blocks_in[number] = incident;
		found[n].is_deadlock = false;
		found[n].incident = incident;
		found[n++].victim = pid;
	}
	LWLockAcquire(&kept->lock, LW_EXCLUSIVE);
	if (known && kept->watch[victim].pid == pid && waits((int) victim))
		kept->watch[victim].incident = incident;
	LWLockRelease(&kept->lock);
	return n;
}

/* The others of a deadlock, as far as they are traced; then its victim may say so of another. */
static int
others_in_deadlock(Shared *shared, LockWatch *victim, Blocker *found, int most)
{
	uint32		nothers = pg_atomic_read_u32(&victim->nothers);
	int			n = 0;

	pg_read_barrier();
	for (uint32 i = 0; i < nothers && n < most; i++)
		if (shmem_find_trace(shared, victim->others[i], false, &found[n].trace))
		{
			found[n].victim = victim->pid;
			found[n].is_deadlock = true;
			found[n++].incident = victim->deadlock;
		}
	pg_memory_barrier();
	pg_atomic_write_u32(&victim->nothers, 0);
	return n;
}

/* Who was in a deadlock?  Returns how many; "most" have room. */
int
blockers_in_deadlocks(Blocker *found, int most)
{
	Shared	   *shared = shmem_get();
	KeptShared *kept = kept_get();
	int			n = 0;

	if (shared == NULL || kept == NULL || pg_atomic_exchange_u32(&kept->deadlocks, 0) == 0)
		return 0;
	for (uint32 i = 0; i < shared->nslots && n < most; i++)
		if (pg_atomic_read_u32(&kept->watch[i].nothers) != 0)
			n += others_in_deadlock(shared, &kept->watch[i], found + n, most - n);
	if (n == most)
		pg_atomic_write_u32(&kept->deadlocks, 1);
	return n;
}

/* A process waits for the same lock as one that we have just asked for: it is in that incident. */
static bool
joins(KeptShared *kept, uint32 number, const uint32 *asked, const LOCK *const *locks, int nasked)
{
	const LOCK *lock = ProcGlobal->allProcs[number].waitLock;

	for (int i = 0; lock != NULL && i < nasked; i++)
	{
		if (locks[i] != lock)
			continue;
		LWLockAcquire(&kept->lock, LW_EXCLUSIVE);
		if (kept->watch[asked[i]].incident != 0 && waits((int) number))
			kept->watch[number].incident = kept->watch[asked[i]].incident;
		LWLockRelease(&kept->lock);
		return true;
	}
	return false;
}

/* Who holds up others?  Returns how many; "most" have room.  Errors are the caller's. */
int
blockers_find(Blocker *found, int most)
{
	Shared	   *shared = shmem_get();
	KeptShared *kept = kept_get();
	uint32		asked[MOST_VICTIMS];
	const LOCK *locks[MOST_VICTIMS];
	int			nasked = 0;
	int			n = 0;

	if (shared == NULL || kept == NULL)
		return 0;
	if (asked_for == NULL)
	{
		blocks_in = MemoryContextAllocZero(TopMemoryContext, shared->nslots * sizeof(*blocks_in));
		asked_for = MemoryContextAllocZero(TopMemoryContext, shared->nslots * sizeof(*asked_for));
	}
	for (uint32 i = 0; i < shared->nslots && n < most && nasked < MOST_VICTIMS; i++)
	{
		if (!is_new_victim(shared, kept, i) || joins(kept, i, asked, locks, nasked))
			continue;
		asked[nasked] = i;
		locks[nasked++] = ProcGlobal->allProcs[i].waitLock;
		n += blockers_of(shared, kept, i, found + n, most - n);
	}
	return n;
}
