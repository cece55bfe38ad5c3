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

static bool
any(const Usage *usage, int from, int to)
{
	uint64		bits = 0;

	for (int i = from; i < to; i++)
		bits |= usage->counter[i];
	return bits != 0;
}

/* Write the record of a call. */
void
record_call(const Call *call, int depth, int64 end, int64 cpu)
{
	CallRecord	record;
	Size		size = sizeof(record);

	record.call_kind = call->kind;
	record.flags = call->flags;
	if (any(&call->usage, USAGE_SHARED, USAGE_LOCAL_TEMP))
	{
		record.flags |= CALL_SHARED;
		size += (USAGE_LOCAL_TEMP - USAGE_SHARED) * sizeof(uint64);
	}
	if (any(&call->usage, USAGE_LOCAL_TEMP, USAGE_WAL))
	{
		record.flags |= CALL_LOCAL_TEMP;
		size += (USAGE_WAL - USAGE_LOCAL_TEMP) * sizeof(uint64);
	}
	if (any(&call->usage, USAGE_WAL, NUSAGE))
	{
		record.flags |= CALL_WAL;
		size += (NUSAGE - USAGE_WAL) * sizeof(uint64);
	}
	if (call->fetches > 1)
	{
		record.flags |= CALL_SEVERAL;
		size += sizeof(uint64);
	}
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
	if (!record_begin(RECORD_CALL, depth, call->number, end, size, &record.header))
		return;
	record_put(&record, sizeof(record));
	if (record.flags & CALL_SHARED)
		record_put(&call->usage.counter[USAGE_SHARED], (USAGE_LOCAL_TEMP - USAGE_SHARED) * sizeof(uint64));
	if (record.flags & CALL_LOCAL_TEMP)
		record_put(&call->usage.counter[USAGE_LOCAL_TEMP], (USAGE_WAL - USAGE_LOCAL_TEMP) * sizeof(uint64));
	if (record.flags & CALL_WAL)
		record_put(&call->usage.counter[USAGE_WAL], (NUSAGE - USAGE_WAL) * sizeof(uint64));
	if (record.flags & CALL_SEVERAL)
		record_put(&call->fetches, sizeof(uint64));
	record_end();
}
