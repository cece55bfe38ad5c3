/*-------------------------------------------------------------------------
 * row_wrap.c
 *		Putting our functions before the calls of a plan's nodes.
 *
 * The tree is walked once, when the query first runs.  Other modules replace
 * the same pointer: where one came first, the query is left to it.
 *-------------------------------------------------------------------------
 */
#include "rows.h"
#include "../calls/statement.h"

#include "access/parallel.h"
#include "nodes/nodeFuncs.h"

static RowWay
way_of(const PlanState *node)
{
	switch (nodeTag(node))
	{
		case T_HashState:
			return ROW_BY_CHILD;
		case T_BitmapIndexScanState:
		case T_BitmapAndState:
		case T_BitmapOrState:
			return ROW_BY_PARENT;
		default:
			return ROW_CALLED;
	}
}

/* In plans of so few nodes one is found by looking at each */
#define FEW 16

typedef struct Walk
{
	RowQuery   *query;
	int			parent;
	int			depth;
	bool		below_gather;
} Walk;

static bool
enter_node(PlanState *node, void *arg)
{
	Walk	   *walk = arg;
	Walk		below = *walk;
	RowQuery   *query = walk->query;
	Row		   *row = row_query_add(query);
	PlanState  *above = walk->parent >= 0 ? query->rows[walk->parent].node : NULL;

	if (row == NULL)
		return true;
	row->query = query;
	row->node = node;
	row->parent = walk->parent;
	row->depth = walk->depth;
	row->leaders = walk->below_gather;
	row->below_subplan = askers_subplan(above, node) != NULL;
	row->way = way_of(node);
	below.parent = query->nrows - 1;
	below.depth++;
	below.below_gather = walk->below_gather || IsA(node, GatherState) || IsA(node, GatherMergeState);
	return planstate_tree_walker(node, enter_node, &below);
}

static int
id_of(const Row *row)
{
	return row->node->plan->plan_node_id;
}

/* Nodes that have no number, or that of one before, are not distinguished. */
static void
hide_repeated_of_few(RowQuery *query)
{
	for (int i = 0; i < query->nrows; i++)
	{
		Row		   *row = &query->rows[i];

		if (id_of(row) < 0)
			row->way = ROW_HIDDEN;
		for (int j = 0; j < i; j++)
			if (id_of(&query->rows[j]) == id_of(row))
				row->way = ROW_HIDDEN;
	}
}

static void
hide_repeated(RowQuery *query)
{
	if (query->nrows <= FEW)
	{
		hide_repeated_of_few(query);
		return;
	}
	for (int i = 0; i < query->nrows; i++)
		query->nids = Max(query->nids, id_of(&query->rows[i]) + 1);
	query->by_id = MemoryContextAllocZero(query->estate->es_query_cxt,
										  sizeof(Row *) * Max(query->nids, 1));
	for (int i = 0; i < query->nrows; i++)
	{
		Row		   *row = &query->rows[i];

		if (id_of(row) >= 0 && query->by_id[id_of(row)] == NULL)
			query->by_id[id_of(row)] = row;
		else
			row->way = ROW_HIDDEN;
	}
}

/* Before a query runs for the first time */
void
row_wrap(RowQuery *query)
{
	Walk		walk = {query, -1, 0, IsParallelWorker()};

	if (enter_node(query->desc->planstate, &walk))
	{
		query->refused = "there is no memory for it";
		return;
	}
	hide_repeated(query);
	for (int i = 0; i < query->nrows; i++)
	{
		if (!row_is_original(query->rows[i].node))
		{
			query->refused = "another module has taken over the calls of its nodes";
			return;
		}
	}
	for (int i = 0; i < query->nrows; i++)
	{
		if (query->rows[i].way != ROW_CALLED)
			continue;
		row_take_place(&query->rows[i]);
		row_wrap_node(&query->rows[i]);
	}
	query->wrapped = true;
}

/* The query's memory goes: nobody calls its nodes any more. */
void
row_unwrap(RowQuery *query)
{
	for (int i = 0; i < query->nrows; i++)
		row_give_place(&query->rows[i]);
	query->wrapped = false;
}
