/*-------------------------------------------------------------------------
 * execute.c
 *		The executor's hooks: executions of plans.
 *-------------------------------------------------------------------------
 */
#include "fetches.h"
#include "fused.h"
#include "plain.h"
#include "request.h"
#include "secrets.h"
#include "statement.h"
#include "../core/level.h"
#include "../core/module.h"
#include "../rows/rows.h"

#include "access/xact.h"
#include "executor/executor.h"

static ExecutorRun_hook_type previous_run;
static ExecutorFinish_hook_type previous_finish;

/* The text and the plan of a statement, which are written if the ring does not have them */
static pg_noinline void
look_up(Call *call, const QueryDesc *queryDesc, bool *secret, bool *whole)
{
	const PlannedStmt *plan = queryDesc->plannedstmt;

	call->text = text_of(queryDesc->sourceText, plan->stmt_location, plan->stmt_len,
						 &call->query_id, NULL, secret);
	*whole = text_is_whole(queryDesc->sourceText, plan->stmt_location, plan->stmt_len);
	call->plan = plan_of(queryDesc, call->number, call->text);
	if (!*secret && *whole)
		plan_keep_text(plan, call->text);
}

static pg_noinline void
start_traced(QueryDesc *queryDesc, int eflags)
{
	Call		call;
	bool		secret = false;
	bool		whole = true;	/* what is kept is of a source with one statement */

	call.start = timeline_now();
	if (trace.depth == 0)
		(void) request_message_arrived_by(call.start);
	span_close(call.start);
	if (plain_may_begin(queryDesc))
	{
		if (likely(plain_begins(queryDesc, eflags, &call)))
			return;
	}
	else
	{
		call_usage(&call.usage);
		execute_start(queryDesc, eflags);
	}
	call.number = call_begins(call.start, call.start);
	call.query_id = (int64) queryDesc->plannedstmt->queryId;
	if (!plan_statement(queryDesc->plannedstmt, &call.text, &call.plan))
		look_up(&call, queryDesc, &secret, &whole);
	if (trace.depth == 0)
		request_statement(call.text, secret);
	if (LEVEL_BINDS(trace.now_level))
		binds_write(call.number, queryDesc->params, secret, timeline_now());
	execution_started(queryDesc, &call, secret, whole);
}

static void
trace_start(QueryDesc *queryDesc, int eflags)
{
	if (!trace_begins() && unlikely(level_has_query_ids))
		level_match((int64) queryDesc->plannedstmt->queryId);
	if (trace.on)
		plain_else();
	if (unlikely(executions != NULL))
		execution_replaced(queryDesc);
	if (trace.on)
		start_traced(queryDesc, eflags);
	else
		execute_start(queryDesc, eflags);
	if (row_query_may_start())
		row_query_starts(queryDesc, eflags);
}

/* If its row sources are measured, they take readings of their own. */
static inline void
run_measured(RowQuery *rows, RUN_PARAMETERS)
{
	if (rows)
		row_query_resumes(rows, clock_source_read(rows->clock));
	previous_run(RUN_ARGUMENTS);
	if (rows)
		row_query_pauses(rows, clock_source_read(rows->clock));
}

/* An error leaves an execution that runs, or finishes, called in this place. */
static pg_noinline void
error_leaves(const QueryDesc *queryDesc, int depth, uint64 current)
{
	Execution  *e;

	plain_else();
	execute_interrupted();
	trace.depth = depth;
	trace.current = current;
	e = execution_of(queryDesc);
	if (e != NULL)
		execution_fail(e, geterrcode());
}

/* The same returns.  Statements within it have found no open span. */
static void
returns(Execution *e, int depth, uint64 current)
{
	execute_interrupted();
	trace.depth = depth;
	trace.current = current;
	span = e;
}

/* The run of an execution whose span is open. */
static pg_noinline void
run_in(Execution *e, RowQuery *rows, RUN_PARAMETERS)
{
	int			depth = trace.depth;
	uint64		current = trace.current;

	span = NULL;
	trace.depth = depth + 1;
	trace.current = e->call.number;
	PG_TRY();
	{
		run_measured(rows, RUN_ARGUMENTS);
	}
	PG_CATCH();
	{
		error_leaves(queryDesc, depth, current);
		PG_RE_THROW();
	}
	PG_END_TRY();
	returns(e, depth, current);
}

