/*-------------------------------------------------------------------------
 * row_memory.c
 *		Memory of measured queries, which is used again and again.
 *
 * To get and zero it anew would be most of what a short statement pays.  Only
 * what a plan or its sample needs beyond comes from the query's own memory.
 *-------------------------------------------------------------------------
 */
#include "rows.h"

#include "utils/memutils.h"

/* Nodes for which there is room at first, and of which room is kept for later queries */
#define FIRST_ROOM 8
#define MOST_ROOM 128

/* Queries within each other whose memory is kept */
#define MOST_UNUSED 16

int			row_every = 0;
RowQuery   *row_queries = NULL;

static MemoryContext memory = NULL;
static RowQuery *unused = NULL;
static int	nunused = 0;

/* For a query that is to be measured: nothing of it is set. */
RowQuery *
row_query_take(void)
{
	RowQuery   *query = unused;
	RowQuery	blank = {0};

	if (query)
	{
		unused = query->outer;
		nunused--;
		blank.rows = query->rows;
		blank.results = query->results;
		blank.room = query->room;
	}
	else
	{
		if (memory == NULL)
			memory = AllocSetContextCreate(TopMemoryContext, "row sources",
										   ALLOCSET_DEFAULT_SIZES);
		query = MemoryContextAlloc(memory, sizeof(RowQuery));
	}
	*query = blank;
	return query;
}

/* Nobody knows the query any more. */
void
row_query_give_back(RowQuery *query)
{
	if (query->rows && query->room > MOST_ROOM)
	{
		pfree(query->rows);
		query->rows = NULL;
		query->room = 0;
	}
	if (nunused == MOST_UNUSED)
	{
		if (query->rows)
			pfree(query->rows);
		pfree(query);
		return;
	}
	query->outer = unused;
	unused = query;
	nunused++;
}

/* The next node's row, or NULL if there is no memory for it; rows may move. */
Row *
row_query_add(RowQuery *query)
{
	Row		   *row;

	if (query->nrows == query->room)
	{
		int			room = Max(FIRST_ROOM, query->room * 2);
		Row		   *more = MemoryContextAllocExtended(memory,
													  (sizeof(Row) + sizeof(RowResult) + ROW_SCRATCH) * room,
													  MCXT_ALLOC_NO_OOM | MCXT_ALLOC_HUGE);

		if (more == NULL)
			return NULL;
		if (query->rows)
		{
			memcpy(more, query->rows, sizeof(Row) * query->nrows);
			pfree(query->rows);
		}
		query->rows = more;
		query->results = (RowResult *) (more + room);
		query->room = room;
	}
	row = &query->rows[query->nrows++];
	memset(row, 0, offsetof(Row, first_gaps));
	return row;
}
