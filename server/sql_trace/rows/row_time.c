/*-------------------------------------------------------------------------
 * row_time.c
 *		Which calls of a node are timed.
 *
 * The first calls are timed, the first call of each of the first scans too,
 * and the clock is read when these scans end.  To time fewer of them was tried:
 * what is saved in readings goes into estimates that exact nodes do without.
 * Then calls are sampled with random gaps, which grow to the requested frequency
 * while the node's calls mount up.  A sampled call is timed, and so is what
 * follows until the next call; the estimate needs both (row_estimate.c).
 *
 * Nothing here allocates but the room for gaps, from the query's own memory
 * and without throwing.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

#include "common/pg_prng.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/* Calls for one sampled, at least, until the requested frequency is reached */
#define RAMP 32

/* A row is about to be called for the first time. */
void
row_start(Row *row)
{
	row->due = ROW_DUE_TIMED;
	row->drawn = 1;
	row->hot->countdown = 1;
	row->fresh = true;
	row->join = 1;
	row->gaps = row->first_gaps;
	row->gaps_room = ROW_FIRST_GAPS;
	row->ends = row->first_ends;
	row->ends_room = ROW_FIRST_ENDS;
}

static void
due_in(Row *row, uint64 calls, RowDue what)
{
	row->drawn += calls - row->hot->countdown;
	row->hot->countdown = calls;
	row->due = what;
}

/* Is the call after `calls` of them timed, whatever comes? */
static inline bool
is_exact(const Row *row, uint64 calls)
{
	return row->query->every == 1 || calls < ROW_EXACT_CALLS;
}

/* Is the clock read when a scan ends, and the first call of the next timed? */
static inline bool
watches_end(const Row *row)
{
	return row->hot->nothing <= ROW_EXACT_SCANS;
}

/* Calls to let pass after a sampled one, the next included, so that one in `every` is sampled */
static uint32
draw_gap(const Row *row)
{
	uint32		every = Min((uint64) row->query->every, Max(1, row->drawn / RAMP));
	uint32		mean = every - 1;
	uint32		low = mean >= 4 ? mean - mean / 2 : 0;
	uint64		many = 2 * (uint64) (mean - low) + 1;

	if (mean == 0)
		return 0;
	return low + (uint32) ((pg_prng_uint32(&row_random) * many) >> 32);
}

static void
note_end(Row *row, int64 now)
{
	if (row->fresh)
		return;
	row->fresh = true;
	row->alike = 0;
	row->spans += now - row->scan_from;
	row->nspans++;
	due_in(row, 1, ROW_DUE_TIMED);
}

/* An untimed call returned nothing. */
void
row_scan_ended(Row *row)
{
	int64		now;

	row->calls_at_end = row_calls(row);
	if (row->due != ROW_DUE_SAMPLED || !watches_end(row))
		return;
	now = row_now(row->query);
	row_keep_end(row, now - row->gap_from, row_untimed_calls(row));
	row->gap_calls = 0;
	note_end(row, now);
}

/*
 * A parallel hash join gets its function when Gather sets up the workers, past
 * us.  Those above and below a node are looked at when it is first called;
 * above, one call is under way already.
 */
static void
look_around(Row *row)
{
	RowQuery   *query = row->query;
	int			self = (int) (row - query->rows);

	if (row->parent >= 0)
	{
		Row		   *parent = &query->rows[row->parent];

		if (row_wrap_node_again(parent) && parent->drawn == 1)
		{
			parent->missed = true;
			parent->missed_from = row_now(query);
			parent->fresh = false;
			parent->scan_from = parent->missed_from;
			parent->drawn++;
		}
	}
	/* what hangs on a node follows it at once */
	for (int i = self + 1; i < query->nrows && query->rows[i].parent >= self; i++)
		if (query->rows[i].parent == self)
			(void) row_wrap_node_again(&query->rows[i]);
}

/* A timed call returned nothing. */
static void
found_nothing(Row *row, int64 now)
{
	row->hot->nothing++;
	row->calls_at_end = row_calls(row);
	if (watches_end(row))
	{
		row_keep_end(row, (int64) row->sample.gap, row->sample.untimed);
		note_end(row, now);
	}
}

