/*-------------------------------------------------------------------------
 * ended.c
 *		Traces of sessions that have ended: which are kept, and what of those that
 *		make way nobody had read.
 *
 * A few are kept, so that what a session did last can be read after it: in no
 * more memory than they need, within the share of what all rings may take, and
 * for a while.  A place is taken from the role whose session ends, so that
 * nobody can push out all that others have left, and first from what has been
 * read.  What is given up unread is counted: the evictor has not mapped that
 * ring, so each entry says what is unread of it, from when its session ends, and
 * each reader says so anew.
 *-------------------------------------------------------------------------
 */
#include "ring.h"

#include "access/xact.h"
#include "storage/dsm.h"

#include "../../common/guarded.h"
#include "../../common/ring_memory.h"

void
ended_count(Counters *sum, const Counters *counters)
{
	sum->records += counters->records;
	sum->bytes += counters->bytes;
	sum->lost_records += counters->lost_records;
	sum->lost_bytes += counters->lost_bytes;
	sum->wait_requests += counters->wait_requests;
	sum->row_sources += counters->row_sources;
}

static TraceEntry *
free_place(TraceEntry *entries)
{
	for (int i = 0; i < MAX_ENDED; i++)
		if (!ring_place_is_there(entries[i].handle))
			return &entries[i];
	return NULL;
}

/*
 * The caller holds the lock.  The trace that is the first to make way, for a session
 * of this role.  What is in the recorder's area frees no memory of others.
 */
static TraceEntry *
first_to_go(TraceEntry *entries, Oid role, bool for_memory)
{
	TraceEntry *found = NULL;
	int			found_rank = 0;

	for (int i = 0; i < MAX_ENDED; i++)
	{
		TraceEntry *entry = &entries[i];
		int			rank = (entry->role == role ? 2 : 0) + (entry->unread.bytes == 0 ? 1 : 0);

		if (entry->handle == 0 || entry->kept || (for_memory && entry->memory == 0))
			continue;
		if (found == NULL || rank > found_rank ||
			(rank == found_rank && entry->ended < found->ended))
		{
			found = entry;
			found_rank = rank;
		}
	}
	return found;
}

/*
 * What nobody has read of a ring to which nobody writes any more, and to which
 * this many records were written.
 */
static Unread
unread_of(Ring *ring, uint64 records)
{
	uint64		head = pg_atomic_read_u64(&ring->head);
	uint64		from = Max(pg_atomic_read_u64(&ring->drained), pg_atomic_read_u64(&ring->tail));
	uint64		number;
	Unread		unread = {0};

	if (from >= head)
		return unread;
	/* records are numbered without gaps; a ring that is damaged may say anything */
	number = *(const uint64 *) &ring->data[(from + offsetof(RecordHeader, number)) &
										   (ring->size - 1)];
	unread.sessions = 1;
	unread.records = number > 0 && number <= records ? records - number + 1 : records;
	unread.bytes = head - from;
	return unread;
}

/* The caller holds the lock. */
static void
note_oldest(Shared *shared)
{
	TimestampTz oldest = 0;

	for (int i = 0; i < MAX_ENDED; i++)
	{
		const TraceEntry *entry = &shared->ended[i];

		if (entry->handle != 0 && !entry->kept && (oldest == 0 || entry->ended < oldest))
			oldest = entry->ended;
	}
	pg_atomic_write_u64(&shared->oldest_ended, (uint64) oldest);
}

static void
count_unread(Shared *shared, const TraceEntry *entry)
{
	shared->unread.sessions += entry->unread.sessions;
	shared->unread.records += entry->unread.records;
	shared->unread.bytes += entry->unread.bytes;
}

/* The caller holds the lock, and frees what was there. */
static RingHandle
give_up(Shared *shared, TraceEntry *place)
{
	RingHandle	handle = place->handle;

	count_unread(shared, place);
	ring_memory_forget(place->memory);
	memset(place, 0, sizeof(*place));
	note_oldest(shared);
	return handle;
}

static void
free_all(const RingHandle *handles, int n)
{
	for (int i = 0; i < n; i++)
		ring_place_free(handles[i]);
}

/*
 * The caller holds the lock.  A place for a trace whose memory is counted, or
 * NULL if there is none; "gone" is what makes way.  No more than one is taken
 * from other roles that nobody has read.
 */
static TraceEntry *
make_place(Shared *shared, const TraceEntry *entry, uint64 for_kept, RingHandle *gone,
		   int *n)
{
	bool		taken_from_others = false;

	if (entry->memory > for_kept)
		return NULL;
	/* what is in the area is in nobody's way */
	while (free_place(shared->ended) == NULL ||
		   (entry->memory > 0 && !ring_memory_keep(for_kept, entry->memory)))
	{
		TraceEntry *next = first_to_go(shared->ended, entry->role,
									   free_place(shared->ended) != NULL);

		if (next == NULL)
			return NULL;
		if (next->role != entry->role && next->unread.bytes > 0)
		{
			if (taken_from_others)
				return NULL;
			taken_from_others = true;
		}
		gone[(*n)++] = give_up(shared, next);
	}
	return free_place(shared->ended);
}

