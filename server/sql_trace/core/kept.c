/*-------------------------------------------------------------------------
 * kept.c
 *		Traces that are kept: their places, their memory, and their limits.
 *
 * The copy is made by the session itself, after the answer has left.  Its memory
 * counts among that of all rings that are kept only to be read.  If there is none,
 * traces of sessions that ended make way, but no other kept one does: these go
 * when their places are needed, those that are in a file first.
 *-------------------------------------------------------------------------
 */
#include "kept.h"
#include "dictionary.h"
#include "module.h"
#include "../calls/secrets.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/latch.h"

#include "../../common/guarded.h"
#include "../../common/pg_compat.h"
#include "../../common/ring_memory.h"
#include "../../common/version.h"
#include "../../common/zeroed.h"

static int	most_kept = 10;
static int	interval_s_setting = SECS_PER_HOUR;

/* Each session that holds up another is a cause of its own, but for this time, in s. */
#define OTHERS_INTERVAL_S 10

/* Bytes of our ring that are looked into at once */
#define MOST_READ ((Size) 4 * 1024 * 1024)

/* What a place held, to be let go of without the lock */
typedef struct Freed
{
	uint32		copies[2];		/* segments */
	int			ncopies;
	RingHandle	ended;			/* ring of a session that ended, or 0 */
} Freed;

/* The copy that this process is making */
static struct
{
	const Firing *trigger;
	KeptTrace  *place;			/* NULL: none */
	uint64		taken;			/* memory counted for it */
	KeptTrace	made;
} making;

static Size
size(void)
{
	return add_size(offsetof(KeptShared, watch), mul_size(sizeof(LockWatch), MaxBackends));
}

static void
initialise(void *fresh)
{
	KeptShared *shared = fresh;

	memset(shared, 0, size());
	shared->since = GetCurrentTimestamp();
	pg_atomic_init_u32(&shared->keeper, 0);
	pg_atomic_init_u32(&shared->watches, 0);
	pg_atomic_init_u32(&shared->deadlocks, 0);
	pg_atomic_init_u64(&shared->last_incident, 0);
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&shared->watch[i].nothers, 0);
}

static ModuleShmem memory = {
	"sql_trace kept", "sql_trace_kept", PGTARE_VERSION, size, initialise
};

void
kept_shmem_init(void)
{
	module_shmem_init(&memory);
}

/* NULL: there is none. */
KeptShared *
kept_get(void)
{
	return module_shmem_get(&memory);
}

/* The caller holds the lock, and lets go of what is freed afterwards. */
static void
free_memory(KeptTrace *kept, Freed *freed)
{
	freed->ncopies = 0;
	freed->ended = 0;
	if (kept->trace.handle != 0 && kept->is_copy)
	{
		ring_memory_forget(kept->trace.memory);
		freed->copies[freed->ncopies++] = (uint32) kept->trace.handle;
	}
	else
		freed->ended = kept->trace.handle;
	if (kept->waits != 0)
	{
		ring_memory_forget(kept->waits_memory);
		freed->copies[freed->ncopies++] = kept->waits;
	}
	kept->trace.handle = kept->waits = 0;
}

static void
let_go(const Freed *freed)
{
	for (int i = 0; i < freed->ncopies; i++)
		dsm_unpin_segment(freed->copies[i]);
	if (freed->ended != 0)
		(void) ended_hold(shmem_get(), freed->ended, false, NULL);
}

/* Of moments so near to each other that the wall clock, had it not stepped, would tell it */
static bool
is_near(TimestampTz at, TimestampTz other, int64 us)
{
	return at > other - us && at < other + us;
}

/* Is it the cause of another, come again?  An error is known by its SQLSTATE. */
static bool
is_same_cause(const Firing *trigger, const Firing *other)
{
	return trigger->cause == other->cause && trigger->query_id == other->query_id &&
		(trigger->cause != CAUSE_SQLSTATE || trigger->value == other->value);
}

