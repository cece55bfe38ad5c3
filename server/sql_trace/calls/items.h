/*-------------------------------------------------------------------------
 * items.h
 *		Adding calls to the record of a request; for those who keep it back.
 *
 * Inline, as each call passes through it, and of most the kind is known beforehand.
 *-------------------------------------------------------------------------
 */
#ifndef ITEMS_H
#define ITEMS_H

#include "call.h"
#include "fused.h"

#pragma GCC visibility push(hidden)

/* That a call takes at most, and those of a plain request do */
#define ITEM_ROOM (sizeof(FusedCall) + (2 + NUSAGE) * sizeof(uint64))
#define PLAIN_ROOM (2 * sizeof(FusedCall) + ITEM_ROOM)

static inline OpenRequest *
open_request(void)
{
	return &trace.ring->open;
}

/* Let readers see so much. */
static inline void
fused_show(uint32 size)
{
	fused.size = size;
	pg_write_barrier();
	open_request()->size = size;
}

/* A call is of this statement, if that is known; false: the record is of another one. */
static pg_attribute_always_inline bool
item_query(FusedRecord *record, int64 query_id, uint16 *flags)
{
	if (query_id == 0)
		return true;
	if (record->query_id == 0)
		record->query_id = query_id;
	*flags |= FUSED_QUERY_ID;
	return record->query_id == query_id;
}

/*
 * Put a call, with what it has of these and its flags tell; "usage" may be NULL.  Returns what
 * follows it.
 */
static pg_attribute_always_inline char *
item_put(char *at, FusedCall item, uint64 rows, uint64 plan, const Usage *usage)
{
	uint64	   *to = (uint64 *) (at + sizeof(FusedCall));

	if (rows != 0)
	{
		item.flags |= FUSED_ROWS;
		*to++ = rows;
	}
	if (plan != 0)
	{
		item.flags |= FUSED_PLAN;
		*to++ = plan;
	}
	if (usage)
		to = add_usage(to, usage, &item.flags);
	*(FusedCall *) at = item;
	return (char *) to;
}

#pragma GCC visibility pop

#endif							/* ITEMS_H */
