/*-------------------------------------------------------------------------
 * recorder_ring.c
 *		The ring of a process while it is in the area: claiming it, letting it rest,
 *		and giving it more room.
 *
 * The area (../common/ring_area.h) has the rings of sessions that only the recorder
 * of another module traces, and of their parallel workers.  A session claims its
 * ring before it writes, lets it rest when a request has been answered, and makes
 * another (ring.c) if it has been taken meanwhile.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "../common/guarded.h"
#include "waits.h"

static uint64 grow_at = PG_UINT64_MAX;	/* records from which on more room is wanted */

/* It is tried when the ring is nearly full, if it may be larger. */
void
recorder_may_grow(void)
{
	uint64		written = pg_atomic_read_u64(&capture.ring->written);
	uint64		n = capture.ring->nrecords;

	grow_at = n * 2 * sizeof(TraceRecord) <= capture.most ?
		written - Min(written, n / 2) + n / 4 * 3 : PG_UINT64_MAX;
}

/*
 * In a block of twice the size a record has another place, under the same number.
 * Whoever reads the old block goes on with it.
 */
static void
grow(void *argument)
{
	Shared	   *shared = argument;
	RingEntry  *mine = shmem_ring(shared, MY_PROC_NUMBER);
	RingHandle	gone = mine->handle;
	const TraceRing *old = capture.ring;
	uint64		written;
	TraceRing  *ring;
	RingBlock	larger;
	bool		taken = ring_area()->take(capture.block.room * 2, false, &larger);

	/* to wait for a lock is a wait like others, and may be written now */
	written = pg_atomic_read_u64(&capture.ring->written);
	if (!taken)
	{
		grow_at = written + old->nrecords;	/* not again and again */
		return;
	}
	ring = larger.memory;
	memcpy(ring, old, offsetof(TraceRing, records));
	ring->nrecords = (uint32) (larger.room / sizeof(TraceRecord));
	for (uint64 i = written - Min(written, old->nrecords); i < written; i++)
		ring->records[i & (ring->nrecords - 1)] = old->records[i & (old->nrecords - 1)];
	capture.block = larger;
	capture.ring = ring;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	mine->handle = larger.handle;
	mine->nrecords = ring->nrecords;
	LWLockRelease(&shared->lock);
	ring_place_free(gone);
	recorder_may_grow();
}

/* Our ring, which rested, is written again.  False: it has been taken. */
bool
recorder_claim(void)
{
	if (likely(ring_block_claim(&capture.block)))
		return true;
	/* its entry stays until the next ring begins: readers see that it is gone */
	capture.ring = NULL;
	capture.clock_changes++;
	return false;
}

/*
 * The time now, by the ring's clock.  When its last record began would not do for when
 * it was written: that is a wait for the client, who may have thought for a while.
 */
static TimestampTz
now_in_ring(void)
{
	uint64		ignored = 0;
	int64		since = clock_source_read(capture.clock) - capture.ring_base;

	return capture.ring->started +
		(capture.ring_base_ns +
		 clock_ns(timing_rate(shmem_get(), capture.clock), since, &ignored)) / 1000;
}

/* Nobody writes to our ring for now. */
void
recorder_let_rest(void)
{
	ring_block_rest(&capture.block, now_in_ring());
}

/* A request has been answered: let the ring grow, or rest, unless somebody asked for it. */
void
recorder_rest(bool idle)
{
	if (capture.block.rests)
		return;
	if (unlikely(pg_atomic_read_u64(&capture.ring->written) >= grow_at))
		(void) guarded_run("wait_event_timing cannot give a trace more memory", grow, NULL,
						   shmem_get());
	if (idle && (capture.slot->recorded || pg_atomic_read_u32(capture.level) != CAPTURE_TRACE))
		recorder_let_rest();
}

/* The process ends, and leaves its ring, if that is in the area. */
void
recorder_leave(Shared *shared)
{
	const TraceRing *ring = capture.ring;
	TimestampTz used;

	if (capture.block.handle == 0 || ring == NULL || !recorder_claim())
		return;
	used = now_in_ring();		/* once it is listed, others may give it up */
	if (ended_keep(shared, shmem_ring(shared, MY_PROC_NUMBER), ring, NULL))
		ring_block_rest(&capture.block, used);
	capture.ring = NULL;
	memset(&capture.block, 0, sizeof(capture.block));
}
