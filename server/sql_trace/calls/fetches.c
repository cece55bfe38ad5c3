/*-------------------------------------------------------------------------
 * fetches.c
 *		Fetches, and those in a row, which make one record.
 *
 * A loop over a cursor in PL/pgSQL fetches row by row: a record for each fetch
 * would cost as much as the fetch, and push everything else out of the ring.
 * So fetches of one execution make one record as long as nothing else happens
 * between them, for a millisecond at most.  Each is timed all the same; one that
 * waited, or in which other calls were made, is alone, so that these lie
 * within its own time.
 *
 * The series is written before any other record is, and before another call
 * begins; so records stay in order.
 *
 * To catch an error takes longer than all else that is done about a fetch.  So
 * none is caught in it: code that catches one later, or rolls back what it left,
 * asks here whether a fetch was left by it.  The fetch has put itself among what
 * PostgreSQL asks for the context of an error; code that catches it puts that
 * list back, and a fetch that is no longer in it is over.
 *-------------------------------------------------------------------------
 */
#include "fetches.h"
#include "fused.h"
#include "plain.h"

#define LONGEST_NS (INT64CONST(1000000))

Series		series;

/* Of the last error in any fetch, or what passed for one */
static int	noted_sqlstate;

/* Write the fetches that have ended. */
static void
write_series(void)
{
	int			depth = trace.depth;
	int64		end = timeline_of(series.ended);

	series.call.start = timeline_of(series.started);
	series.call.busy = series.fetches == 1 ? end - series.call.start : timeline_ns(series.busy);
	series.call.fetches = series.fetches;
	series.fetches = 0;			/* the record's own beginning comes here again */
	for (int i = 0; i < NUSAGE; i++)
		series.call.usage.counter[i] = series.last.counter[i] - series.first.counter[i];
	trace.depth = series.depth;
	call_write(&series.call, end);
	trace.depth = depth;
}

/* Something else is to be recorded, or another call begins: the series is over. */
void
series_close(void)
{
	if (series.fetches > 0 && !series.running)
		write_series();
}

/* No fetch can be under way, nor one be gone on with. */
void
series_forget(void)
{
	series.fetches = 0;
	series.running = false;
}

/* The fetch under way, or just ended, becomes a call of its own; those before it are written. */
static void
part(void)
{
	Usage		before = series.last;

	write_series();
	series.call.number = ++trace.calls;
	series.call.rows = 0;
	series.started = series.since;
	series.busy = 0;
	series.first = before;
}

/* Another call begins, maybe within the fetch under way: that is to lie around it alone. */
void
series_nested(void)
{
	if (!series.running || series.fetches == 0 || trace.current != series.call.number)
		return;
	part();
	trace.current = series.call.number;
}

/* An error has left the fetch under way, and its execution with it. */
static void
failed(void)
{
	Execution  *e = series.of;

	trace.depth = series.depth;
	trace.current = series.call.parent;
	call_failed(&series.call, noted_sqlstate);
	series_fetched(timeline_reading(), 0);
	series_close();
	if (e->plan != NULL && e->call.number == series.call.execution)
		execution_fail(e, noted_sqlstate);
}

/* Has an error left the fetch under way? */
void
series_look_for_error(void)
{
	const ErrorContextCallback *context = error_context_stack;

	if (!series.running)
		return;
	while (context != NULL && context != series.context)
		context = context->previous;
	if (context == NULL)
		failed();
}

/* What execute_interrupted() does, if there is something to do */
void
series_interrupted(int64 now)
{
	series_look_for_error();
	span_close(now);
	series_close();
}

/* What call_begins() does, if there is something to do */
void
call_interrupts(int64 now)
{
	plain_else();
	execute_interrupted_by(now);
	if (unlikely(series.running))
		series_nested();
}

/* A fetch begins, and a series with it. */
void
series_begin(const Execution *e, int64 reading)
{
	Call	   *call = &series.call;
	int64		now = timeline_of(reading);

	record_held_back = series_close;
	series_close();
	memset(call, 0, sizeof(*call));
	call->kind = CALL_FETCH;
	call->number = call_begins(now, now);
	call->parent = trace.current;
	call->text = e->call.text;
	call->query_id = e->call.query_id;
	call->plan = e->call.plan;
	call->execution = e->call.number;
	series.depth = trace.depth;
	series.started = reading;
	series.until = reading + timeline_ticks(LONGEST_NS);
	series.busy = 0;
	call_usage(&series.first);
}

/* The fetch that has just ended waited, or other calls were made in it. */
void
series_stands_alone(void)
{
	if (series.fetches > 0 && series.call.number == trace.calls)
		part();
}

/* PostgreSQL asks for the context of an error, or of a message that does not matter here. */
void
series_note_error(void *arg)
{
	int			sqlstate = geterrcode();
	int			class = ERRCODE_TO_CATEGORY(sqlstate);

	if (class != ERRCODE_SUCCESSFUL_COMPLETION && class != ERRCODE_WARNING)
		noted_sqlstate = sqlstate;
}

/*
 * The transaction, or the subtransaction at this level, is over: nobody will
 * end the executions in it.
 */
void
execute_forget(int nest_level, uint16 flags)
{
	Execution  *e;

	series_look_for_error();
	e = executions;
	if (e == NULL)
		return;
	span_close(timeline_now());
	while (e != NULL)
	{
		Execution  *next = e->next;

		if (e->nest_level >= nest_level)
		{
			e->call.flags |= flags;
			execution_left(e, timeline_now());
		}
		e = next;
	}
}