/*
 * The caller holds the lock.  May this cause have a trace of this role kept now?
 * All that held up others in one incident belong together.  No role takes more than
 * half of what an hour allows.  One of which nothing was kept does not lose its first
 * one to others that have used up all of it, nor do these give theirs up for it.
 * "most": traces that may be in memory with it.
 */
static bool
is_within_limits(const KeptShared *shared, const Firing *trigger, Oid role, int64 incident,
				 int *most)
{
	bool		holds_up = trigger->cause >= CAUSE_BLOCKER;
	int			interval_s = holds_up ? Min(interval_s_setting, OTHERS_INTERVAL_S) : interval_s_setting;
	int			in_hour = 0;
	int			of_role = 0;

	for (int i = 0; i < MAX_KEPT; i++)
	{
		const KeptTrace *kept = &shared->kept[i];

		if (kept->trace.pid == 0)
			continue;
		if (is_near(kept->trigger.at, trigger->at, USECS_PER_HOUR))
		{
			in_hour++;
			of_role += kept->trace.role == role;
		}
		/* what fired later may have been kept before: without an interval that is no matter */
		if (interval_s > 0 &&
			kept->trace.role == role && is_same_cause(trigger, &kept->trigger) &&
			!(holds_up && kept->incident == incident) &&
			is_near(kept->trigger.at, trigger->at, interval_s * USECS_PER_SEC))
			return false;
	}
	*most = Min(Max(most_kept, in_hour + 1), MAX_KEPT);
	return of_role == 0 || (of_role < (most_kept + 1) / 2 && in_hour < most_kept);
}

/* The caller holds the lock.  How many there are of a role */
static int
number_of_role(const KeptShared *shared, Oid role)
{
	int			n = 0;

	for (int i = 0; i < MAX_KEPT; i++)
		n += shared->kept[i].id != 0 && shared->kept[i].trace.role == role;
	return n;
}

/* The caller holds the lock.  Is one to make way before another? */
static bool
goes_before(const KeptShared *shared, const KeptTrace *kept, const KeptTrace *other)
{
	bool		in_file = kept->file[0] != '\0';
	int			n;

	if (in_file != (other->file[0] != '\0'))
		return in_file;
	n = number_of_role(shared, kept->trace.role) - number_of_role(shared, other->trace.role);
	return n != 0 ? n > 0 : kept->id < other->id;
}

/*
 * The caller holds the lock.  The one that is the first to make way: what is in
 * a file, then of the role that has most, then the oldest.  "in_memory": of those
 * that take memory.
 */
static KeptTrace *
first_to_go(KeptShared *shared, bool in_memory)
{
	KeptTrace  *found = NULL;

	for (int i = 0; i < MAX_KEPT; i++)
	{
		KeptTrace  *kept = &shared->kept[i];

		if (kept->id == 0 || (in_memory && kept->trace.handle == 0))
			continue;
		if (found == NULL || goes_before(shared, kept, found))
			found = kept;
	}
	return found;
}

/*
 * The caller holds the lock.  A place for another, or NULL if there is none, as
 * all are being made.  Each that is freed is one more of the array.  "live": it takes
 * no memory, so it takes none from another.
 */
static KeptTrace *
make_place(KeptShared *shared, bool live, int most, Freed *freed, int *nfreed)
{
	int			in_memory = 0;
	KeptTrace  *free = NULL;
	KeptTrace  *next;

	for (int i = 0; i < MAX_KEPT; i++)
		in_memory += shared->kept[i].trace.handle != 0;
	for (; !live && in_memory >= most && (next = first_to_go(shared, true)) != NULL; in_memory--)
	{
		free_memory(next, &freed[(*nfreed)++]);
		memset(next, 0, sizeof(*next));
	}
	for (int i = 0; i < MAX_KEPT && free == NULL; i++)
		if (shared->kept[i].trace.pid == 0)
			free = &shared->kept[i];
	if (free == NULL && (free = first_to_go(shared, false)) != NULL)
	{
		if (live && free->trace.handle != 0)
			return NULL;
		free_memory(free, &freed[(*nfreed)++]);
		memset(free, 0, sizeof(*free));
	}
	return free;
}

