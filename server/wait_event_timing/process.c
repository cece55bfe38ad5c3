/*-------------------------------------------------------------------------
 * process.c
 *		What a process knows of itself, and for how long its waits have been captured.
 *
 * The first wait that is captured begins that time (wrap.h); it ends when a
 * process captures no more, or ends.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "waits.h"

int			capture_setting = CAPTURE_OFF;
int			capture_clock = CLOCK_SOURCE_TSC;

/* Until a process has its slot it must look once: later, the level of its slot */
static pg_atomic_uint32 look_once = {CAPTURE_STATS};

pg_attribute_aligned(64)
Capture		capture = {.level = &look_once, .lock_entry = -1};

const ClockRate timing_nanoseconds = {(uint64) 1 << 32, 1000000000, false};

static void
add_time(Slot *slot, const Shared *shared, int64 ticks)
{
	uint64		ignored = 0;

	pg_atomic_fetch_add_u64(&slot->timed_ns,
							clock_ns(timing_rate(shared, slot->clock), ticks, &ignored));
}

/*
 * The waits of a process are no longer captured.  Called by itself, or by what
 * switched that off while it did not wait; of several at once, one adds the time.
 * A reader in between would miss all of it, so others hold the lock, and the
 * process counts its turns or holds the lock.
 */
void
timing_stop(Slot *slot, const Shared *shared, int64 now)
{
	int64		since;

	if (shared == NULL || pg_atomic_read_u64(&slot->timed_since) == 0)
		return;
	slot->timed_until = now;
	since = (int64) pg_atomic_exchange_u64(&slot->timed_since, 0);
	if (since != 0)
		add_time(slot, shared, now - since);
}

/* The same, by the process itself, between waits */
void
timing_stop_own(void)
{
	Slot	   *slot = capture.slot;

	slot->turns++;
	pg_write_barrier();
	timing_stop(slot, shmem_get(), clock_source_read(slot->clock));
	pg_write_barrier();
	slot->turns++;
}

/* The process has changed its level between waits: what it no longer captures is not timed. */
void
timing_follow_level(void)
{
	if (pg_atomic_read_u32(&capture.slot->level) == CAPTURE_OFF)
		timing_stop_own();
}

/* A wait is over that began as somebody stopped the time: what came after that is its own. */
void
timing_add_wait(int64 start, int64 end)
{
	const Shared *shared = shmem_get();

	/* we saw that the time was stopped: now see when */
	pg_read_barrier();
	if (shared != NULL)
		add_time(capture.slot, shared, end - Max(start, capture.slot->timed_until));
}
