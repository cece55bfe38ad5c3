/*-------------------------------------------------------------------------
 * offer.c
 *		What we offer other modules in this process: to write a trace next to ours,
 *		and to read and copy ours.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "../common/wait_rings.h"
#include "waits.h"

static bool
look(WaitClock *clock)
{
	Shared	   *shared = shmem_get();

	if (unlikely(capture.block.rests))
		(void) recorder_claim();
	if (capture.ring == NULL || shared == NULL)
		return false;
	clock->started = capture.ring->started;
	clock->base_ticks = capture.ring_base;
	clock->base_ns = capture.ring_base_ns;
	clock->source = capture.clock;
	clock->rate = *timing_rate(shared, capture.clock);
	return true;
}

/* A request begins, in a session whose ring is in the area. */
static bool
claim(void)
{
	return !capture.block.rests || recorder_claim();
}

/* Nobody has requested anything. */
static void
as_configured(void)
{
	capture.asked_for_waits = 0;
	pg_atomic_write_u32(&capture.slot->asked, 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&capture.slot->level, pg_atomic_read_u32(&capture.slot->configured));
	timing_follow_level();
}

/* As if another session had requested it; what cannot be traced is not wanted any longer. */
static bool
trace(WaitsWanted wanted, uint64 most)
{
	if (shmem_get() == NULL || !slot_present())
		return false;
	/* workers of a parallel query that see the level see this, too */
	capture.slot->recorded = wanted == WAITS_RECORDED;
	capture.most = most;
	if (wanted != WAITS_OFF)
	{
		uint32		level = pg_atomic_read_u32(&capture.slot->level);
		uint32		before = pg_atomic_fetch_add_u32(&capture.slot->asked, 1);

		capture.asked_for_waits = before == 0 || before == capture.asked_for_waits ? before + 1 : 0;
		pg_write_barrier();
		pg_atomic_write_u32(&capture.slot->level, CAPTURE_TRACE);
		ring_open();
		if (capture.ring != NULL)
			return true;
		if (capture.asked_for_waits != 0)
			as_configured();
		else					/* somebody else wants something, too */
			pg_atomic_write_u32(&capture.slot->level, level);
		return false;
	}
	as_configured();
	return true;
}

static bool
look_at_ring(uint32 place, WaitRing *found)
{
	Shared	   *shared = shmem_get();
	RingEntry  *entry = shared ? read_ring_entry(shared, place) : NULL;
	RingEntry	e;

	if (entry == NULL)
		return false;
	LWLockAcquire(&shared->lock, LW_SHARED);
	e = *entry;
	LWLockRelease(&shared->lock);
	found->pid = e.pid;
	found->leader_pid = e.leader_pid;
	found->handle = ring_place_is_there(e.handle) ? e.handle : 0;
	found->started = e.started;
	return true;
}

static uint32
read_ring(const void *mapped, uint64 from, WaitRecord *records, uint32 room, uint64 *next,
		  uint64 *lost)
{
	TraceRing  *ring = unconstify(void *, mapped);
	uint64		end = read_written(ring);
	uint64		oldest = end > ring->nrecords ? end - ring->nrecords : 0;
	uint64		number = Max(from, oldest);
	uint32		n = 0;

	*lost = number - from;
	for (; number < end && n < room; number++)
	{
		TraceRecord r;

		if (!read_record(ring, number, &r))
		{
			(*lost)++;
			continue;
		}
		records[n].wait = r.kind == RECORD_WAIT;
		records[n].kind = r.kind;
		records[n].depth = r.depth;
		records[n].event = r.event;
		records[n].calls = r.calls;
		records[n].start_ns = r.start_ns;
		records[n].value = r.value;
		n++;
	}
	*next = number;
	return n;
}

/* Of the counters of this process: a reset of them meanwhile makes it too little. */
static int64
lock_waits(void)
{
	static uint64 before = 0;
	uint64		sum = 0;
	uint64		last = before;

	if (capture.slot == NULL)
		return 0;
	capture_fold();
	for (uint32 i = 0; i < capture.slot->nevents; i++)
		if (WAIT_CLASS(capture.slot->events[i].key) == CLASS_LOCK)
			sum += capture.slot->events[i].total_ns;
	before = sum;
	return sum > last ? (int64) (sum - last) : 0;
}

static const WaitCopyOffer copy_offer = {
	ring_copy, lock_waits, same_wait_watch, same_wait_found
};
static const WaitClockOffer clock_offer = {
	look, trace, claim, &capture.waits, &capture.clock_changes, &trace_cpu
};
static const WaitRingsOffer rings_offer = {look_at_ring, read_ring};

void
offer_install(void)
{
	*find_rendezvous_variable(WAIT_CLOCK_OFFER) = (void *) &clock_offer;
	*find_rendezvous_variable(WAIT_RINGS_OFFER) = (void *) &rings_offer;
	*find_rendezvous_variable(WAIT_COPY_OFFER) = (void *) &copy_offer;
}
