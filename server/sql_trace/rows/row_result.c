/*-------------------------------------------------------------------------
 * row_result.c
 *		The row sources of a finished execution, from what was kept of each
 *		node.
 *
 * The estimates of one process are made consistent with each other first, as
 * a node's time holds that of its children; then the parts of parallel workers
 * are added, whose time is their own and may exceed what the leader saw pass.
 *-------------------------------------------------------------------------
 */
#include "rows.h"
#include "../calls/execution.h"

#include <math.h>

static Row *
only_child(const Row *row)
{
	RowQuery   *query = row->query;
	int			self = (int) (row - query->rows);

	for (int i = self + 1; i < query->nrows; i++)
		if (query->rows[i].parent == self && !query->rows[i].below_subplan)
			return &query->rows[i];
	return NULL;
}

static uint64
scans(const Row *row)
{
	uint64		calls = row_calls(row);

	if (calls == 0)
		return 0;
	return row->hot->nothing + (row->calls_at_end < calls ? 1 : 0);
}

static Row *
called_parent(const Row *row)
{
	int			at = row->parent;

	while (at >= 0 && row->query->rows[at].way == ROW_BY_PARENT)
		at = row->query->rows[at].parent;
	return at >= 0 && row->query->rows[at].way == ROW_CALLED ? &row->query->rows[at] : NULL;
}

/* A call that went past us, and was the last, found nothing. */
static uint64
rows_returned(const Row *row)
{
	return row_calls(row) - row->hot->nothing - (row->missed ? 1 : 0);
}

static void
count_called(const Row *row, RowTotal *total)
{
	total->calls = row_calls(row);
	total->rows = rows_returned(row);
	total->loops = scans(row);
	total->timed = row->timed;
}

static RowEstimate
estimate_called(const Row *row)
{
	RowTimes	times;

	row_times(row, &times);
	return row_estimate(&times);
}

/*
 * Hash reads all that its child has, and does little else: it takes as long as
 * the child's scan from its first call to its end.  Its parent's first calls
 * hold it, so they take no less.
 */
static RowEstimate
estimate_by_child(const Row *row, RowTotal *total)
{
	RowEstimate of = {0};
	Row		   *child = only_child(row);
	Row		   *parent = called_parent(row);
	double		scale;

	of.quantile = 1.96;
	count_called(child, total);
	total->calls = total->loops = scans(child);
	total->timed = 0;
	scale = (double) Max(child->hot->nothing, child->nspans) / child->nspans;
	of.time = child->spans * scale;
	of.least = (double) child->spans;
	of.most = scale > 1 || parent == NULL ? INFINITY :
		Max(of.least, (double) parent->firsts);
	of.variance = scale > 1 ? of.time * of.time / child->nspans : 0;
	return of;
}

/*
 * A bitmap is made within the first call of the scan above it, and nothing
 * shows when; what that call took beyond the usual is taken for it.
 */
static RowEstimate
estimate_by_parent(const Row *row, RowTotal *total)
{
	RowEstimate of = {0};
	Row		   *parent = called_parent(row);
	double		usual = 0;
	double		scale;

	of.quantile = 1.96;
	if (parent->timed > parent->nfirsts)
		usual = (double) (parent->known - parent->firsts) / (parent->timed - parent->nfirsts);
	total->calls = total->loops = scans(parent);
	scale = (double) Max(total->calls, parent->nfirsts) / parent->nfirsts;
	of.time = Max(0, parent->firsts - parent->nfirsts * usual) * scale;
	of.most = parent->firsts * scale;
	of.variance = of.time * of.time / 4;
	return of;
}

static void
add_ns(RowTotal *total, const RowEstimate *of, double ns)
{
	total->ns = of->time * ns;
	total->variance = of->variance * ns * ns;
	total->ns_least = of->least * ns;
	total->ns_most = of->most * ns;
	total->quantile = of->quantile;
}

static void
set_interval(RowResult *result)
{
	RowTotal   *total = &result->total;
	RowEstimate of = {total->ns, total->variance, total->ns_least, total->ns_most,
	total->quantile};

	result->ns_low = row_low(&of);
	result->ns_high = row_high(&of);
}

