/*-------------------------------------------------------------------------
 * rate.h
 *		The rate of a clock, measured since a module was loaded.
 *
 * The counter is measured wherever it can be a clock, trusted or not: the
 * kernel may choose another source of time while the server runs.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_RATE_H
#define PGTARE_RATE_H

#include "clock.h"

/* The readings at load, and for how long the machine had been suspended until then */
typedef struct RateBase
{
	ClockPair	pair;
	int64		suspended_ns;
} RateBase;

#define RATE_SUSPENDED_NS 1000000	/* less may lie between two readings */

static inline RateBase
rate_base(void)
{
	RateBase	base = {clock_pair(clock_counter_usable()), 0};

	base.suspended_ns = clock_system_ns(CLOCK_BOOTTIME) - clock_system_ns(CLOCK_MONOTONIC);
	return base;
}

/*
 * Over as long a base as there is; sleeps if that is shorter than wanted.  CLOCK_MONOTONIC
 * stands still while the machine is suspended and the counter need not, so the base begins
 * anew then.
 */
static inline ClockRate
rate_since(bool counter, RateBase *base, int64 shortest_base_ns)
{
	RateBase	now = rate_base();

	if (now.suspended_ns - base->suspended_ns > RATE_SUSPENDED_NS)
		*base = now;
	if (now.pair.ns - base->pair.ns < shortest_base_ns)
	{
		pg_usleep(shortest_base_ns / 1000);
		now = rate_base();
	}
	return clock_rate(counter, base->pair, now.pair);
}

#endif							/* PGTARE_RATE_H */
