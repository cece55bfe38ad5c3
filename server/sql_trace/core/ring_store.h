/*-------------------------------------------------------------------------
 * ring_store.h
 *		Storing the bytes of a record in the ring of a session; for record.c, fused.c and binds.c.
 *
 * Inline, as each record passes through it.
 *-------------------------------------------------------------------------
 */
#ifndef RING_STORE_H
#define RING_STORE_H

#include "ring.h"

#pragma GCC visibility push(hidden)

/* Some records, of some cache lines each */
#define FETCHED_AHEAD 512

/* The record being written */
typedef struct RingRecord
{
	uint64		cursor;			/* where its next byte goes */
	uint64		end;
} RingRecord;

extern RingRecord ring_record;

extern void ring_make_room(uint64 size);

/*
 * Where the next records go is soon looked at, for what is overwritten there,
 * and written: fetch it into the cache, as the ring is larger than that.
 */
static inline void
ring_fetch_ahead(uint64 size)
{
	const Ring *ring = trace.ring;
	uint64		from = ring_record.end + FETCHED_AHEAD;

	/* processors fetch lines by pairs */
	for (uint64 at = from; at < from + Min(size, FETCHED_AHEAD); at += PG_CACHE_LINE_SIZE)
		__builtin_prefetch(&ring->data[at & (ring->size - 1)], 1);
}

/* Add to the record. */
static inline void
ring_put(const void *data, Size size)
{
	Ring	   *ring = trace.ring;
	uint64		at = ring_record.cursor & (ring->size - 1);
	uint64		first = Min(size, ring->size - at);

	Assert(ring_record.cursor + size <= ring_record.end);
	memcpy(&ring->data[at], data, first);
	if (unlikely(first < size))
		memcpy(ring->data, (const char *) data + first, size - first);
	ring_record.cursor += size;
}

/* Fill up to a multiple of 8. */
static inline void
ring_pad(void)
{
	static const char zeros[8] = {0};

	if (ring_record.cursor % 8 != 0)
		ring_put(zeros, 8 - ring_record.cursor % 8);
}

/* Begin a record as record_begin() does. */
static inline bool
ring_begin(RecordKind kind, int depth, uint64 call, int64 time, Size size, RecordHeader *header)
{
	uint64		whole = TYPEALIGN(8, size);

	if (trace.ring == NULL || whole > trace.ring->size / 2)
		return false;
	if (unlikely(pg_atomic_read_u64(&trace.ring->head) + whole -
				 pg_atomic_read_u64(&trace.ring->tail) > trace.ring->size))
		ring_make_room(whole);
	ring_record.cursor = pg_atomic_read_u64(&trace.ring->head);
	ring_record.end = ring_record.cursor + whole;
	ring_fetch_ahead(whole);
	header->size = (uint32) whole;
	header->kind = kind;
	header->depth = (uint16) Min(depth, PG_UINT16_MAX);
	header->number = ++trace.number;
	header->time = time;
	header->call = call;
	return true;
}

/* The record is whole: let others see it. */
static inline void
ring_end(void)
{
	TraceEntry *entry = &trace.slot->trace;

	ring_pad();
	Assert(ring_record.cursor == ring_record.end);
	pg_write_barrier();
	pg_atomic_write_u64(&trace.ring->head, ring_record.end);
	entry->counters.records = trace.number;
	entry->counters.bytes = ring_record.end;
}

#pragma GCC visibility pop

#endif							/* RING_STORE_H */
