/*-------------------------------------------------------------------------
 * kept_places.c
 *		Places of traces that are kept, and their limits.
 *
 * When all places are needed, or as many are in memory as the setting allows, some
 * make way: those that are in a file first.  Places for findings are apart.
 *-------------------------------------------------------------------------
 */
#include "kept.h"

#include "module.h"

#include <limits.h>

#include "storage/latch.h"
#include "utils/guc.h"

#include "../../common/ring_memory.h"
#include "../../common/version.h"

static int	keep_most = 10;
static int	keep_interval_s = SECS_PER_HOUR;

/* Each session that holds up another is a cause of its own, but for this time, in s. */
#define OTHERS_INTERVAL_S 10

/* What a place held, to be let go of without the lock */
typedef struct Freed
{
	uint32		copies[2];		/* segments */
	int			ncopies;
	RingHandle	ended;			/* ring of a session that ended, or 0 */
} Freed;

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

/* The same, for functions that are of no use without it */
KeptShared *
kept_get_or_error(void)
{
	return module_shmem_get_or_error(&memory);
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
bool
kept_is_near(TimestampTz at, TimestampTz other, int64 us)
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
	int			interval_s = holds_up ? Min(keep_interval_s, OTHERS_INTERVAL_S) : keep_interval_s;
	int			in_hour = 0;
	int			of_role = 0;

	for (int i = 0; i < MAX_KEPT; i++)
	{
		const KeptTrace *kept = &shared->kept[i];

		if (kept->trace.pid == 0)
			continue;
		if (kept_is_near(kept->trigger.at, trigger->at, USECS_PER_HOUR))
		{
			in_hour++;
			of_role += kept->trace.role == role;
		}
		/* what fired later may have been kept before: without an interval that is no matter */
		if (interval_s > 0 &&
			kept->trace.role == role && is_same_cause(trigger, &kept->trigger) &&
			!(holds_up && kept->incident == incident) &&
			kept_is_near(kept->trigger.at, trigger->at, interval_s * USECS_PER_SEC))
			return false;
	}
	*most = Min(Max(keep_most, in_hour + 1), MAX_KEPT);
	return of_role == 0 || (of_role < (keep_most + 1) / 2 && in_hour < keep_most);
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

/* A place that is ours until it has an id, or NULL: the limits allow none. */
KeptTrace *
kept_take_place(KeptShared *shared, const Firing *trigger, const TraceEntry *trace_entry, int64 incident,
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
void
kept_wake_keeper(KeptShared *shared)
{
	uint32		number = pg_atomic_read_u32(&shared->keeper);

	if (number != 0)
		SetLatch(&ProcGlobal->allProcs[number - 1].procLatch);
}

void
kept_publish(KeptShared *shared, KeptTrace *place, const KeptTrace *made)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	*place = *made;
	if (place->id == 0)
		place->id = ++shared->last_id;
	LWLockRelease(&shared->lock);
	kept_wake_keeper(shared);
}

/* There is no memory for it; "place" may be NULL. */
void
kept_give_up_place(KeptShared *shared, KeptTrace *place)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	if (place)
		memset(place, 0, sizeof(*place));
	shared->refused++;
	LWLockRelease(&shared->lock);
}

/* The caller holds the lock. */
static KeptTrace *
find(KeptShared *shared, int64 id)
{
	for (int i = 0; i < MAX_PLACES; i++)
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

/*
 * One is in a file now, and needs no more memory; or, if "file" is NULL, is given up.
 * False: there is none of that number.
 */
bool
kept_done(int64 id, const char *file)
{
	KeptShared *shared = kept_get();
	KeptTrace  *kept;
	Freed		freed = {0};

	if (shared == NULL)
		return false;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	kept = find(shared, id);
	if (kept)
		free_memory(kept, &freed);
	if (kept && file)
	{
		strlcpy(kept->file, file, sizeof(kept->file));
		kept->is_live = false;
	}
	else if (kept)
		memset(kept, 0, sizeof(*kept));
	LWLockRelease(&shared->lock);
	let_go(&freed);
	return kept != NULL;
}

/* Called when the library is loaded. */
void
kept_init(void)
{
	DefineCustomIntVariable("sql_trace.keep_most",
							"Traces that are kept in an hour, and in memory at a time.",
							"Half of them at most are of one role.",
							&keep_most, 10, 1, MAX_KEPT,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("sql_trace.keep_interval",
							"Time in which a cause has one trace of a role kept.",
							"A cause is what fires, for one statement.",
							&keep_interval_s, SECS_PER_HOUR, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
}
