/*-------------------------------------------------------------------------
 * offer.c
 *		What we offer a module in this process that writes a trace beside ours.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "../common/wait_clock.h"
#include "waits.h"

static bool
look(WaitClock *clock)
{
	Shared	   *shared = shmem_get();

	if (capture.ring == NULL || shared == NULL)
		return false;
	clock->started = capture.ring->started;
	clock->base_ticks = capture.ring_base;
	clock->base_ns = capture.ring_base_ns;
	clock->source = capture.clock;
	clock->rate = *capture_rate(shared, capture.clock);
	return true;
}

/* As if another session had asked for it */
static bool
trace(bool on)
{
	if (shmem_get() == NULL || !capture_present())
		return false;
	if (on)
	{
		pg_atomic_fetch_add_u32(&capture.slot->asked, 1);
		pg_write_barrier();
		pg_atomic_write_u32(&capture.slot->level, CAPTURE_TRACE);
		ring_open();
		return capture.ring != NULL;
	}
	pg_atomic_write_u32(&capture.slot->asked, 0);
	pg_memory_barrier();
	pg_atomic_write_u32(&capture.slot->level, pg_atomic_read_u32(&capture.slot->configured));
	return true;
}

static const WaitClockOffer offer = {look, trace, &capture.waits};

void
offer_install(void)
{
	*find_rendezvous_variable(WAIT_CLOCK_OFFER) = (void *) &offer;
}
