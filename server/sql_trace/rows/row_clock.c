/*-------------------------------------------------------------------------
 * row_clock.c
 *		The clocks that calls of nodes are timed by: their rates, and what readings cost.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

#include "common/pg_prng.h"
#include "miscadmin.h"

#include "../../common/rate.h"

RowCosts	row_costs;
pg_prng_state row_random;

/* The clock's rate is measured anew until it rests on as much */
#define RATE_BASE_NS (INT64CONST(1000000000))
#define SHORTEST_BASE_NS (1000 * 1000)

static RateBase at_load;

/* The longer since the library was loaded, the better the rate is known. */
double
row_ns_per_tick(ClockSource clock)
{
	static double rate = 0;
	static int64 base = 0;

	if (!clock_source_counts(clock))
		return 1;
	if (base < RATE_BASE_NS)
	{
		ClockRate	measured = rate_since(true, &at_load, SHORTEST_BASE_NS);

		rate = (double) measured.ns_per_tick / 4294967296.0;
		base = clock_system_ns(CLOCK_MONOTONIC) - at_load.pair.ns;
	}
	return rate;
}

/* When the library is loaded */
void
row_clock_init(void)
{
	at_load = rate_base();
}

/* What readings of each clock cost, as calibrated in this process or by its leader */
static struct
{
	bool		known;
	RowCosts	costs;
}			calibrated[CLOCK_SOURCE_SYSCALL + 1];
static int	begun_in = 0;		/* which process */
static bool started;
static ClockSource started_with;

/* What a process inherits is another's. */
static void
begin_in_process(void)
{
	if (begun_in == MyProcPid)
		return;
	memset(calibrated, 0, sizeof(calibrated));
	started = false;
	pg_prng_seed(&row_random,
				 (uint64) clock_system_ns(CLOCK_MONOTONIC) ^ ((uint64) MyProcPid << 32));
	begun_in = MyProcPid;
}

/* A parallel worker need not find out what its leader knows. */
void
row_clock_know(ClockSource clock, const RowCosts *costs)
{
	begin_in_process();
	calibrated[clock].costs = *costs;
	calibrated[clock].known = true;
}

/* A process is to measure by this clock.  False: what its readings cost is not known. */
bool
row_clock_use(ClockSource clock)
{
	begin_in_process();
	if (started && started_with == clock)
		return true;
	started = false;			/* an error in between would leave costs of neither */
	row_costs = calibrated[clock].costs;
	if (!calibrated[clock].known)
		return false;
	started = true;
	started_with = clock;
	return true;
}
