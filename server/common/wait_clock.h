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

#define WAIT_CLOCK_OFFER "wait_event_timing/clock/2"

/* At "base_ticks" of its clock the time in the ring was "base_ns". */
typedef struct WaitClock
{
	TimestampTz started;		/* tells one ring from the next */
	int64		base_ticks;
	int64		base_ns;
	ClockSource source;
	ClockRate	rate;
} WaitClock;

typedef struct WaitClockOffer
{
	/* False: this process has no ring. */
	bool		(*look) (WaitClock *clock);

	/*
	 * Trace this process's waits from now on, or give its level back to its
	 * settings.  To be called where a process holds nothing, and no error is
	 * under way.  False: there can be no trace.
	 */
	bool		(*trace) (bool on);

	/* Waits of this process so far */
	const uint64 *waits;
} WaitClockOffer;

#endif							/* PGTARE_WAIT_CLOCK_H */
