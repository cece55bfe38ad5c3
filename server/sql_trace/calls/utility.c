/*-------------------------------------------------------------------------
 * utility.c
 *		Calls of utility statements, with what runs in them.
 *-------------------------------------------------------------------------
 */
#include "fetches.h"
#include "fused.h"
#include "request.h"
#include "statement.h"
#include "../core/module.h"

#include "tcop/utility.h"
#include "utils/backend_status.h"

static ProcessUtility_hook_type previous_utility;

/*
 * pg_stat_statements clears the identifier in the plan, also in one that is
 * kept; the server has reported it when the statement was analysed, or bound.
 */
static int64
query_id_of(const PlannedStmt *statement)
{
	if (statement->queryId != 0 || trace.depth > 0)
		return (int64) statement->queryId;
	return (int64) pgstat_get_my_query_id();
}

static void
end_call(Call *call, int depth)
{
	execute_interrupted();
	call_ends(call, depth);
}

static void
trace_utility(UTILITY_PARAMETERS)
{
	Call		call = {.kind = CALL_UTILITY};
	int			depth = trace.depth;
	bool		secret;

	if (!trace_begins())
	{
		previous_utility(UTILITY_ARGUMENTS);
		return;
	}
	depth = trace.depth;
	call.start = timeline_now();
	if (depth == 0)
		(void) request_message_arrived_by(call.start);
	call.number = call_begins(call.start, call.start);
	call.parent = trace.current;
	call.query_id = query_id_of(statement);
	call.text = text_of(text, statement->stmt_location, statement->stmt_len, &call.query_id,
						statement->utilityStmt, &secret);
	if (depth == 0)
		request_statement(call.text, secret);
	call_usage(&call.usage);
	trace.depth = depth + 1;
	trace.current = call.number;
	PG_TRY();
	{
		/* it may free the statement */
		previous_utility(UTILITY_ARGUMENTS);
	}
	PG_CATCH();
	{
		call_failed(&call, geterrcode());
		end_call(&call, depth);
		PG_RE_THROW();
	}
	PG_END_TRY();
	call.rows = done ? done->nprocessed : 0;
	end_call(&call, depth);
}

void
utility_init(void)
{
	previous_utility = BEFORE_US(ProcessUtility_hook, standard_ProcessUtility);
	ProcessUtility_hook = trace_utility;
}
