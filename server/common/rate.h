/*-------------------------------------------------------------------------
 * rate.h
 *		The rate of a clock, measured since a module was loaded.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_RATE_H
#define PGTARE_RATE_H

#include "clock.h"

/* Over as long a base as there is; sleeps if that is shorter than wanted. */
static inline ClockRate
rate_since(bool counter, ClockPair at_load, int64 shortest_base_ns)
{
	ClockPair	now = clock_pair(counter);

	if (now.ns - at_load.ns < shortest_base_ns)
	{
		pg_usleep(shortest_base_ns / 1000);
		now = clock_pair(counter);
	}
	return clock_rate(counter, at_load, now);
}

#endif							/* PGTARE_RATE_H */