/* The incident in which the request under way waited; what the slot's last owner left is not ours. */
static int64
own_incident(const KeptShared *shared)
{
	const LockWatch *mine = &shared->watch[MY_PROC_NUMBER];

	return mine->pid == MyProcPid ? mine->incident : 0;
}

/* A place that is ours until it has an id, or NULL: the limits allow none. */
static KeptTrace *
take_place(KeptShared *shared, const Firing *trigger, const TraceEntry *trace_entry, int64 incident,
		   bool live)
{
	Freed		freed[MAX_KEPT + 1];
	int			nfreed = 0;
	int			most;
	KeptTrace  *place = NULL;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	if (is_within_limits(shared, trigger, trace_entry->role, incident, &most))
		place = make_place(shared, live, most, freed, &nfreed);
	if (place)
	{
		place->trigger = *trigger;
		place->trace = *trace_entry;
		place->trace.handle = 0;
		place->incident = incident;
	}
	else
		shared->skipped++;
	LWLockRelease(&shared->lock);
	for (int i = 0; i < nfreed; i++)
		let_go(&freed[i]);
	return place;
}

/* Who writes files has something to do. */
static void
wake_keeper(KeptShared *shared)
{
	uint32		number = pg_atomic_read_u32(&shared->keeper);

	if (number != 0)
		SetLatch(&ProcGlobal->allProcs[number - 1].procLatch);
}

static void
publish(KeptShared *shared, KeptTrace *place, const KeptTrace *made)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	*place = *made;
	if (place->id == 0)
		place->id = ++shared->last_id;
	LWLockRelease(&shared->lock);
	wake_keeper(shared);
}

/* There is no memory for it; "place" may be NULL. */
static void
give_up_place(KeptShared *shared, KeptTrace *place)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	if (place)
		memset(place, 0, sizeof(*place));
	shared->refused++;
	LWLockRelease(&shared->lock);
}

static void
take_memory(uint64 bytes)
{
	while (!ring_memory_keep_copy(shmem_rings_kb, bytes))
		if (!ended_make_way(shmem_get()))
			ring_memory_refuse(shmem_rings_kb, "sql_trace.ring_memory");
	making.taken = bytes;
}

/* What our ring names and the dictionary has; it may not have it any more when the copy is read. */
static void
find_names(StringInfo names)
{
	Ring	   *ring = trace.ring;
	Size		room = Min(ring->size, MOST_READ);
	char	   *buffer = palloc(room);
	uint64		at = pg_atomic_read_u64(&ring->tail);

	while (at < pg_atomic_read_u64(&ring->head))
	{
		RingCopy	copy = ring_copy(ring, at, buffer, room);

		if (!copy.sound)
			break;
		names_find(copy.data, copy.size, names);
		at = copy.next;
	}
	pfree(buffer);
}

/*
 * Nobody else writes to our ring.  A position leads to the same place in what is
 * cut behind the last record, as long as none was overwritten.
 */
static void
copy_ring(void)
{
	const Ring *ring = trace.ring;
	Size		used = kept_copy_size(ring);
	StringInfoData names;
	dsm_segment *segment;
	Ring	   *copy;

	initStringInfo(&names);
	find_names(&names);
	take_memory(ring_memory_of(used + names.len));
	segment = zeroed_segment(used + names.len);
	copy = dsm_segment_address(segment);
	memcpy(copy, ring, used);
	memcpy((char *) copy + used, names.data, names.len);
	making.made.names = (uint32) names.len;
	pfree(names.data);
	pg_atomic_write_u32(&copy->held, 0);
	dsm_pin_segment(segment);
	making.made.trace.handle = dsm_segment_handle(segment);
	making.made.trace.memory = making.made.trace.ring_bytes = making.taken;
	making.taken = 0;
	dsm_detach(segment);
}

