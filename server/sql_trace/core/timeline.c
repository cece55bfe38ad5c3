/*-------------------------------------------------------------------------
 * timeline.c
 *		Time in the ring: its clock, the waits' time line, CPU time (timeline.h).
 *-------------------------------------------------------------------------
 */
#include "timeline.h"
#include "module.h"
#include "record.h"
#include "ring.h"

#include "fmgr.h"

#include "../../common/module_settings.h"

int			timeline_clock = CLOCK_SOURCE_TSC;
int			timeline_cpu_interval = 1000;
ClockSource timeline_source;
Timeline	timeline;

TimelineWall timeline_wall;

static int64 cpu_base;
int64		timeline_cpu_read_at;

/* The time line of waits that we have recorded, and where in the ring */
static WaitClock recorded;
static uint64 recorded_at;
static uint32 changes_seen;		/* of it */

static const ClockRate nanoseconds = {(uint64) 1 << 32, 1000000000, false};

/* Of a process whose waits nobody counts */
static const uint64 no_waits = 0;
const uint64 *timeline_waits = &no_waits;

static const WaitClockOffer *
waits_offer(void)
{
	static void **variable = NULL;

	if (variable == NULL)
		variable = find_rendezvous_variable(WAIT_CLOCK_OFFER);
	return *variable;
}

/* The difference of two readings, or 0 if the clock stepped back */
int64
timeline_ns(int64 ticks)
{
	uint64		ignored = 0;

	return clock_ns(&timeline.rate, ticks, &ignored);
}

int64
timeline_ticks(int64 ns)
{
	return clock_ns_to_ticks(&timeline.rate, ns);
}

/* Time goes on from where it is, by another clock or rate. */
static void
rebase(ClockSource new_source, ClockRate new_rate)
{
	timeline.base_ns = timeline_now();
	timeline_source = new_source;
	timeline.rate = new_rate;
	timeline.base = timeline_reading();
}

/* A ring begins: so does time. */
void
timeline_begin(Shared *shared)
{
	const WaitClockOffer *offer = waits_offer();

	/* also if somebody else has them traced */
	if (offer != NULL)
		timeline_waits = offer->waits;
	timeline_source = timeline_clock;
	timeline.rate = clock_source_counts(timeline_source) ? shared->rate : nanoseconds;
	timeline.base = timeline_reading();
	timeline.base_ns = 0;
	timeline_wall.time = PG_INT64_MIN;
	memset(&recorded, 0, sizeof(recorded));
	cpu_base = clock_system_ns(CLOCK_THREAD_CPUTIME_ID);
	timeline_cpu_read_at = PG_INT64_MIN / 2;
}

/*
 * A request begins, and there is a ring: its times come from the clock that is set now, if that
 * is another one.  It is not changed before its end, so readings within a request can be compared.
 */
void
timeline_follow_clock(void)
{
	Shared	   *shared = shmem_get();

	if (shared == NULL)
		return;
	rebase(timeline_clock, clock_source_counts(timeline_clock) ? shared->rate : nanoseconds);
	memset(&recorded, 0, sizeof(recorded));
}

static bool
same(const WaitClock *a, const WaitClock *b)
{
	return a->started == b->started && a->base_ticks == b->base_ticks &&
		a->base_ns == b->base_ns && a->source == b->source;
}

/* Record the waits' time line, unless there is none or the ring has it already. */
void
timeline_follow_waits(void)
{
	const WaitClockOffer *offer = waits_offer();
	WaitRingRecord record = {0};
	WaitClock	waits;
	bool		counts;
	int64		now;

	if (offer == NULL || (*offer->changes == changes_seen && recorded.started != 0 &&
						  ring_holds(recorded_at)))
		return;
	timeline_waits = offer->waits;
	changes_seen = *offer->changes;
	if (!offer->look(&waits) ||
		(same(&waits, &recorded) && ring_holds(recorded_at)))
		return;
	recorded = waits;
	recorded_at = ring_head();
	counts = clock_source_counts(timeline_source);
	/* the same reading, only taken at another time */
	record.exact = timeline_source != CLOCK_SOURCE_MONOTONIC_COARSE &&
		waits.source != CLOCK_SOURCE_MONOTONIC_COARSE &&
		counts == clock_source_counts(waits.source);
	if (record.exact)
	{
		if (counts && timeline.rate.ns_per_tick != waits.rate.ns_per_tick)
			rebase(timeline_source, waits.rate);
		now = timeline_now();
		record.zero = timeline_of(waits.base_ticks) - waits.base_ns;
	}
	else
	{
		uint64		ignored = 0;
		int64		wait_now = clock_source_read(waits.source);

		now = timeline_now();
		record.zero = now - waits.base_ns -
			clock_ns(&waits.rate, wait_now - waits.base_ticks, &ignored);
	}
	record.wait_started = waits.started;
	trace.slot->trace.waits = true;
	record_write(RECORD_WAITRING, trace.depth, trace.current, now, &record, sizeof(record));
}

/* Is there a ring of waits already? */
bool
timeline_has_waits(void)
{
	const WaitClockOffer *offer = waits_offer();
	WaitClock	waits;

	return offer != NULL && offer->look(&waits);
}

/* Have waits traced as well, or no longer; the recorder's in no more than so many bytes. */
bool
timeline_want_waits(WaitsWanted wanted, uint64 most)
{
	const WaitClockOffer *offer = waits_offer();

	return offer != NULL && offer->trace(wanted, most);
}

/* A request begins.  False: the ring of waits, in the area, has been taken. */
bool
timeline_claim_waits(void)
{
	const WaitClockOffer *offer = waits_offer();

	return offer == NULL || offer->claim();
}

/* CPU time since the ring began: this is a system call, and so done seldom. */
int64
timeline_read_cpu(int64 now)
{
	static CpuReading own;
	const WaitClockOffer *offer = waits_offer();

	timeline_cpu_read_at = now;
	return cpu_reading(offer ? offer->cpu : &own, timeline_source, timeline_reading(),
					   &timeline.rate) - cpu_base;
}

/* The wall clock is compared with ours, at a time in the ring that is now. */
pg_noinline void
timeline_compare(int64 now)
{
	timeline_wall.at = GetCurrentTimestamp();
	timeline_wall.time = now;
}

/* Called when the library is loaded. */
void
timeline_init(void)
{
	DefineCustomIntVariable("sql_trace.cpu_interval",
							"Shortest time between two readings of CPU time, in microseconds.",
							"0: at the end of each call of the client; -1: never.",
							&timeline_cpu_interval, 1000, -1, 1000 * 1000 * 1000,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("sql_trace.clock",
							 "Where time stamps come from.",
							 NULL,
							 &timeline_clock, CLOCK_SOURCE_TSC, clock_entries,
							 PGC_SUSET, 0, check_clock, NULL, NULL);
}
