/*-------------------------------------------------------------------------
 * row_explain.c
 *		EXPLAIN (ANALYZE, SAMPLING n), from PostgreSQL 18 on.
 *
 * SAMPLING replaces TIMING, which it switches off, and BUFFERS as well,
 * since both do their work at each call, unless the statement requests them.
 * If neither is on, rows are counted by us in PostgreSQL's stead.
 *
 * EXPLAIN EXECUTE goes past ExplainOneQuery_hook, so the option itself arms
 * the start of the executor, until the EXPLAIN is over: it may not come to
 * that, as of a statement that has no plan.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

#if HAVE_EXPLAIN_OPTIONS

#include "commands/defrem.h"
#include "commands/explain.h"
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#include "tcop/utility.h"

#define USUAL_EVERY 128

static int	extension_id;
static explain_validate_options_hook_type previous_validate;
static explain_per_node_hook_type previous_per_node;
static explain_per_plan_hook_type previous_per_plan;
static ProcessUtility_hook_type previous_utility;

/* Set by the option, taken by the start of the executor */
int			row_explain_armed = 0;
static int	armed_within;		/* queries that were under way */

static int
queries_running(void)
{
	int			n = 0;

	for (RowQuery *each = row_queries; each; each = each->outer)
		n += row_query_runs(each);
	return n;
}

static void
option_given(ExplainState *es, DefElem *option, ParseState *pstate)
{
	int		   *every = palloc(sizeof(int));

	*every = option->arg ? defGetInt32(option) : USUAL_EVERY;
	if (*every < 1 || *every > ROW_MAX_EVERY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("EXPLAIN option SAMPLING must be between 1 and %d", ROW_MAX_EVERY)));
	SetExplainExtensionState(es, extension_id, every);
}

/* auto_explain gives options after the executor has started: too late to wrap nodes. */
static bool
not_in_setting(const char *name, const char *value, NodeTag type)
{
	GUC_check_errdetail("Option SAMPLING works in EXPLAIN only, not in a setting.");
	return false;
}

static bool
is_given(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
		if (strcmp(lfirst_node(DefElem, cell)->defname, name) == 0)
			return true;
	return false;
}

static void
options_known(ExplainState *es, List *options, ParseState *pstate)
{
	int		   *every = GetExplainExtensionState(es, extension_id);

	if (previous_validate)
		previous_validate(es, options, pstate);
	if (every == NULL)
		return;
	if (!es->analyze)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("EXPLAIN option %s requires ANALYZE", "SAMPLING")));
	if (!is_given(options, "timing"))
		es->timing = false;
	if (!is_given(options, "buffers"))
		es->buffers = false;
	row_explain_armed = *every;
	armed_within = queries_running();
}

/* At the start of an execution: how often its calls are to be timed, 0 if it is not ours */
int
row_explain_wanted(QueryDesc *desc, bool *counts)
{
	int			every = row_explain_armed;

	if (every == 0 || desc->instrument_options == 0 || queries_running() != armed_within)
		return 0;
	row_explain_armed = 0;
	*counts = (desc->instrument_options & ~INSTRUMENT_ROWS) == 0;
	return every;
}

/* What an EXPLAIN has armed goes with it; one within another has an arming of its own. */
static void
process_explain(UTILITY_PARAMETERS)
{
	int			outer = row_explain_armed;
	int			outer_within = armed_within;

	if (!IsA(statement->utilityStmt, ExplainStmt))
	{
		previous_utility(UTILITY_ARGUMENTS);
		return;
	}
	row_explain_armed = 0;
	PG_TRY();
	{
		previous_utility(UTILITY_ARGUMENTS);
	}
	PG_FINALLY();
	{
		row_explain_armed = outer;
		armed_within = outer_within;
	}
	PG_END_TRY();
}

static RowResult *
result_of(const PlanState *node)
{
	for (RowQuery *query = row_queries; query; query = query->outer)
	{
		if (query->estate != node->state || !query->explained)
			continue;
		for (int i = 0; i < query->nresults; i++)
			if (query->results[i].node == node)
				return &query->results[i];
	}
	return NULL;
}

