/*-------------------------------------------------------------------------
 * row_wrap_node.c
 *		Putting our function before the calls of one node.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

#include "executor/instrument.h"

/* The functions that PostgreSQL itself puts there */
static ExecProcNodeMtd first_call = NULL;
static ExecProcNodeMtd instrumented = NULL;

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
	NodeCounters counts;

	memset(&node, 0, sizeof(node));
	memset(&counts, 0, sizeof(counts));
	node.instrument = &counts;
	ExecSetExecProcNode(&node, call_nothing);
	first_call = node.ExecProcNode;
	(void) node.ExecProcNode(&node);
	instrumented = node.ExecProcNode;
}

/* Wrap the node of this row, which has its place. */
void
row_wrap_node(Row *row)
{
	PlanState  *node = row->node;

	if (node->instrument && row->query->counts)
		row->hot->running = &node->instrument->running;
	row->hot->real = node->instrument && !row->query->counts ? instrumented :
		node->ExecProcNodeReal;
	node->ExecProcNode = row->ours;
}

/* Would PostgreSQL alone have put there what is there? */
bool
row_is_original(const PlanState *node)
{
	if (unlikely(first_call == NULL))
		learn();
	return node->ExecProcNode == first_call || node->ExecProcNode == instrumented ||
		node->ExecProcNode == node->ExecProcNodeReal;
}

/* Whether the node's own function had been set anew: by the set-up of a parallel hash join. */
bool
row_wrap_node_again(Row *row)
{
	if (row->way != ROW_CALLED || !row_is_original(row->node))
		return false;
	row_wrap_node(row);
	return true;
}
