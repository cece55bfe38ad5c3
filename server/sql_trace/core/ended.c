/*-------------------------------------------------------------------------
 * ended.c
 *		Traces of sessions that have ended: a few are kept, so that what a session did
 *		last can be read after it.
 *
 * Which are kept, and for how long, ../../common/ended_rings.h says.  What is given up
 * unread is counted: the evictor has not mapped that ring, so each entry says what
 * is unread of it, from when its session ends, and each reader says so anew.
 *-------------------------------------------------------------------------
 */
#include "ring.h"

#include "storage/dsm.h"

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

static void
count_unread(Shared *shared, const Unread *unread)
{
	shared->unread.sessions += unread->sessions;
	shared->unread.records += unread->records;
	shared->unread.bytes += unread->bytes;
}

static void
makes_way(const EndedRing *entry)
{
	count_unread(shmem_get(), &((const TraceEntry *) entry)->unread);
}

static EndedRings
rings_of(Shared *shared)
{
	return (EndedRings) {
		&shared->lock, &shared->oldest_ended, (char *) shared->ended, sizeof(TraceEntry),
		MAX_ENDED, makes_way
	};
}

/* A session ends: keep its trace, in no more memory than it needs.  False: there is no place for it. */
bool
ended_keep(Shared *shared, TraceEntry *of, Ring *ring, dsm_segment *segment)
{
	uint64		written = Min(pg_atomic_read_u64(&ring->head), ring->size);
	uint64		for_kept = ring_memory_for_kept();
	EndedGone	gone = {0};
	bool		in_area = (of->handle & RING_IN_AREA) != 0;
	bool		kept;

	if (!in_area)
		of->memory = ring_memory_shrink(segment, offsetof(Ring, data) + written);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	/* one in the area need not be read */
	if (!in_area)
	{
		of->ring_bytes = of->memory;
		of->unread = unread_of(ring, of->counters.records);
	}
	ended_count(&shared->ended_totals, &of->counters);
	kept = ended_rings_add(rings_of(shared), 0, MAX_ENDED, (EndedRing *) of, for_kept, &gone) != NULL;
	LWLockRelease(&shared->lock);
	ended_rings_free(&gone);
	return kept;
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
		count_unread(shared, &of->unread);
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
	ended_rings_note_oldest(rings_of(shared));
	LWLockRelease(&shared->lock);
	return there;
}

/* A trace that begins needs memory: give up one of those that are kept.  False: there are none. */
bool
ended_make_way(void)
{
	return ended_rings_make_way(rings_of(shmem_get()), 0, MAX_ENDED);
}

/* Give up all of them; returns how many. */
int
ended_give_up(Shared *shared)
{
	return ended_rings_give_up(rings_of(shared), DT_NOEND);
}

static pg_noinline void
give_up_old(Shared *shared)
{
	ended_rings_give_up_old(rings_of(shared), "sql_trace cannot free the memory of traces");
}

/* Called by every session after each request, and by others as they commit: are some out of date? */
void
ended_look(void)
{
	Shared	   *shared = shmem_get();

	if (shared && unlikely(pg_atomic_read_u64(&shared->oldest_ended) != 0))
		give_up_old(shared);
}
