/*-------------------------------------------------------------------------
 * facts.c
 *		What processor and kernel say about the counter and its rate.
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>

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

/* The rate that the architecture itself states, in Hz; 0 if it does not. */
int64_t
probe_counter_hz(void)
{
#if defined(__aarch64__)
	uint64_t	hz;

	__asm__ volatile("mrs %0, cntfrq_el0":"=r"(hz));
	return (int64_t) hz;
#else
	return 0;
#endif
}

/*
 * What the kernel multiplies the counter with, and shifts, to have ns: it
 * is in the page that comes with every perf event.  Returns 0, or an errno.
 */
int
probe_kernel_rate(uint32_t *mult, uint32_t *shift)
{
	struct perf_event_attr attr;
	struct perf_event_mmap_page *page;
	long		size = sysconf(_SC_PAGESIZE);
	int			fd,
				failed = 0;

	memset(&attr, 0, sizeof(attr));
	attr.type = PERF_TYPE_SOFTWARE;
	attr.size = sizeof(attr);
	attr.config = PERF_COUNT_SW_DUMMY;
	attr.exclude_kernel = 1;
	attr.exclude_hv = 1;
	fd = (int) syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (fd < 0)
		return errno;
	page = mmap(NULL, (size_t) size, PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		failed = errno;
	else
	{
		if (page->cap_user_time && page->time_mult != 0)
		{
			*mult = page->time_mult;
			*shift = page->time_shift;
		}
		else
			failed = ENODATA;
		(void) munmap(page, (size_t) size);
	}
	(void) close(fd);
	return failed;
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