static void
make_copy(void *argument)
{
	KeptShared *shared = argument;

	making.place = take_place(shared, making.trigger, &trace.slot->trace,
							  own_incident(shared), false);
	if (making.place == NULL)
		return;
	making.made = *making.place;
	making.made.is_copy = true;
	/* behind a pool one session serves applications in turn: the one whose request it was */
	strlcpy(making.made.trace.application, secrets_application(),
			sizeof(making.made.trace.application));
	copy_ring();
}

static void
copy_waits(void *argument)
{
	const WaitCopyOffer *offer = *find_rendezvous_variable(WAIT_COPY_OFFER);

	if (offer && !offer->copy(&making.made.waits, &making.made.waits_memory,
							  &making.made.waits_started))
		making.made.waits = 0;
}

static void
report_not_kept(void *argument, const char *cause)
{
	ereport(LOG, (errmsg("sql_trace cannot keep the trace of this session: %s", cause)));
}

static void
report_without_waits(void *argument, const char *cause)
{
	ereport(LOG, (errmsg("sql_trace keeps the trace of this session without its waits: %s", cause)));
}

/* Keep what the ring of this session holds.  It holds nothing, and its client has its answer. */
void
kept_copy(const Firing *trigger)
{
	KeptShared *shared = kept_get();

	if (shared == NULL)
		return;
	making.trigger = trigger;
	making.place = NULL;
	making.taken = 0;
	if (guarded_run("sql_trace", make_copy, report_not_kept, shared))
	{
		if (making.place == NULL)
			return;
		(void) guarded_run("sql_trace", copy_waits, report_without_waits, NULL);
		publish(shared, making.place, &making.made);
		return;
	}
	if (making.taken > 0)
		ring_memory_forget(making.taken);
	give_up_place(shared, making.place);
}

/* Keep the ring of a session that ended for that, if there was room for it among those that did. */
bool
kept_session_ended(const Firing *trigger, RingHandle handle)
{
	KeptShared *shared = kept_get();
	KeptTrace	made = {.trigger = *trigger};
	KeptTrace  *place;

	if (shared == NULL)
		return false;
	if (!ended_hold(shmem_get(), handle, true, &made.trace))
	{
		give_up_place(shared, NULL);
		return false;
	}
	made.incident = own_incident(shared);
	place = take_place(shared, trigger, &made.trace, made.incident, false);
	if (place)
		publish(shared, place, &made);
	else
		(void) ended_hold(shmem_get(), handle, false, NULL);
	return place != NULL;
}

/* The caller holds the lock. */
static KeptTrace *
find(KeptShared *shared, int64 id)
{
	for (int i = 0; i < MAX_KEPT; i++)
		if (id != 0 && shared->kept[i].id == id)
			return &shared->kept[i];
	return NULL;
}

/* What is kept by this number; false: nothing. */
bool
kept_find(int64 id, KeptTrace *found)
{
	KeptShared *shared = kept_get();
	KeptTrace  *kept = NULL;

	if (shared == NULL)
		return false;
	LWLockAcquire(&shared->lock, LW_SHARED);
	kept = find(shared, id);
	if (kept)
		*found = *kept;
	LWLockRelease(&shared->lock);
	return kept != NULL;
}

/* Give one up; false: there is none of that number. */
bool
kept_forget(int64 id)
{
	KeptShared *shared = kept_get();
	KeptTrace  *kept;
	Freed		freed = {0};

	if (shared == NULL)
		return false;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	kept = find(shared, id);
	if (kept)
	{
		free_memory(kept, &freed);
		memset(kept, 0, sizeof(*kept));
	}
	LWLockRelease(&shared->lock);
	let_go(&freed);
	return kept != NULL;
}

