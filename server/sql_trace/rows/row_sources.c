/*-------------------------------------------------------------------------
 * row_sources.c
 *		Measuring the row sources of a query: what the executor's hooks call.
 *
 * A callback of the query's memory takes what is known of it out of all lists;
 * so errors need no care of ours.
 *-------------------------------------------------------------------------
 */
#include "rows.h"
#include "../calls/execution.h"
#include "../core/module.h"

#include "access/parallel.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"

static void
query_gone(void *arg)
{
	RowQuery   *query = arg;

	row_unwrap(query);
	row_shared_withdraw(query);
	for (RowQuery **each = &row_queries; *each; each = &(*each)->outer)
	{
		if (*each == query)
		{
			*each = query->outer;
			break;
		}
	}
	row_query_give_back(query);
}

static void
begin(QueryDesc *desc, int every, bool explained, bool counts)
{
	RowQuery   *query;

	row_calibrate_start((ClockSource) timeline_clock);
	query = row_query_take();
	query->desc = desc;
	query->estate = desc->estate;
	query->role = GetUserId();
	query->every = every;
	query->clock = (ClockSource) timeline_clock;
	query->explained = explained;
	query->counts = counts;
	query->gone.func = query_gone;
	query->gone.arg = query;
	MemoryContextRegisterResetCallback(desc->estate->es_query_cxt, &query->gone);
	query->outer = row_queries;
	row_queries = query;
}

/* An execution has started, in whose place queries may be measured: is this one? */
void
row_query_starts(QueryDesc *desc, int eflags)
{
	int			every;
	bool		counts = false;
	bool		explained = false;

	if (eflags & EXEC_FLAG_EXPLAIN_ONLY)
		return;
	if (IsParallelWorker())
		every = row_shared_wanted(desc, &counts);
	else
	{
		every = row_explain_wanted(desc, &counts);
		explained = every > 0;
		if (every == 0 && row_every > 0 && execute_is_traced(desc))
			every = row_every;
	}
	if (every > 0 && desc->planstate)
		begin(desc, every, explained, counts);
}

/* The query is about to run for the first time. */
void
row_query_begins(RowQuery *query)
{
	row_wrap(query);
	if (query->wrapped)
		row_shared_offer(query);
	query->began = query->stopped_at = row_now(query);
	query->begun = true;
}

/* An execution finishes, by this function. */
void
row_query_finishes(QueryDesc *desc, void (*finish) (QueryDesc *desc))
{
	RowQuery   *query = row_query_of(desc);
	bool		calls_nodes;

	if (query == NULL || !query->wrapped)
	{
		finish(desc);
		return;
	}
	/* mostly triggers run here, whose statements have row sources of their own, or nothing does */
	calls_nodes = desc->estate->es_auxmodifytables != NIL;
	if (calls_nodes)
		row_query_resumes(query, clock_source_read(query->clock));
	else
		row_query_enters(query);
	finish(desc);
	if (calls_nodes)
		row_query_pauses(query, clock_source_read(query->clock));
	else
		query->running = false;
	if (IsParallelWorker())
	{
		row_collect(query);
		row_shared_publish(query);
	}
	else if (query->explained)
		row_collect(query);
}

static bool
within_another(const RowQuery *query)
{
	for (RowQuery *each = row_queries; each; each = each->outer)
		if (each != query && row_query_runs(each))
			return true;
	return false;
}

/* An execution is about to end. */
void
row_query_ends(QueryDesc *desc)
{
	RowQuery   *query = row_query_of(desc);

	if (query && query->wrapped && !IsParallelWorker())
	{
		bool		traced = execute_is_written(desc);
		bool		last = !within_another(query);

		if (traced || last)
			row_collect(query);
		if (traced)
			row_record(query);
		if (last)
			row_last_keep(query);
	}
}

/* Called when the library is loaded. */
void
row_sources_init(void)
{
	row_clock_init();
	row_shared_init();
	DefineCustomIntVariable("sql_trace.rowsource_sampling",
							"Times about one in this many calls of each node of a plan.",
							"In sessions that are traced; 1 times each call, 0 none.",
							&row_every, 0, 0, ROW_MAX_EVERY,
							PGC_SUSET, 0, NULL, NULL, NULL);
	row_explain_init();
}
