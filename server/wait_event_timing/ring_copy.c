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

static uint64 taken = 0;		/* memory counted for the copy that is being made */

/* Count the memory of a copy, for which traces of processes that ended make way. */
static void
take_memory(Shared *shared, uint64 bytes)
{
	bool		possible = bytes <= ring_memory_for_kept(shmem_rings_kb);

	while (!possible || !ring_memory_keep_copy(shmem_rings_kb, bytes))
		if (!possible || !ended_make_way(shared))
			ring_memory_refuse(shmem_rings_kb, "wait_event_timing.trace_memory");
	taken = bytes;
}

/* Nobody else writes into our ring.  Returns the handle of the copy. */
static uint32
make_copy(Shared *shared, const TraceRing *ring)
{
	uint64		written = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &ring->written));
	uint32		n = (uint32) Min(written, ring->nrecords);
	/* a number leads to the same place in a smaller ring, as long as none was overwritten */
	uint32		nrecords = pg_nextpower2_32(Max(n, 1));
	dsm_segment *segment;
	TraceRing  *copy;
	uint32		handle;

	take_memory(shared, ring_memory_of(offsetof(TraceRing, records) +
									   nrecords * sizeof(TraceRecord)));
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
	Shared	   *shared = shmem_get();
	bool		rested = capture.block.rests;

	if (capture.ring == NULL || shared == NULL)
		return false;
	if (rested && !recorder_claim())
	{
		capture.block.rests = true; /* the next request notices that it has been taken */
		return false;
	}
	PG_TRY();
	{
		*handle = make_copy(shared, capture.ring);
	}
	PG_CATCH();
	{
		if (taken > 0)
			ring_memory_forget(taken);
		taken = 0;
		if (rested)
			recorder_let_rest();
		PG_RE_THROW();
	}
	PG_END_TRY();
	*memory = taken;
	*started = capture.ring->started;
	taken = 0;
	if (rested)
		recorder_let_rest();
	return true;
}
