/*-------------------------------------------------------------------------
 * series.c
 *		Fetches, and those in a row, which make one record.
 *
 * A loop over a cursor in PL/pgSQL fetches row by row: a record for each fetch
 * would cost as much as the fetch, and push everything else out of the ring.
 * So fetches of one execution make one record as long as nothing else happens
 * between them, for a millisecond at most.  Each is timed all the same; one that
 * waited, or in which other calls were made, stands alone, so that these lie
 * within its own time.
 *
 * The series is written before any other record is, and before another call
 * begins; so records stay in order.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

#define LONGEST_NS (INT64CONST(1000000))

static Series series;

/* Write the fetches that have ended. */
static void
write_series(void)
{
	int			depth = trace.depth;

	series.call.fetches = series.fetches;
	series.fetches = 0;			/* the record's own beginning comes here again */
	for (int i = 0; i < NUSAGE; i++)
		series.call.usage.counter[i] = series.last.counter[i] - series.first.counter[i];
	trace.depth = series.depth;
	call_write(&series.call, series.end);
	trace.depth = depth;
}

/* Something else is to be recorded, or another call begins: the series is over. */
void
series_close(void)
{
	if (series.fetches > 0 && !series.running)
		write_series();
}

static bool
goes_on(const Call *execution, int64 now)
{
	return series.fetches > 0 &&
		series.call.execution == execution->number &&
		series.call.parent == trace.current &&
		series.call.number == trace.calls &&
		now - series.call.start < LONGEST_NS;
}

static void
begin(const Call *execution, int64 now)
{
	Call	   *call = &series.call;

	series_close();
	memset(call, 0, sizeof(*call));
	call->kind = CALL_FETCH;
	call->number = call_begins(now);
	call->parent = trace.current;
	call->text = execution->text;
	call->query_id = execution->query_id;
	call->plan = execution->plan;
	call->execution = execution->number;
	call->start = now;
	series.depth = trace.depth;
	call_usage(&series.first);
}

/*
 * An execution is fetched from: the number of the call.  "outer" keeps the
 * series within whose fetch this one is.
 */
uint64
series_fetch(Series *outer, const Call *execution, int64 now)
{
	outer->running = series.running;
	if (series.running)
	{
		*outer = series;
		memset(&series, 0, sizeof(series));
	}
	if (!goes_on(execution, now))
		begin(execution, now);
	series.running = true;
	series.since = now;
	series.waits = timeline_waits();
	return series.call.number;
}

/* The fetch under way, or just ended, becomes a call of its own; those before it are written. */
static void
stand_alone(void)
{
	Usage		before = series.last;

	write_series();
	memset(&series.call.usage, 0, sizeof(Usage));
	series.call.number = ++trace.calls;
	series.call.start = series.since;
	series.call.busy = 0;
	series.call.rows = 0;
	series.first = before;
}

/* Another call begins, maybe within the fetch under way: that is to lie around it alone. */
void
series_nested(void)
{
	if (!series.running || series.fetches == 0 || trace.current != series.call.number)
		return;
	stand_alone();
	trace.current = series.call.number;
}

/* The fetch has ended, or failed. */
void
series_fetched(const Series *outer, int64 now, uint64 rows, bool failed)
{
	bool		alone = series.waits != timeline_waits();
	bool		nested = series.call.number != trace.calls;

	series.running = false;
	if (alone && !nested && series.fetches > 0)
		stand_alone();
	if (failed)
		call_failed(&series.call);
	series.fetches++;
	series.call.busy += now - series.since;
	series.call.rows += rows;
	series.end = now;
	call_usage(&series.last);
	if (alone || nested || failed || outer->running)
		series_close();
	if (outer->running)
		series = *outer;
}
