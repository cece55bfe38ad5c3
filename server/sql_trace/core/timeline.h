/*-------------------------------------------------------------------------
 * timeline.h
 *		Time in the ring: its clock, the waits' time line, CPU time.
 *
 * Times are ns since the ring began.  Hooks take readings of the clock, which is
 * cheap, and turn them into times when a record is written.  If wait_event_timing
 * traces the same process, we take over its rate of the processor's counter: then
 * both time lines differ by a constant, to the nanosecond.
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_TIMELINE_H
#define SQL_TRACE_TIMELINE_H

#include "postgres.h"

#include "../../common/wait_clock.h"

struct Shared;

/* At "base" of our clock the time in the ring was "base_ns". */
typedef struct Timeline
{
	ClockRate	rate;
	int64		base;
	int64		base_ns;
} Timeline;

/* The last comparison with the wall clock: both tell the same moment. */
typedef struct TimelineWall
{
	TimestampTz at;
	int64		time;			/* in the ring */
} TimelineWall;

#define WALL_NS UINT64CONST(1000000)

#pragma GCC visibility push(hidden)

extern TimelineWall timeline_wall;

extern int	timeline_clock;		/* setting: a ClockSource */
extern int	timeline_cpu_interval;	/* setting: us between readings of CPU time; -1: none */
extern ClockSource timeline_source; /* in force */
extern Timeline timeline;
extern const uint64 *timeline_waits;	/* waits of this process that have been traced */
extern int64 timeline_cpu_read_at;	/* time in the ring; before it began: never */

extern void timeline_begin(struct Shared *shared);
extern int64 timeline_ns(int64 ticks);
extern int64 timeline_ticks(int64 ns);
extern void timeline_follow_clock(void);
extern void timeline_follow_waits(void);
extern bool timeline_has_waits(void);
extern bool timeline_want_waits(WaitsWanted wanted, uint64 most);
extern bool timeline_claim_waits(void);
extern int64 timeline_read_cpu(int64 now);
extern void timeline_compare(int64 now);

/* The clock of this process's trace, now; timeline_of() tells what time that is */
static inline int64
timeline_reading(void)
{
	return clock_source_read(timeline_source);
}

/* A reading of our clock, now or long ago, as time in the ring */
static inline int64
timeline_of(int64 reading)
{
	/* the sign is looked at once; clock_ns() would do it again */
	if (unlikely(reading < timeline.base))
		return timeline.base_ns - clock_ticks_to_ns(&timeline.rate, timeline.base - reading);
	return timeline.base_ns + clock_ticks_to_ns(&timeline.rate, reading - timeline.base);
}

static inline int64
timeline_now(void)
{
	return timeline_of(timeline_reading());
}

/*
 * A moment of the wall clock as time in the ring, which is "now".  Both clocks are
 * compared once a millisecond: they drift apart by less than the wall clock's unit.
 */
static inline int64
timeline_arrival(TimestampTz at, int64 now)
{
	if (unlikely((uint64) now - (uint64) timeline_wall.time >= WALL_NS))
		timeline_compare(now);
	return Min(now, timeline_wall.time + (at - timeline_wall.at) * 1000);
}

/* CPU time since the ring began, or -1: it has been read not long ago. */
static inline int64
timeline_cpu(int64 now)
{
	if (likely(timeline_cpu_interval < 0 ||
			   now - timeline_cpu_read_at < (int64) timeline_cpu_interval * 1000))
		return -1;
	return timeline_read_cpu(now);
}

#pragma GCC visibility pop

#endif							/* SQL_TRACE_TIMELINE_H */
