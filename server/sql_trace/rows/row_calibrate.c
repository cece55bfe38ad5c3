/*-------------------------------------------------------------------------
 * row_calibrate.c
 *		What looking at a call of a node adds to what is read.
 *-------------------------------------------------------------------------
 */
#include "row_usual.h"
#include "rows.h"

#include "utils/memutils.h"

#include "../../common/clock.h"

/* Calls of an empty node: the more samples, the surer the medians */
#define CALIBRATION_CALLS 4096

static TupleTableSlot empty_slot;

static TupleTableSlot *
call_empty(PlanState *node)
{
	return &empty_slot;
}

static int64
median(double *values, int n)
{
	qsort(values, n, sizeof(double), usual_by_value);
	return n > 0 ? (int64) values[n / 2] : 0;
}

/* What looking at a call adds to each reading of the row, which does nothing */
static void
calibrate_row(Row *row)
{
	PlanState  *node = row->node;
	double	   *values;
	int64		cycle;

	row->hot->real = call_empty;
	row->fresh = false;
	for (int i = 0; i < CALIBRATION_CALLS; i++)
		(void) row->ours(node);
	values = palloc(sizeof(double) * (row->ngaps + 1));
	for (int i = 0; i < row->ngaps; i++)
		values[i] = row->gaps[i].inside;
	row_costs.inside = median(values, row->ngaps);
	for (int i = 0; i < row->ngaps; i++)
		values[i] = row->gaps[i].outside;
	row_costs.outside = median(values, row->ngaps);
	row->hot->countdown = CALIBRATION_CALLS * 2;
	cycle = row_now(row->query);
	for (int i = 0; i < CALIBRATION_CALLS; i++)
		(void) row->ours(node);
	cycle = row_now(row->query) - cycle;
	for (int i = 0; i < row->ngaps; i++)
		values[i] = row->gaps[i].gap - (double) cycle * row->gaps[i].untimed / CALIBRATION_CALLS;
	row_costs.gap = Max(median(values, row->ngaps), 0);
}

/*
 * What looking at a call adds to each reading: a node that does nothing is
 * sampled like any other.  False: queries under way have all places of the pool,
 * and elsewhere nobody would find the row.
 */
static bool
calibrate(ClockSource clock)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "row source calibration",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext previous = MemoryContextSwitchTo(context);
	EState	   *estate = palloc0(sizeof(EState));
	PlanState  *node = palloc0(sizeof(PlanState));
	RowQuery   *query = palloc0(sizeof(RowQuery));
	Row		   *row = palloc0(sizeof(Row));
	bool		done;

	estate->es_query_cxt = context;
	query->estate = estate;
	query->every = 64;
	query->clock = clock;
	query->rows = row;
	query->nrows = 1;
	row->query = query;
	row->node = node;
	row->parent = -1;
	row_take_place(row);
	done = row->place >= 0;
	PG_TRY();
	{
		if (done)
			calibrate_row(row);
	}
	PG_FINALLY();
	{
		/* the row goes with our memory: nothing in the pool may know it then */
		row_give_place(row);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(previous);
	MemoryContextDelete(context);
	return done;
}

/* Before a process measures by this clock; if it cannot find out, readings cost nothing for now */
void
row_calibrate_start(ClockSource clock)
{
	if (row_clock_use(clock) || !calibrate(clock))
		return;
	row_clock_know(clock, &row_costs);
	(void) row_clock_use(clock);
}
