/*-------------------------------------------------------------------------
 * row_wrappers.c
 *		The functions that come before the calls of nodes.
 *
 * A call that is not looked at costs a countdown, a comparison and a direct
 * jump: each node gets a function of its own from a pool, which knows its
 * counters without looking for them.  Nodes for which the pool has no more
 * share one that looks them up.
 *
 * Another module may call us for a node that is not ours, even after we have
 * gone; so each function checks the node, and what is not ours is called as
 * PostgreSQL would.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

#include "executor/instrument.h"

#define POOL 128

/* Out of the way of what each call passes through */
#if defined(__GNUC__)
#define SELDOM pg_noinline __attribute__((cold))
#else
#define SELDOM pg_noinline
#endif

static RowHot pool[POOL] pg_attribute_aligned(64);
static bool nobodys;

/* Places given back, of which the last is the first to be taken; then those never taken */
static uint8 given_back[POOL];
static int	ngiven_back = 0;
static int	never_taken = 0;

static Row *
row_in(const RowQuery *query, const PlanState *node)
{
	int			id = node->plan->plan_node_id;

	if (query->by_id)
		return id >= 0 && id < query->nids ? query->by_id[id] : NULL;
	for (int i = 0; i < query->nrows; i++)
		if (query->rows[i].node == node)
			return &query->rows[i];
	return NULL;
}

static Row *
find_row(const PlanState *node)
{
	for (RowQuery *query = row_queries; query; query = query->outer)
	{
		Row		   *row = query->estate == node->state && query->wrapped ?
			row_in(query, node) : NULL;

		if (row && row->node == node && row->hot)
			return row;
	}
	return NULL;
}

/* A module that comes before us has mixed up its nodes, or outlived our query. */
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

static SELDOM TupleTableSlot *
call_of_another(RowHot *hot, PlanState *node)
{
	hot->countdown++;
	return call_looked_up(node);
}

static SELDOM TupleTableSlot *
ended(RowHot *hot, TupleTableSlot *slot)
{
	hot->nothing++;
	row_scan_ended(hot->row);
	return slot;
}

static pg_attribute_always_inline TupleTableSlot *
call(RowHot *hot, PlanState *node, bool counts)
{
	TupleTableSlot *slot;

	if (unlikely(--hot->countdown == 0 || hot->node != node))
		return hot->node == node ? row_due(hot->row, node) : call_of_another(hot, node);
	if (counts)
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

	return row ? call(row->hot, node, true) : call_unknown(node);
}

#define EACH16(X, h) \
	X(h##0) X(h##1) X(h##2) X(h##3) X(h##4) X(h##5) X(h##6) X(h##7) \
	X(h##8) X(h##9) X(h##a) X(h##b) X(h##c) X(h##d) X(h##e) X(h##f)
#define EACH(X) \
	EACH16(X, 0x0) EACH16(X, 0x1) EACH16(X, 0x2) EACH16(X, 0x3) \
	EACH16(X, 0x4) EACH16(X, 0x5) EACH16(X, 0x6) EACH16(X, 0x7)

#define DEFINE(n) \
	static TupleTableSlot *call_##n(PlanState *node) { return call(&pool[n], node, false); } \
	static TupleTableSlot *count_##n(PlanState *node) { return call(&pool[n], node, true); }
EACH(DEFINE)

#define CALL(n) call_##n,
#define COUNT(n) count_##n,
static const ExecProcNodeMtd functions[POOL] = {EACH(CALL)};

/* These tell PostgreSQL's instrumentation that a scan has begun. */
static const ExecProcNodeMtd counting_functions[POOL] = {EACH(COUNT)};

/* Give a row its place, from the pool if that has one left. */
void
row_take_place(Row *row)
{
	row->place = -1;
	if (ngiven_back > 0)
		row->place = given_back[--ngiven_back];
	else if (never_taken < POOL)
		row->place = never_taken++;
	if (row->place >= 0)
	{
		row->hot = &pool[row->place];
		row->ours = (row->query->counts ? counting_functions : functions)[row->place];
	}
	else
	{
		row->hot = MemoryContextAlloc(row->query->estate->es_query_cxt, sizeof(RowHot));
		row->ours = call_looked_up;
	}
	memset(row->hot, 0, sizeof(RowHot));
	row->hot->running = &nobodys;
	row->hot->node = row->node;
	row->hot->row = row;
	row_start(row);
}

/* Nobody calls its node any more. */
void
row_give_place(Row *row)
{
	if (row->hot == NULL || row->place < 0)
		return;
	row->hot->node = NULL;
	row->hot->row = NULL;
	given_back[ngiven_back++] = (uint8) row->place;
	row->hot = NULL;
}
