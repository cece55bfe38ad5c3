/*-------------------------------------------------------------------------
 * kept.c
 *		Copies of rings, kept because a statement was slow.
 *
 * A copy has a segment of its own, as large as what the ring holds, which counts
 * among the rings that are kept.  There are MAX_KEPT_RINGS at most: one makes way
 * before the next is made, so that memory is never taken for more, and further
 * ones if the memory of all rings leaves no room.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/dsm.h"
#include "utils/timestamp.h"

#include "sql.h"

PG_FUNCTION_INFO_V1(wait_event_timing_kept);
PG_FUNCTION_INFO_V1(wait_event_timing_reset_kept);

static uint64 slow_query_id;
static int64 slow_duration_us;
static KeptRing *place = NULL;	/* of the copy that is being made */
static uint64 taken = 0;		/* memory counted for it */

/* The caller holds the lock.  Free the place, and return what must be let go. */
static RingHandle
vacate(KeptRing *kept)
{
	RingHandle	handle = kept->ring.handle;

	if (handle != 0)
		ring_memory_forget(kept->ring.memory);
	memset(kept, 0, sizeof(*kept));
	return handle;
}

/* Is a copy the one to make way? Our role's own go first, then the oldest. */
static bool
goes_before(const KeptRing *kept, const KeptRing *other)
{
	bool		own = kept->ring.role == MyProc->roleId;

	if (own != (other->ring.role == MyProc->roleId))
		return own;
	return kept->id < other->id;
}

/* The caller holds the lock.  The copy that is the first to make way; NULL: there is none */
static KeptRing *
first_to_go(Shared *shared)
{
	KeptRing   *found = NULL;

	for (int i = 0; i < MAX_KEPT_RINGS; i++)
	{
		KeptRing   *kept = &shared->kept[i];

		if (kept->ring.handle != 0 && (found == NULL || goes_before(kept, found)))
			found = kept;
	}
	return found;
}

/* Take a place, of another copy if none is free, or none if all are being made. */
static void
take_place(Shared *shared)
{
	KeptRing   *found = NULL;
	RingHandle	gone = 0;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MAX_KEPT_RINGS && found == NULL; i++)
		if (shared->kept[i].ring.pid == 0)
			found = &shared->kept[i];
	if (found == NULL)
		found = first_to_go(shared);
	if (found)
	{
		gone = vacate(found);
		found->ring.pid = MyProcPid;
	}
	/* before anything can fail */
	place = found;
	LWLockRelease(&shared->lock);
	if (gone != 0)
		ring_place_free(gone);
}

/* Give up an older copy of our role.  False: there is none. */
static bool
make_way(Shared *shared)
{
	KeptRing   *kept;
	RingHandle	gone = 0;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	kept = first_to_go(shared);
	if (kept && kept->ring.role == MyProc->roleId)
		gone = vacate(kept);
	LWLockRelease(&shared->lock);
	if (gone != 0)
		ring_place_free(gone);
	return gone != 0;
}

/* Count the memory of a copy, for which traces of processes that ended and older copies make way. */
static void
take_memory(Shared *shared, uint64 bytes)
{
	bool		possible = bytes <= ring_memory_for_kept(shmem_rings_kb);

	while (!possible || !ring_memory_keep_copy(shmem_rings_kb, bytes))
		if (!possible || (!ended_make_way(shared) && !make_way(shared)))
			ring_memory_refuse(shmem_rings_kb, "wait_event_timing.trace_memory");
	taken = bytes;
}

/* Nobody else writes into our ring.  Returns the handle of the copy. */
static uint32
copy_ring(Shared *shared, const TraceRing *ring, uint32 *nrecords)
{
	uint64		written = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &ring->written));
	uint32		n = (uint32) Min(written, ring->nrecords);
	dsm_segment *segment;
	TraceRing  *copy;
	uint32		handle;

	/* a number leads to the same place in a smaller ring, as long as none was overwritten */
	*nrecords = pg_nextpower2_32(Max(n, 1));
	take_memory(shared, ring_memory_of(offsetof(TraceRing, records) +
									   *nrecords * sizeof(TraceRecord)));
	segment = ring_segment(*nrecords);
	copy = dsm_segment_address(segment);
	copy->started = ring->started;
	pg_atomic_write_u64(&copy->written, written);
	memcpy(copy->records, ring->records, n * sizeof(TraceRecord));
	dsm_pin_segment(segment);
	handle = dsm_segment_handle(segment);
	dsm_detach(segment);
	return handle;
}

