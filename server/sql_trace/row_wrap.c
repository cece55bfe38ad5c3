/*-------------------------------------------------------------------------
 * row_wrap.c
 *		Standing before the calls of a plan's nodes.
 *
 * A call that is not looked at costs a countdown, a comparison and a direct
 * jump: each node gets a function of its own from a pool, which knows its
 * counters without looking for them.  Nodes for which the pool has no more
 * share one that looks them up.
 *
 * Other modules replace the same pointer.  Where one came first, the query is
 * left to it.  One that comes later may call us for a node that is not ours,
 * even after we have gone; so each function checks the node, and what is not
 * ours is called as PostgreSQL would.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

#include "access/parallel.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"

#define POOL 128

static RowHot pool[POOL] pg_attribute_aligned(64);
static bool taken[POOL];
static bool nobodys;

/* The functions that PostgreSQL itself puts there */
static ExecProcNodeMtd first_call = NULL;
static ExecProcNodeMtd instrumented = NULL;

static Row *
find_row(const PlanState *node)
{
	for (RowQuery *query = row_queries; query; query = query->outer)
	{
		int			id;

		if (query->estate != node->state || !query->wrapped)
			continue;
		id = node->plan->plan_node_id;
		if (id >= 0 && id < query->nids && query->by_id[id] &&
			query->by_id[id]->node == node)
			return query->by_id[id];
	}
	return NULL;
}

/* A module that stands before us has mixed up its nodes, or outlived our query. */
static TupleTableSlot *
call_unknown(PlanState *node)
{
	TupleTableSlot *slot;

	if (node->instrument == NULL)
		return node->ExecProcNodeReal(node);
	InstrStartNode(node->instrument);
	slot = node->ExecProcNodeReal(node);
	InstrStopNode(node->instrument, TupIsNull(slot) ? 0.0 : 1.0);
	return slot;
}

static pg_noinline TupleTableSlot *call_looked_up(PlanState *node);

static pg_noinline TupleTableSlot *
call_seldom(RowHot *hot, PlanState *node)
{
	if (hot->node != node)
	{
		hot->countdown++;
		return call_looked_up(node);
	}
	return row_due(hot->row, node);
}

static pg_noinline TupleTableSlot *
ended(RowHot *hot, TupleTableSlot *slot)
{
	hot->nothing++;
	row_scan_ended(hot->row);
	return slot;
}

static pg_attribute_always_inline TupleTableSlot *
call(RowHot *hot, PlanState *node)
{
	TupleTableSlot *slot;

	if (unlikely(--hot->countdown == 0 || hot->node != node))
		return call_seldom(hot, node);
	*hot->running = true;
	slot = hot->real(node);
	if (unlikely(TupIsNull(slot)))
		return ended(hot, slot);
	return slot;
}

static pg_noinline TupleTableSlot *
call_looked_up(PlanState *node)
{
	Row		   *row = find_row(node);

	return row ? call(row->hot, node) : call_unknown(node);
}

