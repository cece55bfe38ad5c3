/*-------------------------------------------------------------------------
 * execute.c
 *		Executions of plans.
 *
 * An execution is known from the executor's start to its end.  Time and
 * counters are taken over spans: a span begins with the executor's start and
 * goes on through run and finish to the end, as long as nothing else happens
 * in the same session between; else it is closed, and a later run is a fetch, a
 * call of its own (series.c).  So a statement that runs in one go takes three readings of
 * the clock, and what a cursor does lies where it happened.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

#include "access/xact.h"
#include "executor/executor.h"
#include "utils/memutils.h"

typedef struct Execution
{
	struct Execution *next;
	const QueryDesc *plan;		/* only compared */
	Call		call;
	int			depth;
	int			nest_level;		/* of the subtransaction it began in */
	bool		ran;
	bool		secret;
} Execution;

/* The latest first */
static Execution *executions = NULL;
static Execution *unused = NULL;

/* The execution whose span is open, at the depth under way; and when it began */
static Execution *spanned = NULL;
static int64 open_since;
static Usage open_usage;

static ExecutorStart_hook_type previous_start;
static ExecutorRun_hook_type previous_run;
static ExecutorFinish_hook_type previous_finish;
static ExecutorEnd_hook_type previous_end;

#if PG_VERSION_NUM >= 180000
#define RUN_PARAMETERS QueryDesc *queryDesc, ScanDirection direction, uint64 count
#define RUN_ARGUMENTS queryDesc, direction, count
#else
#define RUN_PARAMETERS QueryDesc *queryDesc, ScanDirection direction, uint64 count, bool once
#define RUN_ARGUMENTS queryDesc, direction, count, once
#endif

static Execution *
find(const QueryDesc *queryDesc)
{
	Execution  *e = executions;

	while (e != NULL && e->plan != queryDesc)
		e = e->next;
	return e;
}

static Execution *
take(void)
{
	Execution  *e = unused;

	if (e != NULL)
		unused = e->next;
	else
		e = MemoryContextAlloc(TopMemoryContext, sizeof(Execution));
	memset(e, 0, sizeof(*e));
	e->next = executions;
	executions = e;
	return e;
}

static void
give_back(Execution *e)
{
	Execution **at = &executions;

	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	e->next = unused;
	unused = e;
}

static void
open_span(Execution *e, int64 now)
{
	spanned = e;
	open_since = now;
	call_usage(&open_usage);
}

/* What happens next is not the open execution's. */
static void
close_span(int64 now)
{
	if (spanned == NULL)
		return;
	spanned->call.busy += Max(now - open_since, 0);
	call_usage_since(&open_usage, &spanned->call.usage);
	spanned = NULL;
}

/* Another call begins, or ends, or a statement has been answered. */
void
execute_interrupted(void)
{
	if (spanned != NULL)
		close_span(timeline_now());
	series_close();
}

/* A bind has been answered: what was started in it begins only now. */
void
execute_bound(int64 now)
{
	close_span(now);
	for (Execution *e = executions; e != NULL; e = e->next)
	{
		if (e->ran || e->depth > 0)
			continue;
		e->call.start = now;
		e->call.busy = 0;
		memset(&e->call.usage, 0, sizeof(Usage));
	}
}

/* The record of an execution, which is forgotten */
static void
finish(Execution *e, int64 now)
{
	int			depth = trace.depth;

	series_close();
	trace.depth = e->depth;
	call_write(&e->call, now);
	trace.depth = depth;
	if (spanned == e)
		spanned = NULL;
	give_back(e);
}

/* An error leaves an execution. */
static void
fail(Execution *e)
{
	int64		now = timeline_now();

	call_failed(&e->call);
	if (spanned == e)
		close_span(now);
	finish(e, now);
}

/*
 * The transaction, or the subtransaction at this level, is over: nobody will
 * end the executions in it.
 */
