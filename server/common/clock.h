/*-------------------------------------------------------------------------
 * clock.h
 *		Reading time cheaply, and turning it into nanoseconds without loss.
 *
 * A reading is a number of ticks: of the time stamp counter if the
 * processor says that it is invariant, of the virtual counter on aarch64, and
 * else nanoseconds of CLOCK_MONOTONIC.  Ticks are compared and subtracted as
 * they are; only a finished difference is converted, through a 128-bit
 * product with 32 fractional bits, so that the rounding of the factor stays
 * below 1 ppb.
 *
 * The header is free of PostgreSQL, so that the clock probe can measure
 * exactly what the server modules use.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_CLOCK_H
#define PGTARE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

typedef struct ClockRate
{
	uint64_t	ns_per_tick;	/* times 2^32 */
	uint64_t	hz;				/* ticks a second */
	bool		counter;		/* ticks come from a processor counter */
} ClockRate;

/* One simultaneous reading of both clocks; width tells how simultaneous. */
typedef struct ClockPair
{
	int64_t		ticks;
	int64_t		ns;
	int64_t		width;			/* ticks between the two bracketing readings */
} ClockPair;

static inline int64_t
clock_system_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* May the processor's counter serve as a clock at all? */
static inline bool
clock_counter_usable(void)
{
#if defined(__x86_64__)
	unsigned	a,
				b,
				c,
				d;

	/* invariant TSC: constant rate in all power states */
	return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8)) != 0;
#elif defined(__aarch64__)
	return true;
#else
	return false;
#endif
}

/* Is there the instruction behind CLOCK_SOURCE_TSCP?  If it is masked it raises SIGILL. */
static inline bool
clock_rdtscp_usable(void)
{
#if defined(__x86_64__)
	unsigned	a,
				b,
				c,
				d;

	return __get_cpuid(0x80000001, &a, &b, &c, &d) && (d & (1u << 27)) != 0;
#else
	return true;				/* it is another name for the counter */
#endif
}

static inline int64_t
clock_counter(void)
{
#if defined(__x86_64__)
	return (int64_t) __rdtsc();
#elif defined(__aarch64__)
	uint64_t	v;

	__asm__ volatile("mrs %0, cntvct_el0":"=r"(v));
	return (int64_t) v;
#else
	return clock_system_ns(CLOCK_MONOTONIC);
#endif
}

/* The counter once everything before has been done; what follows may begin earlier. */
static inline int64_t
clock_counter_ordered(void)
{
#if defined(__x86_64__)
	_mm_lfence();
#elif defined(__aarch64__)
	__asm__ volatile("isb":::"memory");
#endif
	return clock_counter();
}

/* Past the vDSO, by a real system call. */
static inline int64_t
clock_syscall_ns(clockid_t id)
{
	struct timespec ts = {0, 0};

	(void) syscall(SYS_clock_gettime, id, &ts);
	return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline int64_t
clock_ticks(bool counter)
{
	return counter ? clock_counter() : clock_system_ns(CLOCK_MONOTONIC);
}

/* As clock_ticks, but not before what comes before it. */
static inline int64_t
clock_ticks_ordered(bool counter)
{
	return counter ? clock_counter_ordered() : clock_system_ns(CLOCK_MONOTONIC);
}

/*
 * Tightest of several readings of the system clock between two of the counter.
 * The counter is read in order, so that the system clock was truly read in
 * between and half the width bounds the error.
 */
static inline ClockPair
clock_pair(bool counter)
{
	ClockPair	best = {0, 0, INT64_MAX};

	for (int i = 0; i < 64; i++)
	{
		int64_t		t0 = clock_ticks_ordered(counter);
		int64_t		ns = clock_system_ns(CLOCK_MONOTONIC);
		int64_t		t1 = clock_ticks_ordered(counter);

		if (t1 >= t0 && t1 - t0 < best.width)
		{
			best.ticks = t0 + (t1 - t0) / 2;
			best.ns = ns;
			best.width = t1 - t0;
		}
	}
	return best;
}

/* The ways to take a time stamp that a user may choose between */
typedef enum ClockSource
{
	CLOCK_SOURCE_TSC,			/* the processor's counter */
	CLOCK_SOURCE_TSCP,			/* the same, after all earlier instructions */
	CLOCK_SOURCE_MONOTONIC,
	CLOCK_SOURCE_MONOTONIC_COARSE,	/* moves with the kernel's tick */
	CLOCK_SOURCE_SYSCALL		/* CLOCK_MONOTONIC past the vDSO */
} ClockSource;

/* Counter ticks, or nanoseconds? */
static inline bool
clock_source_counts(ClockSource source)
{
	return source == CLOCK_SOURCE_TSC || source == CLOCK_SOURCE_TSCP;
}

/* A call: its stack frame would weigh on every function that reads the usual source. */
static __attribute__((noinline, unused)) int64_t
clock_source_other(ClockSource source)
{
	switch (source)
	{
#if defined(__x86_64__)
		case CLOCK_SOURCE_TSCP:
			{
				unsigned	processor;

				return (int64_t) __rdtscp(&processor);
			}
#endif
		case CLOCK_SOURCE_MONOTONIC_COARSE:
			return clock_system_ns(CLOCK_MONOTONIC_COARSE);
		case CLOCK_SOURCE_SYSCALL:
			return clock_syscall_ns(CLOCK_MONOTONIC);
		case CLOCK_SOURCE_MONOTONIC:
			return clock_system_ns(CLOCK_MONOTONIC);
		default:
			return clock_counter();
	}
}

/* The usual source stays a single instruction if this is inlined. */
static inline int64_t
clock_source_read(ClockSource source)
{
	if (__builtin_expect(source == CLOCK_SOURCE_TSC, 1))
		return clock_counter();
	return clock_source_other(source);
}

/* The rate between two pairs; they should lie at least some milliseconds apart. */
static inline ClockRate
clock_rate(bool counter, ClockPair from, ClockPair to)
{
	ClockRate	rate = {(uint64_t) 1 << 32, 1000000000, counter};
	int64_t		ticks = to.ticks - from.ticks;
	int64_t		ns = to.ns - from.ns;

	if (counter && ticks > 0 && ns > 0)
	{
		rate.ns_per_tick =
			(uint64_t) (((unsigned __int128) (uint64_t) ns << 32) / (uint64_t) ticks);
		rate.hz = (uint64_t) ((unsigned __int128) (uint64_t) ticks * 1000000000u / (uint64_t) ns);
	}
	return rate;
}

/* A number of ticks that is not negative, as nanoseconds */
static inline int64_t
clock_ticks_to_ns(const ClockRate *rate, int64_t ticks)
{
	return (int64_t) (((unsigned __int128) (uint64_t) ticks * rate->ns_per_tick) >> 32);
}

/*
 * A difference in ticks as nanoseconds.  The sign is looked at before the
 * conversion: a clock that stepped back gives 0, and is counted.
 */
static inline int64_t
clock_ns(const ClockRate *rate, int64_t ticks, uint64_t *negative)
{
	if (__builtin_expect(ticks < 0, 0))
	{
		(*negative)++;
		return 0;
	}
	return clock_ticks_to_ns(rate, ticks);
}

static inline int64_t
clock_ns_to_ticks(const ClockRate *rate, int64_t ns)
{
	return (int64_t) (((unsigned __int128) (uint64_t) ns << 32) / rate->ns_per_tick);
}

#endif							/* PGTARE_CLOCK_H */