static void
make_copy(Shared *shared)
{
	uint32		nrecords;
	uint32		handle;

	/* one in the area may have been taken; it stays ours until the next answer */
	if (capture.block.rests && !recorder_claim())
		return;
	take_place(shared);
	if (place == NULL)
		return;
	handle = copy_ring(shared, capture.ring, &nrecords);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	place->id = ++shared->last_kept;
	place->kept_at = GetCurrentTimestamp();
	place->query_id = slow_query_id;
	place->duration_us = slow_duration_us;
	place->ring = *shmem_ring(shared, MY_PROC_NUMBER);
	place->ring.nrecords = nrecords;
	place->ring.handle = handle;
	place->ring.memory = taken;
	taken = 0;
	LWLockRelease(&shared->lock);
	place = NULL;
}

/* Keep a copy of our ring.  The session holds nothing, and its client has its answer. */
void
kept_copy(uint64 query_id, int64 duration_us)
{
	Shared	   *shared = shmem_get();

	slow_query_id = query_id;
	slow_duration_us = duration_us;
	if (guard_run(make_copy, "wait_event_timing cannot keep the trace of a slow statement"))
		return;
	if (taken > 0)
		ring_memory_forget(taken);
	taken = 0;
	if (place == NULL)
		return;
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	(void) vacate(place);
	LWLockRelease(&shared->lock);
	place = NULL;
}

/* A copy for another module, which lets go of it and of its memory; false: there is no ring. */
bool
kept_copy_for(uint32 *handle, uint64 *memory, TimestampTz *started)
{
	Shared	   *shared = shmem_get();
	bool		rested = capture.block.rests;
	uint32		nrecords;

	if (capture.ring == NULL || shared == NULL)
		return false;
	if (rested && !recorder_claim())
	{
		capture.block.rests = true; /* the next request notices that it has been taken */
		return false;
	}
	PG_TRY();
	{
		*handle = copy_ring(shared, capture.ring, &nrecords);
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

Datum
wait_event_timing_kept(PG_FUNCTION_ARGS)
{
	Shared	   *shared = sql_shared();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < MAX_KEPT_RINGS; i++)
	{
		KeptRing	kept;
		Datum		values[8];
		bool		nulls[8] = {0};

		LWLockAcquire(&shared->lock, LW_SHARED);
		kept = shared->kept[i];
		LWLockRelease(&shared->lock);
		if (kept.ring.handle == 0 || !sql_may_see(kept.ring.role))
			continue;
		values[0] = Int64GetDatum(kept.id);
		values[1] = Int32GetDatum(kept.ring.pid);
		values[2] = ObjectIdGetDatum(kept.ring.role);
		values[3] = TimestampTzGetDatum(kept.kept_at);
		values[4] = Int64GetDatum((int64) kept.query_id);
		nulls[4] = kept.query_id == 0;
		values[5] = Float8GetDatum((double) kept.duration_us / 1000);
		values[6] = Int32GetDatum((int32) kept.ring.nrecords);
		values[7] = TimestampTzGetDatum(kept.ring.started);
		sql_put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}

/* Give up one copy, or with NULL all; returns how many. */
Datum
wait_event_timing_reset_kept(PG_FUNCTION_ARGS)
{
	Shared	   *shared = sql_shared();
	int			n = 0;

	for (int i = 0; i < MAX_KEPT_RINGS; i++)
	{
		KeptRing   *kept = &shared->kept[i];
		RingHandle	handle = 0;

		LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
		if (kept->ring.handle != 0 && (PG_ARGISNULL(0) || kept->id == PG_GETARG_INT64(0)))
			handle = vacate(kept);
		LWLockRelease(&shared->lock);
		if (handle != 0)
		{
			ring_place_free(handle);
			n++;
		}
	}
	PG_RETURN_INT32(n);
}