void
execute_forget(int nest_level, uint16 flags)
{
	Execution  *e = executions;

	if (e == NULL)
		return;
	close_span(timeline_now());
	while (e != NULL)
	{
		Execution  *next = e->next;

		if (e->nest_level >= nest_level)
		{
			e->call.flags |= flags;
			finish(e, timeline_now());
		}
		e = next;
	}
}

/*
 * The subtransaction at this level has been committed: what it began belongs to
 * the one around it, and outlives others at this level.
 */
void
execute_inherit(int nest_level)
{
	for (Execution *e = executions; e != NULL; e = e->next)
		e->nest_level = Min(e->nest_level, nest_level - 1);
}

bool
execute_is_traced(const QueryDesc *queryDesc)
{
	return trace.on && find(queryDesc) != NULL;
}

bool
execute_row_sources(const QueryDesc *queryDesc, uint32 sampling, const RowSource *nodes, uint32 n)
{
	Execution  *e = trace.on ? find(queryDesc) : NULL;
	RowSourcesRecord record = {0};

	if (e == NULL)
		return false;
	record.plan = e->call.plan;
	record.sampling = sampling;
	record.nodes = n;
	if (!ring_begin(RECORD_ROWSOURCES, e->depth, e->call.number, timeline_now(),
					sizeof(record) + n * sizeof(RowSource), &record.header))
		return false;
	ring_put(&record, sizeof(record));
	if (n > 0)
		ring_put(nodes, n * sizeof(RowSource));
	trace.slot->trace.counters.row_sources++;
	ring_end();
	return true;
}

static void
start(QueryDesc *queryDesc, int eflags)
{
	if (previous_start)
		previous_start(queryDesc, eflags);
	else
		standard_ExecutorStart(queryDesc, eflags);
}

static void
trace_start(QueryDesc *queryDesc, int eflags)
{
	Execution  *e;
	Usage		before;
	int64		now;

	if (!trace_begins() && level_has_query_ids())
		level_match((int64) queryDesc->plannedstmt->queryId);
	if (!trace.on)
	{
		start(queryDesc, eflags);
		return;
	}
	if (trace.depth == 0)
		(void) request_message_arrived();
	now = timeline_now();
	close_span(now);
	call_usage(&before);
	start(queryDesc, eflags);
	/* an error freed one that was in the same place */
	if ((e = find(queryDesc)) != NULL)
		finish(e, timeline_now());
	e = take();
	e->plan = queryDesc;
	e->depth = trace.depth;
	e->nest_level = GetCurrentTransactionNestLevel();
	e->call.kind = CALL_EXECUTE;
	e->call.start = now;
	e->call.number = call_begins(now);
	e->call.parent = trace.current;
	e->call.query_id = (int64) queryDesc->plannedstmt->queryId;
	e->call.text = text_of(queryDesc->sourceText, queryDesc->plannedstmt->stmt_location,
						   queryDesc->plannedstmt->stmt_len, e->call.query_id, NULL, &e->secret);
	if (trace.depth == 0)
		request_statement(e->call.text, e->secret);
	if (trace_plans)
		e->call.plan = plan_of(queryDesc, e->call.number, e->call.text);
	if (LEVEL_BINDS(trace.now_level))
		binds_write(e->call.number, queryDesc->params, e->secret);
	spanned = e;
	open_since = now;
	open_usage = before;
	/* a cursor may lie idle while its function goes on */
	if (trace.depth > 0)
		close_span(timeline_now());
}

static void
run(RUN_PARAMETERS)
{
	if (previous_run)
		previous_run(RUN_ARGUMENTS);
	else
		standard_ExecutorRun(RUN_ARGUMENTS);
}

static uint64
rows_of(const QueryDesc *queryDesc)
{
	return queryDesc->estate ? queryDesc->estate->es_processed : 0;
}

typedef struct Fetch
{
	const QueryDesc *plan;
	uint64		number;
	Series		outer;
} Fetch;

/*
 * The run of an execution whose span is open, or a fetch.  Statements within
 * it find no open span.
 */
