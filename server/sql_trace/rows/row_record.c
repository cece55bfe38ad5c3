/*-------------------------------------------------------------------------
 * row_record.c
 *		Row sources into the trace of the session.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

/* Nodes whose records are written; a trace's ring holds more, but not much more. */
#define MOST_NODES 1000

/* and of those made without getting memory */
#define FEW 16

static uint32
flags_of(const RowResult *result)
{
	uint32		flags = 0;

	if (result->exact && result->workers == 0)
		flags |= ROWSOURCE_EXACT;
	if (result->workers > 0)
		flags |= ROWSOURCE_PARALLEL;
	if (result->unfinished)
		flags |= ROWSOURCE_UNFINISHED;
	if (result->way == ROW_BY_CHILD || result->way == ROW_BY_PARENT)
		flags |= ROWSOURCE_BYPASSED;
	if (result->way == ROW_HIDDEN)
		flags |= ROWSOURCE_UNTIMED;
	return flags;
}

/* An execution that is traced is about to end. */
void
row_record(RowQuery *query)
{
	int			n = Min(query->nresults, MOST_NODES);
	RowSource	few[FEW];
	RowSource  *nodes = few;

	if (n <= 0)
		return;
	if (n > FEW)
		nodes = MemoryContextAllocExtended(query->estate->es_query_cxt, sizeof(RowSource) * n,
										   MCXT_ALLOC_NO_OOM);
	if (nodes == NULL)
		return;
	for (int i = 0; i < n; i++)
	{
		const RowResult *result = &query->results[i];

		nodes[i].node = result->node_id;
		nodes[i].flags = flags_of(result);
		nodes[i].calls = result->total.calls;
		nodes[i].rows = result->total.rows;
		nodes[i].loops = result->total.loops;
		nodes[i].time = (int64) result->total.ns;
		nodes[i].low = (int64) result->ns_low;
		nodes[i].high = (int64) result->ns_high;
	}
	(void) execute_row_sources(query->desc, (uint32) query->every, nodes, (uint32) n);
	if (nodes != few)
		pfree(nodes);
}
