/*-------------------------------------------------------------------------
 * ring_copy.c
 *		A copy of our ring for another module, which keeps it.
 *
 * A copy has a segment of its own, as large as what the ring holds, which counts
 * among the rings that are kept.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"
#include "storage/dsm.h"

#include "waits.h"

/* Nobody else writes into our ring.  Returns the handle of the copy. */
static uint32
make_copy(const TraceRing *ring)
{
	uint64		written = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &ring->written));
	uint32		n = (uint32) Min(written, ring->nrecords);
	/* a number leads to the same place in a smaller ring, as long as none was overwritten */
	uint32		nrecords = pg_nextpower2_32(Max(n, 1));
	dsm_segment *segment;
	TraceRing  *copy;
	uint32		handle;

	ring_memory_take_copy(ring_memory_of(offsetof(TraceRing, records) +
										 nrecords * sizeof(TraceRecord)), ended_make_way);
	segment = ring_segment(nrecords);
	copy = dsm_segment_address(segment);
	copy->started = ring->started;
	pg_atomic_write_u64(&copy->written, written);
	memcpy(copy->records, ring->records, n * sizeof(TraceRecord));
	dsm_pin_segment(segment);
	handle = dsm_segment_handle(segment);
	dsm_detach(segment);
	return handle;
}

/* The other module lets go of the copy and of its memory; false: there is no ring. */
bool
ring_copy(uint32 *handle, uint64 *memory, TimestampTz *started)
{
	bool		rested = capture.block.rests;

	if (capture.ring == NULL || shmem_get() == NULL)
		return false;
	if (rested && !recorder_claim())
	{
		capture.block.rests = true; /* the next request notices that it has been taken */
		return false;
	}
	PG_TRY();
	{
		*handle = make_copy(capture.ring);
	}
	PG_CATCH();
	{
		ring_memory_forget(ring_memory_taken());
		if (rested)
			recorder_let_rest();
		PG_RE_THROW();
	}
	PG_END_TRY();
	*memory = ring_memory_taken();
	*started = capture.ring->started;
	if (rested)
		recorder_let_rest();
	return true;
}
