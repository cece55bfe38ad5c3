/*-------------------------------------------------------------------------
 * wait_clock.h
 *		What wait_event_timing offers a module in the same process that writes a
 *		trace next to its own: the time line of its ring, and to begin one.
 *
 * The offer is found by find_rendezvous_variable(WAIT_CLOCK_OFFER); the name
 * carries the version of the structures.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_WAIT_CLOCK_H
#define PGTARE_WAIT_CLOCK_H

#include "postgres.h"

#include "utils/timestamp.h"

#include "clock.h"

#define WAIT_CLOCK_OFFER "wait_event_timing/clock/5"

/* At "base_ticks" of its clock the time in the ring was "base_ns". */
typedef struct WaitClock
{
	TimestampTz started;		/* tells one ring from the next */
	int64		base_ticks;
	int64		base_ns;
	ClockSource source;
	ClockRate	rate;
} WaitClock;

/*
 * The processor time of this process when it was read last: one reading serves both
 * modules if they want one at the same moment.
 */
typedef struct CpuReading
{
	int64		at;				/* ticks of ... */
	ClockSource source;
	bool		done;
	int64		ns;
} CpuReading;

#define CPU_READING_SERVES_PER_S 200000 /* it serves for a part of a second */

static inline int64
cpu_reading(CpuReading *last, ClockSource source, int64 now, const ClockRate *rate)
{
	/* the coarse clock stands still for longer; unsigned: a clock may step back */
	if (last->done && last->source == source && source != CLOCK_SOURCE_MONOTONIC_COARSE &&
		(uint64) (now - last->at) < (uint64) rate->hz / CPU_READING_SERVES_PER_S)
		return last->ns;
	last->done = true;
	last->source = source;
	last->at = now;
	last->ns = clock_system_ns(CLOCK_THREAD_CPUTIME_ID);
	return last->ns;
}

typedef enum WaitsWanted
{
	WAITS_OFF,
	WAITS_TRACED,
	WAITS_RECORDED				/* in the area (ring_area.h), unless there is a ring already */
} WaitsWanted;

typedef struct WaitClockOffer
{
	/* False: this process has no ring. */
	bool		(*look) (WaitClock *clock);

	/*
	 * Trace this process's waits from now on, in a ring of the area in no more
	 * than so many bytes; or give its level back to its settings.  To be called
	 * where a process holds nothing, and no error is under way.  False: there
	 * can be no trace.
	 */
	bool		(*trace) (WaitsWanted wanted, uint64 most);

	/* A request begins.  False: the ring has been taken, and must be made anew by trace(). */
	bool		(*claim) (void);

	/* Waits of this process so far */
	const uint64 *waits;

	/* Changes whenever what look() tells may */
	const uint32 *changes;

	CpuReading *cpu;
} WaitClockOffer;

#endif							/* PGTARE_WAIT_CLOCK_H */
