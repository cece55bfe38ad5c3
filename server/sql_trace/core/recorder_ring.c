/*-------------------------------------------------------------------------
 * ring_grow.c
 *		A ring in the area grows, while there is room, up to the size that is set.
 *
 * That is done between requests: the records are copied into a block of twice the
 * size, under the same positions, and readers find them there.  Whoever reads the
 * old block goes on with it.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

#define NEVER PG_UINT64_MAX

uint64		ring_grow_at = NEVER;	/* position from which on it is tried */

/* It is tried when the ring, whose oldest record is there, is nearly full, if it may be larger. */
void
ring_may_grow(void)
{
	Ring	   *ring = trace.ring;

	ring_grow_at = ring != NULL && ring->size * 2 <= (uint64) trace_recorder_kb * 1024 ?
		pg_atomic_read_u64(&ring->tail) + ring->size / 4 * 3 : NEVER;
}

/* Records keep their positions, though not their places. */
static void
copy_records(const Ring *from, Ring *to)
{
	uint64		head = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &from->head));
	uint64		at = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &from->tail));

	while (at < head)
	{
		uint64		here = at & (from->size - 1);
		uint64		there = at & (to->size - 1);
		uint64		n = Min(head - at, Min(from->size - here, to->size - there));

		memcpy(&to->data[there], &from->data[here], n);
		at += n;
	}
}

/* Nobody else writes to our ring, except "drained": at worst too much loss is reported. */
void
ring_grow(void)
{
	Shared	   *shared = shmem_get();
	TraceEntry *mine = &trace.slot->trace;
	Ring	   *old = trace.ring;
	Ring	   *ring;
	RingHandle	gone = mine->handle;
	RingBlock	larger;

	if (!ring_area()->take(old->size * 2, false, &larger))
	{
		ring_grow_at = ring_head() + old->size;	/* not again and again */
		return;
	}
	ring = larger.memory;
	memcpy(ring, old, offsetof(Ring, data));
	ring->size = larger.room;
	ring->session.ring_bytes = ring->size;
	copy_records(old, ring);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	mine->handle = larger.handle;
	mine->ring_bytes = ring->size;
	LWLockRelease(&shared->lock);
	ring_block = larger;
	trace.ring = ring;
	ring_place_free(gone);
	ring_may_grow();
}