/* A session ends: keep its trace, in no more memory than it needs.  False: there is no place for it. */
bool
ended_keep(Shared *shared, TraceEntry *of, Ring *ring, dsm_segment *segment)
{
	uint64		written = Min(pg_atomic_read_u64(&ring->head), ring->size);
	uint64		for_kept = ring_memory_for_kept(shmem_rings_kb);
	TraceEntry	entry;
	TraceEntry *place;
	RingHandle	gone[MAX_ENDED + 1];
	int			n = 0;
	bool		in_area = (of->handle & RING_IN_AREA) != 0;

	if (!in_area)
		of->memory = ring_memory_shrink(segment, offsetof(Ring, data) + written);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	entry = *of;
	entry.ended = GetCurrentTimestamp();
	if (!in_area)
		entry.ring_bytes = entry.memory;
	/* one in the area need not be read */
	if (!in_area)
		entry.unread = unread_of(ring, entry.counters.records);
	place = make_place(shared, &entry, for_kept, gone, &n);
	if (place)
	{
		*place = entry;
		note_oldest(shared);
	}
	else
	{
		count_unread(shared, &entry);
		ring_memory_give_back(entry.memory);
		gone[n++] = entry.handle;
	}
	ended_count(&shared->ended_totals, &entry.counters);
	memset(of, 0, sizeof(*of));
	LWLockRelease(&shared->lock);
	free_all(gone, n);
	return place != NULL;
}

/* A session gives up its own trace, and goes on. */
void
ended_let_go(Shared *shared, TraceEntry *of, Ring *ring)
{
	RingHandle	handle;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	handle = of->handle;
	of->unread = unread_of(ring, of->counters.records);
	if ((handle & RING_IN_AREA) == 0)
		count_unread(shared, of);
	ended_count(&shared->ended_totals, &of->counters);
	ring_memory_give_back(of->memory);
	memset(of, 0, sizeof(*of));
	LWLockRelease(&shared->lock);
	ring_place_free(handle);
}

/* Somebody has read of a ring, or lets go of it: say what is unread now, if its session has ended. */
void
ended_read(Shared *shared, RingHandle handle, Ring *ring)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_ENDED; i++)
	{
		TraceEntry *entry = &shared->ended[i];

		if (entry->handle == handle && (handle & RING_IN_AREA) == 0)
			entry->unread = unread_of(ring, entry->counters.records);
	}
	LWLockRelease(&shared->lock);
}

/*
 * Have the trace of a session that ended stay until it is no longer held, whatever
 * needs its place.  "found", if it is not NULL, gets its entry.  False: it has gone.
 */
bool
ended_hold(Shared *shared, RingHandle handle, bool held, TraceEntry *found)
{
	bool		there = false;

	if (shared == NULL)
		return false;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_ENDED && !there; i++)
	{
		TraceEntry *entry = &shared->ended[i];

		if (entry->handle != handle)
			continue;
		there = true;
		entry->kept = held;
		if (found)
			*found = *entry;
	}
	note_oldest(shared);
	LWLockRelease(&shared->lock);
	return there;
}

/* A trace that begins needs memory: give up one of those that are kept.  False: there are none. */
bool
ended_make_way(Shared *shared)
{
	TraceEntry *next;
	RingHandle	gone = 0;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	next = first_to_go(shared->ended, MyProc->roleId, true);
	if (next)
		gone = give_up(shared, next);
	LWLockRelease(&shared->lock);
	free_all(&gone, next ? 1 : 0);
	return next != NULL;
}

/* Give up those that ended by then; returns how many. */
static int
give_up_until(Shared *shared, TimestampTz until)
{
	RingHandle	gone[MAX_ENDED];
	int			n = 0;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_ENDED; i++)
		if (shared->ended[i].handle != 0 && !shared->ended[i].kept &&
			shared->ended[i].ended <= until)
			gone[n++] = give_up(shared, &shared->ended[i]);
	LWLockRelease(&shared->lock);
	free_all(gone, n);
	return n;
}

/* Give up all of them; returns how many. */
int
ended_give_up(Shared *shared)
{
	return give_up_until(shared, DT_NOEND);
}

/* The last moment of sessions whose traces have been kept for long enough */
static TimestampTz
kept_long_enough(void)
{
	return GetCurrentStatementStartTimestamp() - KEEP_ENDED_S * USECS_PER_SEC;
}

static void
give_up_old(void *argument)
{
	(void) give_up_until(argument, kept_long_enough());
}

static void
report_not_given_up(void *argument, const char *cause)
{
	ereport(LOG, (errmsg("sql_trace cannot free the memory of traces: %s", cause)));
}

static pg_noinline void
give_up_if_old(Shared *shared, TimestampTz oldest)
{
	if (oldest <= kept_long_enough())
		(void) guarded_run("sql_trace", give_up_old, report_not_given_up, shared);
}

/* Called by every session after each request, and by others as they commit: are some out of date? */
void
ended_look(void)
{
	Shared	   *shared = shmem_get();
	TimestampTz oldest = shared ? (TimestampTz) pg_atomic_read_u64(&shared->oldest_ended) : 0;

	if (unlikely(oldest != 0))
		give_up_if_old(shared, oldest);
}
