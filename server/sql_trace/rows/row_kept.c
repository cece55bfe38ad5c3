/*-------------------------------------------------------------------------
 * row_kept.c
 *		What is kept of a node's timed calls, for the estimate.
 *
 * Nothing here allocates but the room for gaps and ends, from the query's own
 * memory and without throwing.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

#include "utils/memutils.h"

/* So many bytes, which begin with those that there are; or NULL */
static void *
enlarged(const Row *row, const void *from, Size used, Size size)
{
	void	   *more = MemoryContextAllocExtended(row->query->estate->es_query_cxt, size,
												  MCXT_ALLOC_NO_OOM);

	return more ? memcpy(more, from, used) : NULL;
}

static bool
has_room_for_gap(Row *row)
{
	RowGap	   *more;

	if (row->ngaps < row->gaps_room)
		return true;
	more = enlarged(row, row->gaps, sizeof(RowGap) * row->ngaps, sizeof(RowGap) * row->gaps_room * 2);
	if (more == NULL)
		return false;
	if (row->gaps != row->first_gaps)
		pfree(row->gaps);
	row->gaps = more;
	row->gaps_room *= 2;
	return true;
}

/* Of the first scans, or of few */
static bool
has_room_for_end(Row *row)
{
	RowEnd	   *more;

	if (row->nends < row->ends_room)
		return true;
	if (row->ends != row->first_ends)
		return false;
	more = enlarged(row, row->ends, sizeof(RowEnd) * row->nends,
					sizeof(RowEnd) * (ROW_EXACT_SCANS + 2));
	if (more == NULL)
		return false;
	row->ends = more;
	row->ends_room = ROW_EXACT_SCANS + 2;
	return true;
}

static void
add_to(RowGap *sum, const RowGap *gap)
{
	sum->inside += gap->inside;
	sum->outside += gap->outside;
	sum->gap += gap->gap;
	sum->untimed += gap->untimed;
	sum->timed += gap->timed;
}

static void
join_neighbours(Row *row)
{
	for (int i = 0; i < row->ngaps / 2; i++)
	{
		RowGap		sum = row->gaps[2 * i];

		add_to(&sum, &row->gaps[2 * i + 1]);
		row->gaps[i] = sum;
	}
	row->ngaps /= 2;
	row->join *= 2;
}

/* A sample is complete. */
void
row_keep_gap(Row *row, const RowGap *gap)
{
	add_to(&row->joined, gap);
	if (row->joined.timed < row->join)
		return;
	if (row->ngaps == ROW_GAPS)
	{
		join_neighbours(row);
		return;					/* and wait for as many again */
	}
	if (!has_room_for_gap(row))
		return;
	row->gaps[row->ngaps++] = row->joined;
	memset(&row->joined, 0, sizeof(RowGap));
}

/* A scan ended after this many untimed calls, which took this long. */
void
row_keep_end(Row *row, int64 gap, uint32 untimed)
{
	if (untimed == 0)
		return;
	if (!has_room_for_end(row))
	{
		row->lost += untimed;
		row->lost_ticks += gap;
		return;
	}
	row->ends[row->nends].gap = (float) Max(gap, 0);
	row->ends[row->nends].untimed = untimed;
	row->nends++;
}

/* Nothing more is to come: samples that wait to be joined count as they are. */
void
row_close(Row *row)
{
	if (row->joined.timed == 0)
		return;
	if (row->ngaps == ROW_GAPS || !has_room_for_gap(row))
	{
		row->lost += row->joined.untimed;
		row->lost_ticks += (int64) row->joined.gap;
	}
	else
		row->gaps[row->ngaps++] = row->joined;
	memset(&row->joined, 0, sizeof(RowGap));
}

/* What is known of a node, for the estimate */
void
row_times(const Row *row, RowTimes *times)
{
	memset(times, 0, sizeof(*times));
	times->timed = row->timed;
	times->known = (double) row->known;
	times->gaps = row->gaps;
	times->ngaps = row->ngaps;
	times->ends = row->ends;
	times->nends = row->nends;
	times->tail = row->lost;
	times->tail_most = (double) row->lost_ticks;
	if (row->due == ROW_DUE_SAMPLED && row->gap_calls > 0)
	{
		times->tail += row_untimed_calls(row);
		times->tail_most += (double) Max(row->query->stopped_at - row->gap_from, 0);
	}
	if (row->due == ROW_DUE_AFTER && row->sample.untimed > 0)
	{
		times->tail += row->sample.untimed;
		times->tail_most += row->sample.gap;
	}
	if (row->missed)
	{
		times->tail++;
		times->tail_most += (double) Max(row->query->stopped_at - row->missed_from, 0);
	}
}
