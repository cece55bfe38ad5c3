/*-------------------------------------------------------------------------
 * record.c
 *		Writing a record: what goes before it.
 *
 * ring_store.h stores the bytes.
 *-------------------------------------------------------------------------
 */
#include "record.h"
#include "ring_store.h"
#include "timeline.h"

void		(*record_held_back) (void) = NULL;
void		(*record_kept_back) (void) = NULL;
Fused		fused;

int64		record_time;

/*
 * Begin a record of "size" bytes, header included; they are padded to a
 * multiple of 8.  The caller puts header and fields, and ends it.  False: it is
 * too large for the ring.
 */
bool
record_begin(RecordKind kind, int depth, uint64 call, int64 time, Size size, RecordHeader *header)
{
	record_flush();
	record_time = time;
	return ring_begin(kind, depth, call, time, size, header);
}

/*
 * Begin a record that goes ahead of what is kept back, as that is going to name it:
 * so it has the time of the last record, lest times run backwards.
 */
bool
record_begin_ahead(RecordKind kind, uint64 call, Size size, RecordHeader *header)
{
	if (fused.open && trace.depth == 0 && record_held_back)
		record_held_back();
	if (!fused.open || trace.depth > 0)
		return record_begin(kind, trace.depth, call, timeline_now(), size, header);
	return ring_begin(kind, 0, call, record_time, size, header);
}

/* Add to the record. */
void
record_put(const void *data, Size size)
{
	ring_put(data, size);
}

/* Fill up to a multiple of 8. */
void
record_pad(void)
{
	ring_pad();
}

/* The record is whole. */
void
record_end(void)
{
	ring_end();
}

/* Write a record of fixed size, whose header is filled in. */
bool
record_write(RecordKind kind, int depth, uint64 call, int64 time, void *record, Size size)
{
	if (!record_begin(kind, depth, call, time, size, record))
		return false;
	ring_put(record, size);
	record_end();
	return true;
}

/* Write the record of a call. */
void
record_call(const Call *call, int depth, int64 end, int64 cpu)
{
	CallRecord	record;
	uint64		counters[NUSAGE + 1];
	uint64	   *after;
	Size		size;

	record.call_kind = call->kind;
	record.flags = call->flags;
	after = add_usage(counters, &call->usage, &record.flags);
	if (call->fetches > 1)
	{
		record.flags |= CALL_SEVERAL;
		*after++ = call->fetches;
	}
	size = (after - counters) * sizeof(uint64);
	record.sqlstate = call->sqlstate;
	record.parent = call->parent;
	record.text = call->text;
	record.query_id = call->query_id;
	record.plan = call->plan;
	record.execution = call->execution;
	record.start = call->start;
	record.busy = call->busy;
	record.cpu = cpu;
	record.rows = call->rows;
	if (!record_begin(RECORD_CALL, depth, call->number, end, sizeof(record) + size, &record.header))
		return;
	record_put(&record, sizeof(record));
	record_put(counters, size);
	record_end();
}