/* One is in a file now: it needs no more memory. */
void
kept_written(int64 id, const char *file)
{
	KeptShared *shared = kept_get();
	KeptTrace  *kept;
	Freed		freed = {0};

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	kept = find(shared, id);
	if (kept)
	{
		strlcpy(kept->file, file, sizeof(kept->file));
		free_memory(kept, &freed);
	}
	LWLockRelease(&shared->lock);
	let_go(&freed);
}

/* A session begins a request in which waits for locks longer than this are of interest; -1: none. */
void
kept_watch_locks(int limit_ms)
{
	KeptShared *shared = kept_get();
	LockWatch  *mine;

	if (shared == NULL)
		return;
	mine = &shared->watch[MY_PROC_NUMBER];
	if (mine->pid != MyProcPid)
		mine->incident = 0;
	mine->pid = MyProcPid;
	mine->limit_ms = limit_ms;
	if (limit_ms >= 0 && pg_atomic_exchange_u32(&shared->watches, 1) == 0)
		wake_keeper(shared);
}

/* A request has been answered: what it waited for belongs to it alone. */
void
kept_forget_incident(void)
{
	KeptShared *shared = kept_get();

	if (shared != NULL)
		shared->watch[MY_PROC_NUMBER].incident = 0;
}

/*
 * This session is the victim of a deadlock with these.  It is reporting that error:
 * it may hold anything, and takes no lock.
 */
void
kept_deadlock(const int *others, int n)
{
	KeptShared *shared = kept_get();
	LockWatch  *mine;

	if (shared == NULL || n == 0)
		return;
	mine = &shared->watch[MY_PROC_NUMBER];
	/* of an earlier one the keeper does not know yet */
	if (pg_atomic_read_u32(&mine->nothers) != 0)
		return;
	if (mine->pid != MyProcPid)
	{
		mine->limit_ms = -1;
		mine->incident = 0;
		mine->pid = MyProcPid;
	}
	if (mine->incident == 0)
		mine->incident = (int64) pg_atomic_add_fetch_u64(&shared->last_incident, 1);
	mine->deadlock = mine->incident;
	memcpy(mine->others, others, n * sizeof(int));
	pg_write_barrier();
	pg_atomic_write_u32(&mine->nothers, (uint32) n);
	pg_write_barrier();
	pg_atomic_write_u32(&shared->deadlocks, 1);
	wake_keeper(shared);
}

/*
 * What the ring of a session holds must be written to a file at once.  False: the
 * limits do not allow it; else kept_end_file() follows.
 */
bool
kept_begin_file(const Firing *trigger, const TraceEntry *of, int64 incident, KeptTrace *made)
{
	KeptShared *shared = kept_get();

	making.place = take_place(shared, trigger, of, incident, true);
	if (making.place == NULL)
		return false;
	*made = *making.place;
	made->trace.handle = of->handle;
	made->is_live = true;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	made->id = ++shared->last_id;
	LWLockRelease(&shared->lock);
	return true;
}

/* "file": NULL, if it was not written */
void
kept_end_file(const KeptTrace *made, const char *file)
{
	KeptTrace	done = *made;

	if (file == NULL)
	{
		give_up_place(kept_get(), making.place);
		return;
	}
	done.trace.handle = 0;
	done.is_live = false;
	strlcpy(done.file, file, sizeof(done.file));
	publish(kept_get(), making.place, &done);
}

/* Called when the library is loaded. */
void
kept_init(void)
{
	DefineCustomIntVariable("sql_trace.keep_most",
							"Traces that are kept in an hour, and in memory at a time.",
							"Half of them at most are of one role.",
							&most_kept,
							10, 1, MAX_KEPT,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("sql_trace.keep_interval",
							"Time in which a cause has one trace of a role kept.",
							"A cause is what fires, for one statement.",
							&interval_s_setting,
							SECS_PER_HOUR, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S,
							NULL, NULL, NULL);
}
