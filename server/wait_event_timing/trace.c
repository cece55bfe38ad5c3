/*-------------------------------------------------------------------------
 * trace.c
 *		Statements and transactions in the trace of a process.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/executor.h"
#include "tcop/utility.h"
#include "utils/backend_status.h"

#include "waits.h"

static ExecutorStart_hook_type previous_start;
static ExecutorRun_hook_type previous_run;
static ExecutorFinish_hook_type previous_finish;
static ExecutorEnd_hook_type previous_end;
static ProcessUtility_hook_type previous_utility;

static int	depth = 0;			/* of statements running within statements */
static uint64 bound = 0;		/* query identifier of what was bound last in this request */

int
trace_depth(void)
{
	return depth;
}

static inline bool
tracing(void)
{
	return unlikely(capture.ring != NULL);
}

static void
mark_begin(uint64 query_id)
{
	if (depth == 0)
		trigger_statement_begins(query_id);
	capture_mark(RECORD_STATEMENT_BEGIN, depth, (int64) query_id);
}

static void
mark_end(uint64 rows)
{
	capture_mark(RECORD_CPU, depth, clock_system_ns(CLOCK_THREAD_CPUTIME_ID));
	capture_mark(RECORD_STATEMENT_END, depth, (int64) rows);
}

#if PG_VERSION_NUM >= 180000
#define RUN_PARAMETERS QueryDesc *queryDesc, ScanDirection direction, uint64 count
#define RUN_ARGUMENTS queryDesc, direction, count
#else
#define RUN_PARAMETERS QueryDesc *queryDesc, ScanDirection direction, uint64 count, bool once
#define RUN_ARGUMENTS queryDesc, direction, count, once
#endif

static void
trace_start(QueryDesc *queryDesc, int eflags)
{
	ring_open_in_background();
	if (tracing())
		mark_begin((uint64) queryDesc->plannedstmt->queryId);
	explain_executor_starts(queryDesc->instrument_options != 0);
	if (previous_start)
		previous_start(queryDesc, eflags);
	else
		standard_ExecutorStart(queryDesc, eflags);
}

static void
trace_run(RUN_PARAMETERS)
{
	depth++;
	PG_TRY();
	{
		if (previous_run)
			previous_run(RUN_ARGUMENTS);
		else
			standard_ExecutorRun(RUN_ARGUMENTS);
	}
	PG_FINALLY();
	{
		depth--;
	}
	PG_END_TRY();
}

static void
trace_finish(QueryDesc *queryDesc)
{
	depth++;
	PG_TRY();
	{
		if (previous_finish)
			previous_finish(queryDesc);
		else
			standard_ExecutorFinish(queryDesc);
	}
	PG_FINALLY();
	{
		depth--;
	}
	PG_END_TRY();
}

static void
trace_end(QueryDesc *queryDesc)
{
	if (tracing())
		mark_end(queryDesc->estate ? queryDesc->estate->es_processed : 0);
	if (depth == 0)
		explain_executor_ends();
	if (previous_end)
		previous_end(queryDesc);
	else
		standard_ExecutorEnd(queryDesc);
}

/*
 * The identifier of a utility statement.  pg_stat_statements clears it in the
 * plan, also in one that is kept and executed again; the server has reported it
 * before, when the statement was analysed, or bound.
 */
static uint64
utility_query_id(const PlannedStmt *statement)
{
	if (statement->queryId != 0 || depth > 0)
		return (uint64) statement->queryId;
	if (bound != 0 && pgstat_get_my_query_id() == 0)
		pgstat_report_query_id(bound, false);
	return pgstat_get_my_query_id();
}

/* A message to the client is on its way. */
void
trace_message(char type)
{
	if (type == '2')			/* BindComplete */
		bound = pgstat_get_my_query_id();
	else if (type == 'Z')
		bound = 0;
}

static void
trace_utility(PlannedStmt *statement, const char *text, bool read_only,
			  ProcessUtilityContext context, ParamListInfo parameters,
			  QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *done)
{
	bool		marked = tracing();
	uint64		query_id = utility_query_id(statement);

	if (marked)
		mark_begin(query_id);
	depth++;
	PG_TRY();
	{
		if (previous_utility)
			previous_utility(statement, text, read_only, context, parameters, environment,
							 receiver, done);
		else
			standard_ProcessUtility(statement, text, read_only, context, parameters,
									environment, receiver, done);
	}
	PG_FINALLY();
	{
		explain_utility_ends(depth);
		depth--;
	}
	PG_END_TRY();
	if (marked && tracing())
		mark_end(done ? done->nprocessed : 0);
}

static void
trace_transaction(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT && capture_present())
	{
		capture_follow_leader();
		ring_open_in_background();
	}
	if (event == XACT_EVENT_ABORT)
		capture_abandon();
	if (!tracing())
		return;
	if (event == XACT_EVENT_COMMIT)
		capture_mark(RECORD_COMMIT, 0, 0);
	else if (event == XACT_EVENT_ABORT)
		capture_mark(RECORD_ABORT, 0, 0);
}

void
trace_install(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = trace_start;
	previous_run = ExecutorRun_hook;
	ExecutorRun_hook = trace_run;
	previous_finish = ExecutorFinish_hook;
	ExecutorFinish_hook = trace_finish;
	previous_end = ExecutorEnd_hook;
	ExecutorEnd_hook = trace_end;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = trace_utility;
	RegisterXactCallback(trace_transaction, NULL);
}
