/*-------------------------------------------------------------------------
 * analyse.c
 *		Calls that come before an execution: parse and plan.
 *
 * Parsing has no hook at its beginning.  Of the client's own statements it
 * begins with the arrival of the message, or where the call before ended; of
 * nested ones nothing tells, so that only their number is known.
 *-------------------------------------------------------------------------
 */
#include "fetches.h"
#include "fused.h"
#include "request.h"
#include "statement.h"
#include "../core/level.h"
#include "../core/module.h"

#include "optimizer/planner.h"
#include "parser/analyze.h"

static post_parse_analyze_hook_type previous_analyze;
static planner_hook_type previous_planner;

static void
write_parse(ParseState *state, Query *query)
{
	Call		call = {.kind = CALL_PARSE,.flags = CALL_ESTIMATED};
	int64		now;
	bool		secret;

	now = timeline_now();
	call.start = trace.depth == 0 ? Max(request_message_arrived_by(now), trace.last_end) : now;
	call.number = call_begins(call.start, now);
	call.parent = trace.current;
	call.query_id = (int64) query->queryId;
	call.text = text_of(state->p_sourcetext, query->stmt_location, query->stmt_len, &call.query_id,
						query->utilityStmt, &secret);
	if (trace.depth == 0)
		request_statement(call.text, secret);
	now = timeline_now();
	call.busy = trace.depth == 0 ? now - call.start : 0;
	if (trace.depth > 0)
		call.start = now;
	call_write(&call, now);
}

static void
trace_analyze(ParseState *state, Query *query, Jumbled *jumbled)
{
	if (previous_analyze)
		previous_analyze(state, query, jumbled);
	if (!trace_begins() && level_has_query_ids)
		level_match((int64) query->queryId);
	if (trace.on)
		write_parse(state, query);
}

static PlannedStmt *
trace_plan(PLANNER_PARAMETERS)
{
	Call		call = {.kind = CALL_PLAN};
	PlannedStmt *planned = NULL;
	int			depth = trace.depth;
	bool		secret;

	plan_made();
	if (!trace_begins())
		return previous_planner(PLANNER_ARGUMENTS);
	call.start = timeline_now();
	if (depth == 0)
		(void) request_message_arrived_by(call.start);
	call.number = call_begins(call.start, call.start);
	call.parent = trace.current;
	call.query_id = (int64) query->queryId;
	call.text = text_of(text, query->stmt_location, query->stmt_len, &call.query_id, NULL, &secret);
	call_usage(&call.usage);
	/* functions are called, to find out what is constant */
	trace.depth = depth + 1;
	trace.current = call.number;
	PG_TRY();
	{
		planned = previous_planner(PLANNER_ARGUMENTS);
	}
	PG_CATCH();
	{
		execute_interrupted();
		call_failed(&call, geterrcode());
		call_ends(&call, depth);
		PG_RE_THROW();
	}
	PG_END_TRY();
	call_ends(&call, depth);
	return planned;
}

void
analyse_init(void)
{
	previous_analyze = post_parse_analyze_hook;
	post_parse_analyze_hook = trace_analyze;
	previous_planner = BEFORE_US(planner_hook, standard_planner);
	planner_hook = trace_plan;
}