static pg_noinline void
run_in(Execution *execution, Fetch *fetch, RUN_PARAMETERS)
{
	Execution  *volatile e = execution;
	int			depth = trace.depth;
	uint64		current = trace.current;
	int64		since = open_since;
	Usage		before = open_usage;

	spanned = NULL;
	trace.depth = depth + 1;
	trace.current = fetch ? fetch->number : e->call.number;
	PG_TRY();
	{
		run(RUN_ARGUMENTS);
	}
	PG_CATCH();
	{
		execute_interrupted();
		trace.depth = depth;
		trace.current = current;
		spanned = fetch ? NULL : e;
		open_since = since;
		open_usage = before;
		if (fetch)
			series_fetched(&fetch->outer, timeline_end(fetch->plan), 0, true);
		fail(e);
		PG_RE_THROW();
	}
	PG_END_TRY();
	execute_interrupted();
	trace.depth = depth;
	trace.current = current;
	spanned = fetch ? NULL : e;
	open_since = since;
	open_usage = before;
}

static void
fetch_in(Execution *e, RUN_PARAMETERS)
{
	Fetch		fetch;
	int64		now = timeline_start(e->plan);

	close_span(now);
	fetch.plan = e->plan;
	fetch.number = series_fetch(&fetch.outer, &e->call, now);
	run_in(e, &fetch, RUN_ARGUMENTS);
	series_fetched(&fetch.outer, timeline_end(e->plan), rows_of(queryDesc), false);
}

static void
trace_run(RUN_PARAMETERS)
{
	Execution  *e = trace_begins() ? find(queryDesc) : NULL;

	if (e == NULL)
	{
		timeline_forget_start();
		run(RUN_ARGUMENTS);
		return;
	}
	if (trace.depth == 0)
		request_statement(e->call.text, e->secret);
	if (e->ran || trace.current != e->call.parent)
		fetch_in(e, RUN_ARGUMENTS);
	else
	{
		if (spanned != e)
		{
			int64		now = timeline_start(queryDesc);

			close_span(now);
			open_span(e, now);
		}
		timeline_forget_start();
		run_in(e, NULL, RUN_ARGUMENTS);
		/* more is to be fetched, whenever that may be */
		if (count != 0)
			close_span(timeline_now());
	}
	e->ran = true;
	e->call.rows += rows_of(queryDesc);
}

static void
finish_plan(QueryDesc *queryDesc)
{
	if (previous_finish)
		previous_finish(queryDesc);
	else
		standard_ExecutorFinish(queryDesc);
}

/* Triggers run here. */
static pg_noinline void
finish_in(Execution *execution, QueryDesc *queryDesc)
{
	Execution  *volatile e = execution;
	int			depth = trace.depth;
	uint64		current = trace.current;
	int64		since;
	Usage		before;

	if (spanned != e)
	{
		int64		now = timeline_now();

		close_span(now);
		open_span(e, now);
	}
	since = open_since;
	before = open_usage;
	spanned = NULL;
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
		spanned = e;
		open_since = since;
		open_usage = before;
		fail(e);
		PG_RE_THROW();
	}
	PG_END_TRY();
	execute_interrupted();
	trace.depth = depth;
	trace.current = current;
	spanned = e;
	open_since = since;
	open_usage = before;
}

static void
trace_finish(QueryDesc *queryDesc)
{
	Execution  *e = trace.on ? find(queryDesc) : NULL;

	/* at the end of a portal that began elsewhere it belongs to what goes on here */
	if (e != NULL && trace.current == e->call.parent)
		finish_in(e, queryDesc);
	else
		finish_plan(queryDesc);
}

static void
trace_end(QueryDesc *queryDesc)
{
	Execution  *e = find(queryDesc);

	if (previous_end)
		previous_end(queryDesc);
	else
		standard_ExecutorEnd(queryDesc);
	if (e != NULL)
	{
		int64		now = timeline_now();

		if (spanned == e)
			close_span(now);
		finish(e, now);
	}
}

void
execute_install(void)
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
