/*-------------------------------------------------------------------------
 * bench.c
 *		What a captured wait costs: a loop over a wrapped call that does nothing.
 *
 * The loop's waits are recorded like any others of the session.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "sql.h"
#include "wrap.h"

PG_FUNCTION_INFO_V1(wait_event_timing_benchmark);

#define ROUNDS 20

static pg_noinline int
nothing(int argument)
{
	__asm__ volatile("" : "+r"(argument));
	return argument;
}

WRAP(CALL_OTHER, int, nothing, (int argument), (argument), BY_ERRNO)

typedef int (*loop_body) (int n, uint32 event);

static pg_noinline int
plain_calls(int n, uint32 event)
{
	int			sum = 0;

	for (int i = 0; i < n; i++)
	{
		pgstat_report_wait_start(event);
		sum += nothing(i);
		pgstat_report_wait_end();
	}
	return sum;
}

static pg_noinline int
wrapped_calls(int n, uint32 event)
{
	int			sum = 0;

	for (int i = 0; i < n; i++)
	{
		pgstat_report_wait_start(event);
		sum += wait_nothing(i);
		pgstat_report_wait_end();
	}
	return sum;
}

static pg_noinline int
clock_pairs(int n, uint32 event)
{
	volatile int64 ticks = 0;

	for (int i = 0; i < n; i++)
	{
		ticks = clock_source_read(capture.clock);
		ticks = clock_source_read(capture.clock) - ticks;
	}
	return (int) ticks;
}

static double
time_of(loop_body body, int n)
{
	int64		from = clock_system_ns(CLOCK_MONOTONIC);

	(void) body(n, WAIT_EVENT_DATA_FILE_READ);
	return (double) (clock_system_ns(CLOCK_MONOTONIC) - from) / n;
}

/* Rounds of the three in turn; the best of each is least disturbed. */
Datum
wait_event_timing_benchmark(PG_FUNCTION_ARGS)
{
	int			n = PG_GETARG_INT32(0) / ROUNDS;
	static const loop_body bodies[] = {plain_calls, wrapped_calls, clock_pairs};
	double		best[lengthof(bodies)];
	Datum		values[4];
	bool		nulls[4] = {0};

	if (n < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of calls must be at least %d", ROUNDS)));
	real_nothing = nothing;
	for (int round = 0; round < ROUNDS; round++)
	{
		CHECK_FOR_INTERRUPTS();
		for (int k = 0; k < (int) lengthof(bodies); k++)
		{
			double		ns = time_of(bodies[k], n);

			best[k] = round == 0 ? ns : Min(best[k], ns);
		}
	}
	values[0] = Float8GetDatum(best[1] - best[0]);
	values[1] = Float8GetDatum(best[2]);
	values[2] = Float8GetDatum((best[1] - best[0]) / best[2]);
	values[3] = Float8GetDatum(best[0]);
	return sql_row(fcinfo, values, nulls);
}
