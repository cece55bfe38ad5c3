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

#define FIRST_ROOM 32

static bool
make_room(void **items, int *room, int used, Size size, MemoryContext context)
{
	int			wanted = *room > 0 ? *room * 2 : FIRST_ROOM;
	void	   *more;

	if (used < *room)
		return true;
	more = MemoryContextAllocExtended(context, size * wanted, MCXT_ALLOC_NO_OOM);
	if (more == NULL)
		return false;
	if (used > 0)
	{
		memcpy(more, *items, size * used);
		pfree(*items);
	}
	*items = more;
	*room = wanted;
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
	if (!make_room((void **) &row->gaps, &row->gaps_room, row->ngaps, sizeof(RowGap),
				   row->query->estate->es_query_cxt))
		return;
	row->gaps[row->ngaps++] = row->joined;
	memset(&row->joined, 0, sizeof(RowGap));
}

/* A scan ended after so many untimed calls, which took so long. */
void
row_keep_end(Row *row, int64 gap, uint32 untimed)
{
	if (untimed == 0)
		return;
	if (row->ends == NULL)
		row->ends = MemoryContextAllocExtended(row->query->estate->es_query_cxt,
											   sizeof(RowEnd) * (ROW_EXACT_SCANS + 2),
											   MCXT_ALLOC_NO_OOM);
	if (row->ends == NULL || row->nends >= ROW_EXACT_SCANS + 2)
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
	if (row->ngaps == ROW_GAPS ||
		!make_room((void **) &row->gaps, &row->gaps_room, row->ngaps, sizeof(RowGap),
				   row->query->estate->es_query_cxt))
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
