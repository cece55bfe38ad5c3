/*-------------------------------------------------------------------------
 * clock.c
 *		The module's clock: its rate, measured over as long a base as there is.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pgtare.h"
#include "../common/clock_trust.h"
#include "../common/rate.h"

#define SHORTEST_BASE_NS (20 * 1000 * 1000)

/* Taken when the library was loaded, and inherited by children */
static ClockPair at_load;
static bool counter;

void
pgtare_clock_init(void)
{
	counter = clock_trust().counter;
	at_load = clock_pair(counter);
}

/* Sleeps for up to 20 ms where the library was loaded only just now. */
ClockRate
pgtare_clock_rate(void)
{
	return rate_since(counter, at_load, SHORTEST_BASE_NS);
}

int64
pgtare_thread_cpu_ns(void)
{
	return clock_system_ns(CLOCK_THREAD_CPUTIME_ID);
}
