/*-------------------------------------------------------------------------
 * blockers.c
 *		Who holds up a traced session that waits for a lock for too long.
 *
 * Afterwards nobody knows.  So the worker that writes kept traces looks during
 * the wait, at most once a second, and asks for each wait once: the answer takes
 * every lock of the lock manager's table.
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "miscadmin.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

/* By number of the PGPROC: the wait that we have asked for, by when it began */
static TimestampTz *asked_for = NULL;

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

/* The trace of a session, if it has one */
static bool
trace_of(Shared *shared, int pid, TraceEntry *found)
{
	bool		there = false;

	LWLockAcquire(&shared->lock, LW_SHARED);
	for (uint32 i = 0; i < shared->nslots && !there; i++)
	{
		const TraceEntry *entry = &shmem_slot(shared, i)->trace;

		there = entry->handle != 0 && entry->pid == pid;
		if (there)
			*found = *entry;
	}
	LWLockRelease(&shared->lock);
	return there;
}

/* Those that hold up a process, as far as they are traced: they and it are one incident. */
static int
blockers_of(Shared *shared, KeptShared *kept, uint32 victim, Blocker *found, int most)
{
	int			pid = kept->watch[victim].pid;
	ArrayType  *blockers = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
																  Int32GetDatum(pid)));
	const int32 *pids = (const int32 *) ARR_DATA_PTR(blockers);
	int			npids = ARR_NDIM(blockers) == 1 ? ARR_DIMS(blockers)[0] : 0;
	int			n = 0;

	for (int i = 0; i < npids && n < most; i++)
		if (pids[i] != 0 && trace_of(shared, pids[i], &found[n].trace))
			found[n++].victim = pid;
	if (n == 0)
		return 0;
	LWLockAcquire(&kept->lock, LW_EXCLUSIVE);
	kept->last_incident++;
	if (kept->watch[victim].pid == pid)
		kept->watch[victim].incident = kept->last_incident;
	for (int i = 0; i < n; i++)
		found[i].incident = kept->last_incident;
	LWLockRelease(&kept->lock);
	return n;
}

/* Returns how many; "most" have room.  Errors are the caller's. */
int
blockers_find(Blocker *found, int most)
{
	Shared	   *shared = shmem_get();
	KeptShared *kept = kept_get();
	int			n = 0;

	if (shared == NULL || kept == NULL)
		return 0;
	if (asked_for == NULL)
		asked_for = MemoryContextAllocZero(TopMemoryContext, shared->nslots * sizeof(*asked_for));
	for (uint32 i = 0; i < shared->nslots && n < most; i++)
		if (is_new_victim(shared, kept, i))
			n += blockers_of(shared, kept, i, found + n, most - n);
	return n;
}