#define EACH16(X, h) \
	X(h##0) X(h##1) X(h##2) X(h##3) X(h##4) X(h##5) X(h##6) X(h##7) \
	X(h##8) X(h##9) X(h##a) X(h##b) X(h##c) X(h##d) X(h##e) X(h##f)
#define EACH(X) \
	EACH16(X, 0x0) EACH16(X, 0x1) EACH16(X, 0x2) EACH16(X, 0x3) \
	EACH16(X, 0x4) EACH16(X, 0x5) EACH16(X, 0x6) EACH16(X, 0x7)

#define DEFINE(n) \
	static TupleTableSlot *call_##n(PlanState *node) { return call(&pool[n], node); }
EACH(DEFINE)

#define NAME(n) call_##n,
static const ExecProcNodeMtd functions[POOL] = {EACH(NAME)};

static TupleTableSlot *
call_nothing(PlanState *node)
{
	return NULL;
}

/* Nodes that were not called yet all have the same function, and it puts the second there. */
static void
learn(void)
{
	PlanState	node;
	Instrumentation counts;

	memset(&node, 0, sizeof(node));
	memset(&counts, 0, sizeof(counts));
	node.instrument = &counts;
	ExecSetExecProcNode(&node, call_nothing);
	first_call = node.ExecProcNode;
	(void) node.ExecProcNode(&node);
	instrumented = node.ExecProcNode;
}

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

typedef struct Walk
{
	RowQuery   *query;
	int			parent;
	int			depth;
	int			room;
	bool		below_gather;
	int			largest_id;
} Walk;

static bool
count_node(PlanState *node, void *arg)
{
	Walk	   *walk = arg;

	walk->room++;
	walk->largest_id = Max(walk->largest_id, node->plan->plan_node_id);
	return planstate_tree_walker(node, count_node, arg);
}

static bool
is_in(const List *subplans, const PlanState *node)
{
	ListCell   *cell;

	foreach(cell, subplans)
		if (lfirst_node(SubPlanState, cell)->planstate == node)
			return true;
	return false;
}

static bool
enter_node(PlanState *node, void *arg)
{
	Walk	   *walk = arg;
	Walk		below = *walk;
	RowQuery   *query = walk->query;
	Row		   *row = &query->rows[query->nrows];
	int			id = node->plan->plan_node_id;
	PlanState  *above = walk->parent >= 0 ? query->rows[walk->parent].node : NULL;

	check_stack_depth();
	row->query = query;
	row->node = node;
	row->parent = walk->parent;
	row->depth = walk->depth;
	row->leaders = walk->below_gather;
	row->below_subplan = above && (is_in(above->initPlan, node) || is_in(above->subPlan, node));
	row->way = way_of(node);
	if (id >= 0 && query->by_id[id] == NULL)
		query->by_id[id] = row;
	else
		row->way = ROW_HIDDEN;	/* not told apart from another */
	below.parent = query->nrows++;
	below.depth++;
	below.below_gather = walk->below_gather || IsA(node, GatherState) || IsA(node, GatherMergeState);
	return planstate_tree_walker(node, enter_node, &below);
}

/* Give a row its place, from the pool if that has one left; row_unwrap() gives it back. */
void
row_take_place(Row *row)
{
	row->hot = &row->own;
	row->ours = call_looked_up;
	for (int i = 0; i < POOL; i++)
	{
		if (taken[i])
			continue;
		taken[i] = true;
		row->hot = &pool[i];
		row->ours = functions[i];
		break;
	}
	memset(row->hot, 0, sizeof(RowHot));
	row->hot->running = &nobodys;
	row->hot->node = row->node;
	row->hot->row = row;
	row_start(row);
}

static void
stand_before(Row *row)
{
	PlanState  *node = row->node;

	if (node->instrument && row->query->counts)
		row->hot->running = &node->instrument->running;
	row->hot->real = node->instrument && !row->query->counts ? instrumented :
		node->ExecProcNodeReal;
	node->ExecProcNode = row->ours;
}

/* Would PostgreSQL alone have put there what is there? */
static bool
is_original(const PlanState *node)
{
	return node->ExecProcNode == first_call || node->ExecProcNode == instrumented ||
		node->ExecProcNode == node->ExecProcNodeReal;
}

/* Whether the node's own function had been set anew: by the set-up of a parallel hash join. */
bool
row_wrap_again(Row *row)
{
	if (row->way != ROW_CALLED || !is_original(row->node))
		return false;
	stand_before(row);
	return true;
}

/* Before a query runs for the first time: its memory is ours. */
void
row_wrap(RowQuery *query)
{
	MemoryContext previous = MemoryContextSwitchTo(query->estate->es_query_cxt);
	Walk		walk = {query, -1, 0, 0, false, -1};

	if (first_call == NULL)
		learn();
	(void) count_node(query->desc->planstate, &walk);
	query->rows = palloc0(sizeof(Row) * walk.room);
	query->nids = walk.largest_id + 1;
	query->by_id = palloc0(sizeof(Row *) * Max(query->nids, 1));
	walk.below_gather = IsParallelWorker();
	(void) enter_node(query->desc->planstate, &walk);
	for (int i = 0; i < query->nrows; i++)
		if (!is_original(query->rows[i].node))
			query->refused = "another module has taken over the calls of its nodes";
	if (query->refused == NULL)
	{
		for (int i = 0; i < query->nrows; i++)
		{
			if (query->rows[i].way != ROW_CALLED)
				continue;
			row_take_place(&query->rows[i]);
			stand_before(&query->rows[i]);
		}
		query->wrapped = true;
	}
	MemoryContextSwitchTo(previous);
}

/* The query's memory goes: nobody calls its nodes any more. */
void
row_unwrap(RowQuery *query)
{
	for (int i = 0; i < query->nrows; i++)
	{
		RowHot	   *hot = query->rows[i].hot;

		if (hot == NULL || hot == &query->rows[i].own)
			continue;
		taken[hot - pool] = false;
		hot->node = NULL;
		hot->row = NULL;
	}
	query->wrapped = false;
}

uint64
row_calls(const Row *row)
{
	return row->hot ? row->drawn - row->hot->countdown : 0;
}
