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
 * Begin a record of "size" bytes, header included.  The caller puts header and fields
 * into the ring, and ends it.  False: it is too large for the ring.
 */
bool
record_begin(RecordKind kind, int depth, uint64 call, int64 time, Size size, RecordHeader *header)
{
	record_flush();
	record_time = time;
	return ring_begin(kind, depth, call, time, size, header);
}

static bool
put_whole(RecordKind kind, int depth, uint64 call, int64 time, void *record, Size size,
		  const void *rest, Size rest_size)
{
	if (!ring_begin(kind, depth, call, time, size + rest_size, record))
		return false;
	ring_put(record, size);
	if (rest_size > 0)
		ring_put(rest, rest_size);
	ring_end();
	return true;
}

/*
 * Write a record, whose header is filled in, and what follows its fields.  False: it
 * is too large for the ring.
 */
bool
record_write_with(RecordKind kind, int depth, uint64 call, int64 time, void *record, Size size,
				  const void *rest, Size rest_size)
{
	record_flush();
	record_time = time;
	return put_whole(kind, depth, call, time, record, size, rest, rest_size);
}

/*
 * The same of one that goes ahead of what is kept back, as that is going to name it:
 * so it has the time of the last record, lest times run backwards.
 */
bool
record_write_ahead(RecordKind kind, uint64 call, void *record, Size size, const void *rest,
				   Size rest_size)
{
	if (fused.open && trace.depth == 0 && record_held_back)
		record_held_back();
	if (!fused.open || trace.depth > 0)
		return record_write_with(kind, trace.depth, call, timeline_now(), record, size, rest,
								 rest_size);
	return put_whole(kind, 0, call, record_time, record, size, rest, rest_size);
}

/* Write the record of a call. */
void
record_call(const Call *call, int depth, int64 end, int64 cpu)
{
	CallRecord	record;
	uint64		counters[NUSAGE + 1];
	uint64	   *after;

	record.call_kind = call->kind;
	record.flags = call->flags;
	after = add_usage(counters, &call->usage, &record.flags);
	if (call->fetches > 1)
	{
		record.flags |= CALL_SEVERAL;
		*after++ = call->fetches;
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
	(void) record_write_with(RECORD_CALL, depth, call->number, end, &record, sizeof(record),
							 counters, (after - counters) * sizeof(uint64));
}