static void
print_text(const RowResult *result, ExplainState *es)
{
	const RowTotal *total = &result->total;

	ExplainIndentText(es);
	appendStringInfo(es->str, "Sampled: ");
	if (total->calls == 0)
	{
		appendStringInfoString(es->str, "never called\n");
		return;
	}
	appendStringInfo(es->str, "calls=" UINT64_FORMAT " time=%.3f ms", total->calls,
					 total->ns / 1e6);
	if (result->exact)
		appendStringInfoString(es->str, " (each call timed)");
	else
		appendStringInfo(es->str, " (95%% interval %.3f to %.3f)", result->ns_low / 1e6,
						 result->ns_high / 1e6);
	if (result->way == ROW_BY_CHILD)
		appendStringInfoString(es->str, ", from the node below");
	else if (result->way == ROW_BY_PARENT)
		appendStringInfoString(es->str, ", from the node above");
	else if (!result->exact)
		appendStringInfo(es->str, ", " UINT64_FORMAT " calls timed", total->timed);
	if (result->workers > 0)
		appendStringInfo(es->str, ", with %d parallel workers", result->workers);
	appendStringInfoChar(es->str, '\n');
}

static void
print_properties(const RowResult *result, ExplainState *es)
{
	const RowTotal *total = &result->total;

	ExplainOpenGroup("Sampled", "Sampled", true, es);
	ExplainPropertyUInteger("Calls", NULL, total->calls, es);
	if (result->way != ROW_BY_PARENT)
		ExplainPropertyUInteger("Rows", NULL, total->rows, es);
	ExplainPropertyUInteger("Calls Timed", NULL, total->timed, es);
	ExplainPropertyFloat("Time", "ms", total->ns / 1e6, 6, es);
	ExplainPropertyFloat("Time Low", "ms", result->ns_low / 1e6, 6, es);
	ExplainPropertyFloat("Time High", "ms", result->ns_high / 1e6, 6, es);
	ExplainPropertyText("Derived From", result->way == ROW_BY_CHILD ? "child" :
						result->way == ROW_BY_PARENT ? "parent" : "calls", es);
	ExplainPropertyInteger("Workers", NULL, result->workers, es);
	ExplainCloseGroup("Sampled", "Sampled", true, es);
}

static void
node_explained(PlanState *node, List *ancestors, const char *relationship,
			   const char *plan_name, ExplainState *es)
{
	RowResult  *result;

	if (previous_per_node)
		previous_per_node(node, ancestors, relationship, plan_name, es);
	if (GetExplainExtensionState(es, extension_id) == NULL)
		return;
	result = result_of(node);
	if (result == NULL || result->way == ROW_HIDDEN)
		return;
	if (es->format == EXPLAIN_FORMAT_TEXT)
		print_text(result, es);
	else
		print_properties(result, es);
}

/* Say so if nothing was measured. */
static void
plan_explained(PlannedStmt *plannedstmt, IntoClause *into, ExplainState *es,
			   const char *queryString, ParamListInfo params, QueryEnvironment *queryEnv)
{
	if (previous_per_plan)
		previous_per_plan(plannedstmt, into, es, queryString, params, queryEnv);
	if (GetExplainExtensionState(es, extension_id) == NULL)
		return;
	for (RowQuery *query = row_queries; query; query = query->outer)
	{
		if (!query->explained || query->desc->plannedstmt != plannedstmt)
			continue;
		if (query->refused)
			ExplainPropertyText("Sampling", psprintf("none: %s", query->refused), es);
		else
			ExplainPropertyInteger("Sampling", NULL, query->every, es);
		break;
	}
}

void
row_explain_init(void)
{
	extension_id = GetExplainExtensionId("sql_trace");
	REGISTER_EXPLAIN_OPTION("sampling", option_given, not_in_setting);
	previous_validate = explain_validate_options_hook;
	explain_validate_options_hook = options_known;
	previous_per_node = explain_per_node_hook;
	explain_per_node_hook = node_explained;
	previous_per_plan = explain_per_plan_hook;
	explain_per_plan_hook = plan_explained;
	previous_utility = BEFORE_US(ProcessUtility_hook, standard_ProcessUtility);
	ProcessUtility_hook = process_explain;
}

#endif