/*
 * Time a call; the clock has just been read.  What can wait is done when it
 * has returned, so that nothing but the call lies between the readings.
 */
static pg_attribute_always_inline TupleTableSlot *
call_timed(Row *row, PlanState *node, int64 start)
{
	RowHot	   *hot = row->hot;
	TupleTableSlot *slot;
	int64		end,
				took;
	uint64		calls;

	*hot->running = true;
	slot = hot->real(node);
	end = row_now(row->query);
	took = Max(end - start - row_costs.inside, 0);
	row->sample.gap = row->sample.untimed = 0;
	if (row->gap_calls > 0)
	{
		row->sample.gap = (float) Max(start - row->gap_from - row_costs.gap, 0);
		row->sample.untimed = row->gap_calls;
		row->gap_calls = 0;
	}
	row->sample.inside = (float) took;
	row->returned = end;
	row->timed++;
	row->known += took;
	if (row->fresh)
	{
		row->fresh = false;
		row->scan_from = start;
		row->firsts += took;
		row->nfirsts++;
	}
	row->drawn++;
	hot->countdown = 1;
	calls = row->drawn - 1;
	if (is_exact(row, calls))
	{
		/* the next one is timed, too: as many as are sure to be, but for the last */
		row->due = ROW_DUE_TIMED;
		row->alike = row->query->every == 1 ? PG_UINT32_MAX : ROW_EXACT_CALLS - 1 - (uint32) calls;
	}
	else
		row->due = ROW_DUE_AFTER;
	if (unlikely(TupIsNull(slot)))
		found_nothing(row, end);
	return slot;
}

/* The same if nothing is to be said but how long it took: most calls of short statements. */
static pg_noinline TupleTableSlot *
call_alike(Row *row, PlanState *node)
{
	RowHot	   *hot = row->hot;
	TupleTableSlot *slot;
	int64		start = row_now(row->query);
	int64		end;

	*hot->running = true;
	slot = hot->real(node);
	end = row_now(row->query);
	row->known += Max(end - start - row_costs.inside, 0);
	row->timed++;
	row->drawn++;
	row->alike--;
	hot->countdown = 1;
	if (unlikely(TupIsNull(slot)))
		found_nothing(row, end);
	return slot;
}

/* A node's first call */
static pg_noinline TupleTableSlot *
call_first(Row *row, PlanState *node)
{
	TupleTableSlot *slot;

	check_stack_depth();
	look_around(row);
	if (row->missed)
	{
		row_keep_end(row, row_now(row->query) - row->missed_from, 1);
		row->missed = false;
	}
	slot = call_timed(row, node, row_now(row->query));
	row_shared_called(row);
	return slot;
}

/* What followed a sampled call is over: the sample is complete, and the next gap begins. */
static bool
begin_gap(Row *row, int64 now)
{
	uint32		calls = draw_gap(row);

	row->sample.outside = (float) Max(now - row->returned - row_costs.outside, 0);
	row->sample.timed = 1;
	if (row->sample.untimed > 0)
		row_keep_gap(row, &row->sample);
	row->sample.gap = row->sample.untimed = 0;
	row->due = ROW_DUE_SAMPLED;
	row->gap_calls = calls;
	if (calls == 0)
		return false;
	row->gap_from = now;
	due_in(row, calls, ROW_DUE_SAMPLED);
	return true;
}

/* A call that was drawn, or follows one */
static pg_noinline TupleTableSlot *
call_drawn(Row *row, PlanState *node)
{
	int64		now = row_now(row->query);

	if (row->due == ROW_DUE_AFTER)
	{
		if (begin_gap(row, now))
		{
			TupleTableSlot *slot;

			*row->hot->running = true;
			slot = row->hot->real(node);
			if (TupIsNull(slot))
			{
				row->hot->nothing++;
				row_scan_ended(row);
			}
			return slot;
		}
		now = row_now(row->query);
	}
	return call_timed(row, node, now);
}

/* A call that is to be looked at */
TupleTableSlot *
row_due(Row *row, PlanState *node)
{
	if (likely(row->alike > 0))
		return call_alike(row, node);
	if (unlikely(row->timed == 0))
		return call_first(row, node);
	return call_drawn(row, node);
}
