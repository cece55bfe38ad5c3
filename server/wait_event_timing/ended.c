/*-------------------------------------------------------------------------
 * ended.c
 *		Traces of processes that have ended.
 *
 * Parallel workers come and go by the dozen, and push out none but each other.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/dsm.h"

#include "waits.h"

static EndedRings
rings_of(Shared *shared)
{
	return (EndedRings) {
		&shared->lock, &shared->oldest_ended, (char *) shared->ended, sizeof(RingEntry),
		lengthof(shared->ended), NULL
	};
}

/*
 * A process ends: its ring moves from the live ones to those that ended, if there
 * is room; returns whether there is.
 */
bool
ended_keep(Shared *shared, RingEntry *of, const TraceRing *ring, dsm_segment *segment)
{
	uint64		written = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &ring->written));
	uint64		for_kept = ring_memory_for_kept();
	EndedGone	gone = {0};
	bool		kept;

	if (segment)
		of->memory = ring_memory_shrink(segment, offsetof(TraceRing, records) +
										Min(written, ring->nrecords) * sizeof(TraceRecord));
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	of->unread = 1;
	kept = ended_rings_add(rings_of(shared), of->leader_pid ? MAX_ENDED_RINGS : 0, MAX_ENDED_RINGS,
						   (EndedRing *) of, for_kept, &gone) != NULL;
	LWLockRelease(&shared->lock);
	ended_rings_free(&gone);
	return kept;
}

/* A trace that begins needs memory: give up one of those that are kept.  False: there are none. */
bool
ended_make_way(void)
{
	EndedRings	rings = rings_of(shmem_get());

	return ended_rings_make_way(rings, MAX_ENDED_RINGS, MAX_ENDED_RINGS) ||
		ended_rings_make_way(rings, 0, MAX_ENDED_RINGS);
}

/* Give up the rings of all processes that have ended. */
void
ended_give_up(Shared *shared)
{
	(void) ended_rings_give_up(rings_of(shared), DT_NOEND);
}

static pg_noinline void
give_up_old(Shared *shared)
{
	ended_rings_give_up_old(rings_of(shared), "wait_event_timing cannot free the memory of traces");
}

/* Called by every session after each request, and by others as they commit: are some out of date? */
void
ended_look(void)
{
	Shared	   *shared = shmem_get();

	if (shared && unlikely(pg_atomic_read_u64(&shared->oldest_ended) != 0))
		give_up_old(shared);
}
