/*-------------------------------------------------------------------------
 * items.h
 *		Adding calls to the record of a request; for those who keep it back.
 *
 * Inline, as each call passes through it, and of most the kind is known beforehand.
 *-------------------------------------------------------------------------
 */
#ifndef ITEMS_H
#define ITEMS_H

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

/* Counters two at a time; records hold them at multiples of 8 bytes */
typedef uint64 Two __attribute__((vector_size(16), aligned(8), may_alias));

static inline bool
any(Two counters)
{
	return (counters[0] | counters[1]) != 0;
}

/* The counters of a call, where they are to be; returns what follows them. */
static inline uint64 *
add_usage(uint64 *to, const Usage *usage, uint16 *flags)
{
	const Two  *from = (const Two *) usage;
	Two		   *put = (Two *) to;

	StaticAssertStmt(USAGE_LOCAL_TEMP == 4 && USAGE_WAL == 10 && NUSAGE == 12,
					 "groups of two, three and one pair");
	if (any(from[0] | from[1]))
	{
		*flags |= CALL_SHARED;
		*put++ = from[0];
		*put++ = from[1];
	}
	if (likely(!any(from[2] | from[3] | from[4] | from[5])))
		return (uint64 *) put;
	if (any(from[2] | from[3] | from[4]))
	{
		*flags |= CALL_LOCAL_TEMP;
		*put++ = from[2];
		*put++ = from[3];
		*put++ = from[4];
	}
	if (any(from[5]))
	{
		*flags |= CALL_WAL;
		*put++ = from[5];
	}
	return (uint64 *) put;
}

/*
 * Add a call to a record of this size, which has room for it, and has a text.  The new
 * size; 0: the call does not fit.  "usage": of the call; NULL: nothing.
 */
static pg_attribute_always_inline uint32
item_add(FusedRecord *record, uint32 size, const Call *call, const Usage *usage, int64 end)
{
	FusedCall  *item = (FusedCall *) ((char *) record + size);
	uint64	   *to = (uint64 *) (item + 1);
	uint64		number = call->number - record->header.call;
	uint64		start = (uint64) (call->start - record->start);
	uint64		time = (uint64) (end - record->start);
	uint16		flags = call->flags;

	if (unlikely((number >> 8 | (start | time | (uint64) call->busy) >> 32 |
				  (record->text ^ call->text)) != 0))
		return 0;
	if (call->query_id != 0)
	{
		if (record->query_id == 0)
			record->query_id = call->query_id;
		else if (record->query_id != call->query_id)
			return 0;
		flags |= FUSED_QUERY_ID;
	}
	if (call->rows != 0)
	{
		flags |= FUSED_ROWS;
		*to++ = call->rows;
	}
	if (call->plan != 0)
	{
		flags |= FUSED_PLAN;
		*to++ = call->plan;
	}
	if (usage)
		to = add_usage(to, usage, &flags);
	item->kind = (uint8) call->kind;
	item->number = (uint8) number;
	item->flags = flags;
	item->start = (uint32) start;
	item->end = (uint32) time;
	item->busy = (uint32) call->busy;
	return (uint32) ((char *) to - (char *) record);
}

#pragma GCC visibility pop

#endif							/* ITEMS_H */
