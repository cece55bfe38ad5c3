/*-------------------------------------------------------------------------
 * taker.c
 *		Another module that takes over the calls of plan nodes, as a neighbour
 *		in tests.
 *
 * It keeps what it found in a single global pointer, as careless modules do,
 * and so calls for each node what it found at the last; and when the plan has
 * run, it puts that before all nodes.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/executor.h"
#include "fmgr.h"
#include "nodes/nodeFuncs.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(taker_calls);

static ExecutorRun_hook_type previous_run;
static ExecProcNodeMtd found;
static int64 calls;

static TupleTableSlot *
call(PlanState *node)
{
	calls++;
	return found(node);
}

static bool
take(PlanState *node, void *arg)
{
	found = node->ExecProcNode;
	node->ExecProcNode = call;
	return planstate_tree_walker(node, take, arg);
}

static bool
put_back(PlanState *node, void *arg)
{
	node->ExecProcNode = found;
	return planstate_tree_walker(node, put_back, arg);
}

static void
run(QueryDesc *desc, ScanDirection direction, uint64 count
#if PG_VERSION_NUM < 180000
	,bool once
#endif
)
{
	(void) take(desc->planstate, NULL);
#if PG_VERSION_NUM < 180000
	if (previous_run)
		previous_run(desc, direction, count, once);
	else
		standard_ExecutorRun(desc, direction, count, once);
#else
	if (previous_run)
		previous_run(desc, direction, count);
	else
		standard_ExecutorRun(desc, direction, count);
#endif
	(void) put_back(desc->planstate, NULL);
}

void		_PG_init(void);

void
_PG_init(void)
{
	previous_run = ExecutorRun_hook;
	ExecutorRun_hook = run;
}

Datum
taker_calls(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(calls);
}
