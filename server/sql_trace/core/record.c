/*-------------------------------------------------------------------------
 * record.c
 *		Writing a record: what goes before it, and whether the trace goes on after it.
 *
 * ring_store.h stores the bytes.
 *-------------------------------------------------------------------------
 */
#include "ring_store.h"

Trace		trace = {.request = true};

/* See sqltrace.h */
void		(*record_held_back) (void) = NULL;
void		(*record_limit_met) (LevelReason reason) = NULL;

static int64 record_time;

/* No record stops the trace. */
void
record_unlimited(void)
{
	trace.stop_position = PG_UINT64_MAX;
	trace.stop_time = PG_INT64_MAX;
}

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
	if (unlikely(ring_record.end > trace.stop_position))
		record_limit_met(REASON_BYTES);
	else if (unlikely(record_time > trace.stop_time))
		record_limit_met(REASON_DURATION);
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
