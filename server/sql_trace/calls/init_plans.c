/*-------------------------------------------------------------------------
 * init_plans.c
 *		In whose calls init plans run.
 *-------------------------------------------------------------------------
 */
#include "statement.h"

#include "executor/execPartition.h"
#include "nodes/execnodes.h"
#include "nodes/nodeFuncs.h"

/* What a plan begins by itself: the one of these whose root a node is, or NULL */
static const SubPlan *
subplan_in(const List *subplans, const PlanState *root)
{
	ListCell   *cell;

	foreach(cell, subplans)
	{
		const SubPlanState *state = lfirst(cell);

		if (state->planstate == root)
			return state->subplan;
	}
	return NULL;
}

/* What it is for its parent, or NULL if that calls it row by row */
const SubPlan *
askers_subplan(const PlanState *parent, const PlanState *state)
{
	const SubPlan *init = parent ? subplan_in(parent->initPlan, state) : NULL;

	return init || parent == NULL ? init : subplan_in(parent->subPlan, state);
}

/*
 * An init plan hangs on the topmost node of its query, and runs when its result
 * is first asked for: within the calls of these.
 */
typedef struct Askers
{
	const SubPlan *init;
	StringInfo	json;			/* their numbers */
	int			n;
} Askers;

/* What a node needs before it calls any node below it: parameters, or NULL */
static const Bitmapset *
asked_first(const PlanState *state)
{
	const PartitionPruneState *pruning = NULL;

	switch (nodeTag(state))
	{
		case T_GatherState:
			return ((const Gather *) state->plan)->initParam;
		case T_GatherMergeState:
			return ((const GatherMerge *) state->plan)->initParam;
		case T_AppendState:
			pruning = ((const AppendState *) state)->as_prune_state;
			break;
		case T_MergeAppendState:
			pruning = ((const MergeAppendState *) state)->ms_prune_state;
			break;
		default:
			break;
	}
	return pruning && pruning->do_exec_prune ? pruning->execparamids : NULL;
}

static bool
sets_one_of(const SubPlan *init, const Bitmapset *parameters)
{
	ListCell   *cell;

	foreach(cell, init->setParam)
		if (bms_is_member(lfirst_int(cell), parameters))
			return true;
	return false;
}

static bool
is_set_by(Node *node, void *context)
{
	const SubPlan *init = context;

	if (node == NULL)
		return false;
	if (IsA(node, Param))
		return ((const Param *) node)->paramkind == PARAM_EXEC &&
			list_member_int(init->setParam, ((const Param *) node)->paramid);
	return expression_tree_walker(node, is_set_by, context);
}

static bool
asks_itself(const SubPlan *init, const PlanState *state)
{
	const Plan *plan = state->plan;

	if (init->subLinkType == CTE_SUBLINK)
		return IsA(plan, CteScan) && ((const CteScan *) plan)->ctePlanId == init->plan_id;
	if (init->subLinkType == MULTIEXPR_SUBLINK)
		return is_set_by((Node *) plan->targetlist, (void *) init);
	return sets_one_of(init, asked_first(state));
}

/* The planner tells which nodes depend on what these set only for others. */
static bool
is_looked_for(const SubPlan *init)
{
	return init->subLinkType == CTE_SUBLINK || init->subLinkType == MULTIEXPR_SUBLINK;
}

/* Does it ask, or anything below it? */
static bool
may_ask(const SubPlan *init, const Plan *plan)
{
	return is_looked_for(init) || sets_one_of(init, plan->allParam);
}

static bool
find_askers(PlanState *state, void *context)
{
	Askers	   *askers = context;
	const SubPlan *init = askers->init;
	const Plan *plan = state->plan;
	int			before = askers->n;
	bool		asks;

	if (!may_ask(init, plan))
		return false;
	asks = asks_itself(init, state);
	if (!asks)
		(void) planstate_tree_walker(state, find_askers, askers);
	/* what nothing below it needs, it needs itself */
	if (asks || (askers->n == before && !is_looked_for(init)))
		appendStringInfo(askers->json, "%s%d", askers->n++ > 0 ? ", " : "", plan->plan_node_id);
	return false;
}

/* The nodes in whose calls an init plan, of which this is the root, runs */
void
askers_put(StringInfo json, PlanState *parent, const PlanState *state)
{
	Askers		askers = {subplan_in(parent->initPlan, state), json};

	if (askers.init == NULL)
		return;
	appendStringInfoString(json, ", \"within\": [");
	(void) find_askers(parent, &askers);
	/* nobody in its target list: as it changes a row */
	if (askers.n == 0 && askers.init->subLinkType == MULTIEXPR_SUBLINK)
		appendStringInfo(json, "%d", parent->plan->plan_node_id);
	appendStringInfoChar(json, ']');
}

/* Equal for nodes that ask, or whose nodes below ask, for the same; 0 for most */
uint64
askers_hash(const PlanState *state)
{
	const Plan *plan = state->plan;
	const Bitmapset *first = asked_first(state);
	uint64		hash = IsA(plan, CteScan) ? (uint64) ((const CteScan *) plan)->ctePlanId : 0;

	if (first != NULL)
		hash += (uint64) bms_hash_value(first) + 1;
	return hash << 32 | (plan->allParam ? bms_hash_value(plan->allParam) : 0);
}