/* The run of a plain request, which need not remain one. */
static pg_noinline void
run_plain(RUN_PARAMETERS)
{
	Execution  *e;

	plain_runs();
	trace.depth = 1;
	trace.current = plain_notes()->number;
	PG_TRY();
	{
		previous_run(RUN_ARGUMENTS);
	}
	PG_CATCH();
	{
		error_leaves(queryDesc, 0, 0);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (likely(plain.plan == queryDesc))
	{
		trace.depth = 0;
		trace.current = 0;
		plain_notes()->rows = rows_of(queryDesc);
		plain.stage = PLAIN_RAN;
		return;
	}
	e = execution_of(queryDesc);
	returns(e, 0, 0);
	if (e == NULL)
		return;
	e->ran = true;
	e->call.rows += rows_of(queryDesc);
}

/* The same moment by the clock of row sources, which mostly is that of the trace */
static inline int64
reading_for(const RowQuery *rows, int64 reading)
{
	return rows->clock == timeline_source ? reading : clock_source_read(rows->clock);
}

/* Statements within a fetch find no open span either. */
static pg_attribute_always_inline void
fetch_in(Execution *e, RowQuery *rows, RUN_PARAMETERS)
{
	ErrorContextCallback context;
	int			depth = trace.depth;
	uint64		current = trace.current;
	int64		reading = timeline_reading();

	if (rows)
		row_query_resumes(rows, reading_for(rows, reading));
	if (unlikely(span != NULL))
		span_close(timeline_of(reading));
	series_fetch(e, reading, &context);
	trace.depth = depth + 1;
	trace.current = series.call.number;
	previous_run(RUN_ARGUMENTS);
	reading = timeline_reading();
	if (rows)
		row_query_pauses(rows, reading_for(rows, reading));
	error_context_stack = context.previous;
	if (unlikely(span != NULL))
		span_close(timeline_of(reading));
	trace.depth = depth;
	trace.current = current;
	series_fetched(reading, rows_of(queryDesc));
}

/* A fetch within another one; the outer one's series is kept. */
static pg_noinline void
fetch_within(Execution *e, RowQuery *rows, RUN_PARAMETERS)
{
	Series		outer = series;

	series_forget();
	PG_TRY();
	{
		fetch_in(e, rows, RUN_ARGUMENTS);
	}
	PG_CATCH();
	{
		execute_interrupted();
		series = outer;
		PG_RE_THROW();
	}
	PG_END_TRY();
	series_close();
	series = outer;
}

static inline void
span_moves_to(Execution *e)
{
	if (span != e)
	{
		int64		now = timeline_now();

		span_close(now);
		span_turn(e, now);
		span = e;
	}
}

/* The first run, within the call that began the execution */
static pg_noinline void
run_first(Execution *e, RowQuery *rows, RUN_PARAMETERS)
{
	span_moves_to(e);
	run_in(e, rows, RUN_ARGUMENTS);
	/* more is to be fetched, whenever that may be */
	if (count != 0)
		span_close(timeline_now());
}

static pg_noinline void
run_traced(RUN_PARAMETERS)
{
	RowQuery   *rows = row_query_of(queryDesc);
	Execution  *e;

	plain_else();
	e = trace.on ? execution_of(queryDesc) : NULL;

	/* a portal of an earlier request goes on, and nothing else has happened in this one */
	if (unlikely(trace.on && trace.request_start == -1))
		(void) request_message_arrived();
	if (unlikely(rows != NULL && !rows->begun))
		row_query_begins(rows);
	if (e == NULL)
	{
		/* it began before the trace did; what runs in it has our depth, and is traced */
		if (trace.on && text_is_secret(queryDesc->sourceText))
			secrets_hide(trace.depth - 1);
		run_measured(rows, RUN_ARGUMENTS);
		return;
	}
	if (trace.depth == 0)
		request_statement(e->call.text, e->secret);
	secrets_enter(e->secret);
	if (!e->ran && trace.current == e->call.parent)
		run_first(e, rows, RUN_ARGUMENTS);
	else if (unlikely(series.running))
		fetch_within(e, rows, RUN_ARGUMENTS);
	else
		fetch_in(e, rows, RUN_ARGUMENTS);
	if (unlikely(e->plan != queryDesc))
		return;					/* it was taken for one that an error had left */
	e->ran = true;
	e->call.rows += rows_of(queryDesc);
}

static void
trace_run(RUN_PARAMETERS)
{
	if (!trace_begins() && likely(row_queries == NULL))
		previous_run(RUN_ARGUMENTS);
	else if (plain_is_at(queryDesc, PLAIN_STARTED, PLAIN_BOUND) && count == 0 &&
			 row_queries == NULL)
		run_plain(RUN_ARGUMENTS);
	else
		run_traced(RUN_ARGUMENTS);
}

/* Triggers run, and what nobody has fetched of changes that a query makes besides. */
static bool
runs_at_end(const EState *estate)
{
	return (estate->es_top_eflags & EXEC_FLAG_SKIP_TRIGGERS) == 0 ||
		estate->es_auxmodifytables != NIL;
}

static pg_noinline void
finish_in(Execution *e, QueryDesc *queryDesc)
{
	int			depth = trace.depth;
	uint64		current = trace.current;

	span = NULL;
	trace.depth = depth + 1;
	trace.current = e->call.number;
	PG_TRY();
	{
		previous_finish(queryDesc);
	}
	PG_CATCH();
	{
		error_leaves(queryDesc, depth, current);
		PG_RE_THROW();
	}
	PG_END_TRY();
	returns(e, depth, current);
}

static pg_noinline void
finish_traced(QueryDesc *queryDesc)
{
	Execution  *e;

	plain_else();
	e = execution_of(queryDesc);
	/* at the end of a portal that began elsewhere it belongs to what goes on here */
	if (e == NULL || trace.current != e->call.parent)
	{
		/* its triggers have our depth */
		if ((e ? e->secret : text_is_secret(queryDesc->sourceText)))
			secrets_hide(trace.depth - 1);
		previous_finish(queryDesc);
		return;
	}
	secrets_enter(e->secret);
	if (!runs_at_end(queryDesc->estate))
	{
		previous_finish(queryDesc);
		return;
	}
	span_moves_to(e);
	finish_in(e, queryDesc);
}

static void
finish(QueryDesc *queryDesc)
{
	if (!trace.on || (plain_is_at(queryDesc, PLAIN_RAN, PLAIN_ANSWERED) &&
					  !runs_at_end(queryDesc->estate)))
		previous_finish(queryDesc);
	else
		finish_traced(queryDesc);
}

static void
trace_finish(QueryDesc *queryDesc)
{
	if (unlikely(row_queries != NULL))
		row_query_finishes(queryDesc, finish);
	else
		finish(queryDesc);
}

static pg_noinline void
end_known(Execution *e, QueryDesc *queryDesc)
{
	int64		now;
	bool		first;
	int64		last_end;
	bool		on;

	/* if its span is closed, its end takes time, but uses no blocks */
	if (span == NULL && trace.on && trace.current == e->call.parent)
	{
		int64		before = timeline_now();

		execute_end(queryDesc);
		now = timeline_now();
		e->call.busy += Max(now - before, 0);
	}
	else
	{
		execute_end(queryDesc);
		now = timeline_now();
	}
	/* a Bind that closes the portal of an earlier request does so before anything else */
	first = !trace.request;
	last_end = trace.last_end;
	on = trace_begins();
	/* what the beginning request has recorded is not younger */
	if (unlikely(first))
		now = timeline_now();
	trace.on = execute_is_written(queryDesc);
	execution_finish(e, now);
	trace.on = on && trace.on;
	if (first)
		trace.last_end = last_end;	/* the message arrived before */
}

static void
trace_end(QueryDesc *queryDesc)
{
	Execution  *e;

	/* until its end it can be written about */
	if (unlikely(row_queries != NULL))
		row_query_ends(queryDesc);
	if (plain_is_at(queryDesc, PLAIN_RAN, PLAIN_ANSWERED))
	{
		plain_ends(queryDesc);
		return;
	}
	plain_else();
	e = executions != NULL ? execution_of(queryDesc) : NULL;
	if (e != NULL)
		end_known(e, queryDesc);
	else
		execute_end(queryDesc);
}

void
execute_init(void)
{
	execute_start = BEFORE_US(ExecutorStart_hook, standard_ExecutorStart);
	ExecutorStart_hook = trace_start;
	previous_run = BEFORE_US(ExecutorRun_hook, standard_ExecutorRun);
	ExecutorRun_hook = trace_run;
	previous_finish = BEFORE_US(ExecutorFinish_hook, standard_ExecutorFinish);
	ExecutorFinish_hook = trace_finish;
	execute_end = BEFORE_US(ExecutorEnd_hook, standard_ExecutorEnd);
	ExecutorEnd_hook = trace_end;
}
