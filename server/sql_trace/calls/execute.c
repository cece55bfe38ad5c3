/*-------------------------------------------------------------------------
 * execute.c
 *		The executor's hooks: executions of plans.
 *-------------------------------------------------------------------------
 */
#include "fetches.h"
#include "request.h"
#include "secrets.h"
#include "statement.h"
#include "../core/level.h"
#include "../core/module.h"
#include "../rows/rows.h"

#include "access/xact.h"
#include "executor/executor.h"

static ExecutorStart_hook_type previous_start;
static ExecutorRun_hook_type previous_run;
static ExecutorFinish_hook_type previous_finish;
static ExecutorEnd_hook_type previous_end;

static void
start(QueryDesc *queryDesc, int eflags)
{
	if (previous_start)
		previous_start(queryDesc, eflags);
	else
		standard_ExecutorStart(queryDesc, eflags);
}

/* The text and the plan of a statement, which are written if the ring does not have them */
static pg_noinline void
look_up(Execution *e, const QueryDesc *queryDesc)
{
	const PlannedStmt *plan = queryDesc->plannedstmt;

	e->call.text = text_of(queryDesc->sourceText, plan->stmt_location, plan->stmt_len,
						   &e->call.query_id, NULL, &e->secret);
	e->whole = text_is_whole(queryDesc->sourceText, plan->stmt_location, plan->stmt_len);
	e->call.plan = plan_of(queryDesc, e->call.number, e->call.text);
	if (!e->secret && e->whole)
		plan_keep_text(plan, e->call.text);
}

static pg_noinline void
start_traced(QueryDesc *queryDesc, int eflags)
{
	Execution  *e;
	Usage		before;
	int64		now = timeline_now();

	if (trace.depth == 0)
		(void) request_message_arrived_by(now);
	span_close(now);
	call_usage(&before);
	start(queryDesc, eflags);
	e = execution_take();
	e->plan = queryDesc;
	e->open = true;
	e->call.busy = now;
	e->call.usage = before;
	e->depth = trace.depth;
	e->nest_level = GetCurrentTransactionNestLevel();
	e->call.kind = CALL_EXECUTE;
	e->call.start = now;
	e->call.number = call_begins(now, now);
	e->call.parent = trace.current;
	e->call.query_id = (int64) queryDesc->plannedstmt->queryId;
	e->secret = false;
	/* what is kept is of a source with one statement */
	e->whole = true;
	if (!plan_statement(queryDesc->plannedstmt, &e->call.text, &e->call.plan))
		look_up(e, queryDesc);
	if (trace.depth == 0)
		request_statement(e->call.text, e->secret);
	if (LEVEL_BINDS(trace.now_level))
		binds_write(e->call.number, queryDesc->params, e->secret);
	span.of = e;
	/* a cursor may lie idle while its function goes on */
	if (trace.depth > 0)
		span_close(timeline_now());
}

static void
trace_start(QueryDesc *queryDesc, int eflags)
{
	if (!trace_begins() && unlikely(level_has_query_ids))
		level_match((int64) queryDesc->plannedstmt->queryId);
	if (unlikely(executions != NULL))
		execution_replaced(queryDesc);
	if (trace.on)
		start_traced(queryDesc, eflags);
	else
		start(queryDesc, eflags);
}

static void
run(RUN_PARAMETERS)
{
	if (previous_run)
		previous_run(RUN_ARGUMENTS);
	else
		standard_ExecutorRun(RUN_ARGUMENTS);
}

/* If its row sources are measured, they take readings of their own. */
static inline void
run_measured(RowQuery *rows, RUN_PARAMETERS)
{
	if (rows)
		row_query_resumes(rows, clock_source_read(rows->clock));
	run(RUN_ARGUMENTS);
	if (rows)
		row_query_pauses(rows, clock_source_read(rows->clock));
}

static uint64
rows_of(const QueryDesc *queryDesc)
{
	return queryDesc->estate ? queryDesc->estate->es_processed : 0;
}

/*
 * The run of an execution whose span is open.  Statements within it find no open
 * span.
 */
