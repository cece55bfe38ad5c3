/*-------------------------------------------------------------------------
 * execution.c
 *		What is known of executions, from the executor's start to its end.
 *
 * Time and counters are taken over spans: a span begins with the executor's
 * start and goes on through run and finish to the end, as long as nothing else
 * happens in the same session between; else it is closed, and a later run is a
 * fetch, a call of its own (fetches.c).  So a statement that runs in one go takes
 * three readings of the clock, and what a cursor does lies where it happened.
 *-------------------------------------------------------------------------
 */
#include "execution.h"
#include "fused.h"

#include "access/xact.h"
#include "utils/memutils.h"

ExecutorStart_hook_type execute_start;
ExecutorEnd_hook_type execute_end;

/* The latest first */
Execution  *executions = NULL;
Execution  *executions_unused = NULL;

static Execution none;

Execution  *span = NULL;
Execution  *execution_found = &none;

Execution *
execution_search(const QueryDesc *queryDesc)
{
	Execution  *e = executions;

	while (e != NULL && e->plan != queryDesc)
		e = e->next;
	if (e != NULL)
		execution_found = e;
	return e;
}

Execution *
execution_take(void)
{
	Execution  *e = executions_unused;

	if (e != NULL)
		executions_unused = e->next;
	else
		e = MemoryContextAllocZero(TopMemoryContext, sizeof(Execution));
	e->next = executions;
	executions = e;
	return e;
}

/* An execution has been started by what has been called so. */
void
execution_started(const QueryDesc *queryDesc, Call *call, bool secret, bool whole)
{
	Execution  *e = execution_take();

	call->kind = CALL_EXECUTE;
	call->flags = 0;
	call->sqlstate = 0;
	call->parent = trace.current;
	call->execution = 0;
	call->busy = call->start;
	call->rows = 0;
	call->fetches = 0;
	e->call = *call;
	e->plan = queryDesc;
	e->depth = trace.depth;
	e->nest_level = GetCurrentTransactionNestLevel();
	e->ran = e->bound = false;
	e->secret = secret;
	e->whole = whole;
	e->open = true;
	span = e;
	/* a cursor may lie idle while its function goes on */
	if (trace.depth > 0)
		span_close(timeline_now());
}

static void
give_back(Execution *e)
{
	Execution **at = &executions;

	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	e->plan = NULL;				/* it can still be the one found last */
	e->next = executions_unused;
	executions_unused = e;
}

/*
 * The execution that a bind has just started, as the last thing it does, if it is
 * of all of the source; "arrived": the message.
 */
const Execution *
execution_bound(int64 arrived)
{
	const Execution *e = executions;

	return e != NULL && !e->bound && !e->ran && e->depth == 0 && e->whole &&
		e->call.start >= arrived ? e : NULL;
}

/* A bind has been answered: what was started in it begins only now. */
void
execute_bound(int64 now)
{
	span_close(now);
	for (Execution *e = executions; e != NULL; e = e->next)
	{
		if (e->bound || e->ran || e->depth > 0)
			continue;
		e->bound = true;
		/* what has been taken is the bind's */
		e->call.start = now;
		e->call.busy = 0;
		memset(&e->call.usage, 0, sizeof(Usage));
	}
}

/* The record of an execution, which is forgotten */
void
execution_finish(Execution *e, int64 now)
{
	int			depth = trace.depth;

	if (span == e)
		span = NULL;
	if (e->open)
		span_turn(e, now);
	/* the clock may have stepped back */
	e->call.busy = Max(e->call.busy, 0);
	if (record_held_back)
		record_held_back();
	trace.depth = e->depth;
	call_write(&e->call, now);
	trace.depth = depth;
	give_back(e);
}

/*
 * Nobody will end an execution.  It ran in a request that was traced, maybe an
 * earlier one, and whether this one is does not matter.
 */
void
execution_left(Execution *e, int64 now)
{
	bool		on = trace.on;

	trace.on = trace.client && trace.ring != NULL;
	execution_finish(e, now);
	trace.on = on && trace.on;
}

/* An error leaves an execution. */
void
execution_fail(Execution *e, int sqlstate)
{
	call_failed(&e->call, sqlstate);
	execution_finish(e, timeline_now());
}

/*
 * An execution begins, traced or not: one that is known in the same place is gone.
 * An error that leaves the run of an older cursor, while nothing is traced, frees it
 * without an end.  So what is found from here on is the one that began.
 */
void
execution_replaced(const QueryDesc *queryDesc)
{
	Execution  *e = execution_of(queryDesc);

	if (unlikely(e != NULL))
		execution_left(e, timeline_now());
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
	return trace.on && execution_of(queryDesc) != NULL;
}

/*
 * Are records of this execution, which ends now, written?  It ran in a request
 * that was traced, maybe an earlier one, and whether this one is does not matter.
 */
bool
execute_is_written(const QueryDesc *queryDesc)
{
	return trace.ring != NULL && execution_of(queryDesc) != NULL;
}

bool
execute_row_sources(const QueryDesc *queryDesc, uint32 sampling, const RowSource *nodes, uint32 n)
{
	Execution  *e = execute_is_written(queryDesc) ? execution_of(queryDesc) : NULL;
	RowSourcesRecord record = {0};

	if (e == NULL)
		return false;
	record.plan = e->call.plan;
	record.sampling = sampling;
	record.nodes = n;
	if (!record_write_with(RECORD_ROWSOURCES, e->depth, e->call.number, timeline_now(), &record,
						   sizeof(record), nodes, n * sizeof(RowSource)))
		return false;
	trace.slot->trace.counters.row_sources++;
	return true;
}