/* Asynchronous scans are called past us; of others what they are measured by did not happen. */
static bool
cannot_be_measured(const Row *row)
{
	const Row  *teller;

	switch (row->way)
	{
		case ROW_CALLED:
			return row->node->async_capable && row_calls(row) == 0;
		case ROW_BY_CHILD:
			teller = only_child(row);
			return teller == NULL || teller->hot == NULL || teller->nspans == 0;
		case ROW_BY_PARENT:
			teller = called_parent(row);
			return teller == NULL || teller->nfirsts == 0;
		default:
			return true;
	}
}

/* What a query changes besides may go on at its end, and so may what that needs. */
static bool
runs_at_end(const Row *row)
{
	return row->below_subplan && row->parent == 0 && row->query->estate->es_auxmodifytables != NIL;
}

static void
reconcile(RowQuery *query)
{
	RowShare   *shares = row_query_scratch(query);
	double		ns = row_ns_per_tick(query->clock);

	for (int i = 0; i < query->nrows; i++)
	{
		Row		   *row = &query->rows[i];
		RowTotal   *total = &query->results[i].total;
		int			whole = row->parent;

		if (cannot_be_measured(row))
			row->way = ROW_HIDDEN;
		while (whole >= 0 && query->rows[whole].way == ROW_HIDDEN)
			whole = query->rows[whole].parent;
		shares[i].whole = whole;
		shares[i].summed = !row->below_subplan && row->way != ROW_HIDDEN;
		shares[i].apart = runs_at_end(row);
		if (row->way == ROW_CALLED)
		{
			row_close(row);
			count_called(row, total);
			shares[i].of = estimate_called(row);
		}
		else if (row->way == ROW_BY_CHILD)
			shares[i].of = estimate_by_child(row, total);
		else if (row->way == ROW_BY_PARENT)
			shares[i].of = estimate_by_parent(row, total);
		else
			shares[i].of = (RowEstimate) {.most = INFINITY};
	}
	row_reconcile(shares, query->nrows, (double) (query->stopped_at - query->began));
	for (int i = 0; i < query->nrows; i++)
		add_ns(&query->results[i].total, &shares[i].of, ns);
}

static void
describe(RowResult *result, const Row *row)
{
	result->node = row->node;
	result->node_id = row->node->plan->plan_node_id;
	result->parent_id = row->parent < 0 ? -1 :
		row->query->rows[row->parent].node->plan->plan_node_id;
	result->depth = row->depth;
	result->way = row->way;
	result->unfinished = row->way == ROW_CALLED && row->calls_at_end < row_calls(row);
	result->exact = row->way == ROW_CALLED && result->total.timed == result->total.calls;
}

/* EXPLAIN shows rows as if PostgreSQL had counted them itself. */
static void
count_for_postgres(RowQuery *query)
{
	for (int i = 0; i < query->nrows; i++)
	{
		Row		   *row = &query->rows[i];

		if (row->way == ROW_CALLED && row->node->instrument)
			row->node->instrument->ntuples += (double) rows_returned(row);
	}
}

/* Once an execution is over */
void
row_collect(RowQuery *query)
{
	if (query->collected || !query->wrapped)
		return;
	query->nresults = query->nrows;
	memset(query->results, 0, sizeof(RowResult) * query->nrows);
	reconcile(query);
	for (int i = 0; i < query->nrows; i++)
	{
		RowResult  *result = &query->results[i];
		RowTotal	workers;

		if (query->shared)
			result->workers = row_shared_workers(query,
												 query->rows[i].node->plan->plan_node_id,
												 &workers);
		if (result->workers > 0)
			row_add(&result->total, &workers);
		describe(result, &query->rows[i]);
		set_interval(result);
	}
	if (query->counts)
		count_for_postgres(query);
	query->collected = true;
}

/* Nodes whose records are written; a trace's ring holds more, but not much more. */
#define MOST_NODES 1000

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
	RowSource  *nodes = row_query_scratch(query);

	if (n <= 0)
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
}