static pg_noinline void
run_in(Execution *execution, RowQuery *rows, RUN_PARAMETERS)
{
	Execution  *volatile e = execution;
	int			depth = trace.depth;
	uint64		current = trace.current;

	span.of = NULL;
	trace.depth = depth + 1;
	trace.current = e->call.number;
	PG_TRY();
	{
		run_measured(rows, RUN_ARGUMENTS);
	}
	PG_CATCH();
	{
		execute_interrupted();
		trace.depth = depth;
		trace.current = current;
		span.of = e;
		execution_fail(e, geterrcode());
		PG_RE_THROW();
	}
	PG_END_TRY();
	execute_interrupted();
	trace.depth = depth;
	trace.current = current;
	span.of = e;
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
	if (unlikely(span.of != NULL))
		span_close(timeline_of(reading));
	series_fetch(e, reading, &context);
	trace.depth = depth + 1;
	trace.current = series.call.number;
	run(RUN_ARGUMENTS);
	reading = timeline_reading();
	if (rows)
		row_query_pauses(rows, reading_for(rows, reading));
	error_context_stack = context.previous;
	if (unlikely(span.of != NULL))
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
	if (span.of != e)
	{
		int64		now = timeline_now();

		span_close(now);
		span_turn(e, now);
		span.of = e;
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
	Execution  *e = trace.on ? execution_of(queryDesc) : NULL;
	RowQuery   *rows = row_query_of(queryDesc);

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
	if (trace_begins() || unlikely(row_queries != NULL))
		run_traced(RUN_ARGUMENTS);
	else
		run(RUN_ARGUMENTS);
}

static void
finish_plan(QueryDesc *queryDesc)
{
	if (previous_finish)
		previous_finish(queryDesc);
	else
		standard_ExecutorFinish(queryDesc);
}

/* Triggers run, and what nobody has fetched of changes that a query makes besides. */
static bool
runs_at_end(const EState *estate)
{
	return (estate->es_top_eflags & EXEC_FLAG_SKIP_TRIGGERS) == 0 ||
		estate->es_auxmodifytables != NIL;
}

static pg_noinline void
finish_in(Execution *execution, QueryDesc *queryDesc)
{
	Execution  *volatile e = execution;
	int			depth = trace.depth;
	uint64		current = trace.current;

	span.of = NULL;
	trace.depth = depth + 1;
	trace.current = e->call.number;
	PG_TRY();
	{
		finish_plan(queryDesc);
	}
	PG_CATCH();
	{
		execute_interrupted();
		trace.depth = depth;
		trace.current = current;
		span.of = e;
		execution_fail(e, geterrcode());
		PG_RE_THROW();
	}
	PG_END_TRY();
	execute_interrupted();
	trace.depth = depth;
	trace.current = current;
	span.of = e;
}

static pg_noinline void
finish_traced(QueryDesc *queryDesc)
{
	Execution  *e = execution_of(queryDesc);

	/* at the end of a portal that began elsewhere it belongs to what goes on here */
	if (e == NULL || trace.current != e->call.parent)
	{
		/* its triggers have our depth */
		if ((e ? e->secret : text_is_secret(queryDesc->sourceText)))
			secrets_hide(trace.depth - 1);
		finish_plan(queryDesc);
		return;
	}
	secrets_enter(e->secret);
	if (!runs_at_end(queryDesc->estate))
	{
		finish_plan(queryDesc);
		return;
	}
	span_moves_to(e);
	finish_in(e, queryDesc);
}

static void
trace_finish(QueryDesc *queryDesc)
{
	if (trace.on)
		finish_traced(queryDesc);
	else
		finish_plan(queryDesc);
}

static void
end_plan(QueryDesc *queryDesc)
{
	if (previous_end)
		previous_end(queryDesc);
	else
		standard_ExecutorEnd(queryDesc);
}

static pg_noinline void
end_known(Execution *e, QueryDesc *queryDesc)
{
	int64		now;
	bool		first;
	int64		last_end;
	bool		on;

	/* if its span is closed, its end takes time, but uses no blocks */
	if (span.of == NULL && trace.on && trace.current == e->call.parent)
	{
		int64		before = timeline_now();

		end_plan(queryDesc);
		now = timeline_now();
		e->call.busy += Max(now - before, 0);
	}
	else
	{
		end_plan(queryDesc);
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
	Execution  *e = executions != NULL ? execution_of(queryDesc) : NULL;

	if (e != NULL)
		end_known(e, queryDesc);
	else
		end_plan(queryDesc);
}

void
execute_init(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = trace_start;
	previous_run = ExecutorRun_hook;
	ExecutorRun_hook = trace_run;
	previous_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = trace_finish;
	previous_end = ExecutorEnd_hook;
	ExecutorEnd_hook = trace_end;
}
