/*-------------------------------------------------------------------------
 * facts.c
 *		What processor and kernel say about the counter and its rate.
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <string.h>

#include "../common/clock_trust.h"
#include "probe.h"

#ifndef PROBE_SOURCES
#define PROBE_SOURCES ""
#endif

/* Which sources this was compiled from */
const char *
probe_sources(void)
{
	return PROBE_SOURCES;
}

/* A leaf of CPUID; 0, or -1 if the processor has no such leaf or no CPUID. */
int
probe_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
#if defined(__x86_64__)
	/* the hypervisor's leaves have a highest one of their own */
	if (leaf >> 28 != 4 && __get_cpuid_max(leaf & 0x80000000, NULL) < leaf)
		return -1;
	__cpuid_count(leaf, subleaf, out[0], out[1], out[2], out[3]);
	return 0;
#else
	(void) leaf;
	(void) subleaf;
	memset(out, 0, 4 * sizeof(uint32_t));
	return -1;
#endif
}

int
probe_counter_usable(void)
{
	return clock_counter_usable();
}

/* Whether the server modules take the counter as a clock, and why; room for PROBE_REASON bytes */
int
probe_counter_trusted(char *reason)
{
	ClockTrust	trust = clock_trust();

	snprintf(reason, PROBE_REASON, "%s", trust.reason);
	return trust.counter;
}

/* Counter, CLOCK_MONOTONIC in ns, and the width of their bracket in ticks. */
void
probe_pair(int64_t out[3])
{
	ClockPair	pair = clock_pair(true);

	out[0] = pair.ticks;
	out[1] = pair.ns;
	out[2] = pair.width;
}

/*
 * Two pairs as probe_pair gives them, with a busy wait between: all in all no
 * longer than duration_ns on a processor of one's own.
 */
void
probe_calibrate(int64_t duration_ns, int64_t out[6])
{
	int64_t		began = clock_system_ns(CLOCK_MONOTONIC);
	int64_t		closing;

	probe_pair(out);
	closing = clock_system_ns(CLOCK_MONOTONIC) - began;	/* as long as the last pair will take */
	while (clock_system_ns(CLOCK_MONOTONIC) - began < duration_ns - closing)
		;
	probe_pair(out + 3);
}
