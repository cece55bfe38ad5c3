/*-------------------------------------------------------------------------
 * ring_write.h
 *		Writing records into the trace of a process, as waits are folded in.
 *
 * A record's number is in it when it is complete and only then, so that a
 * reader notices one that is being written or has been overwritten.
 *-------------------------------------------------------------------------
 */
#ifndef RING_WRITE_H
#define RING_WRITE_H

#include "waits.h"

#define RECORDS_IN_A_LINE (64 / (int) sizeof(TraceRecord))
/* Records to have in the caches: when a statement begins, and ahead of many that come at once */
#define BEGIN_WITH 8
#define AHEAD 32

typedef struct RingWriter
{
	TraceRing  *ring;			/* NULL: no trace */
	const ClockRate *rate;
	uint64		mask;
	uint64		number;			/* of the next record */
} RingWriter;

static inline TraceRecord *
ring_record(TraceRing *ring, uint64 number)
{
	return &ring->records[number & (ring->nrecords - 1)];
}

/*
 * A statement begins, and some records will come: a ring is larger than the
 * caches near, so have its next lines ready by then.
 */
static inline void
ring_prefetch(TraceRing *ring)
{
	uint64		number = pg_atomic_read_u64(&ring->written);

	for (int i = 0; i < BEGIN_WITH; i += RECORDS_IN_A_LINE)
		__builtin_prefetch((void *) ring_record(ring, number + i), 1);
}

static inline RingWriter
ring_begin(TraceRing *ring, const ClockRate *rate)
{
	RingWriter	writer = {ring, rate};

	if (ring)
	{
		writer.mask = ring->nrecords - 1;
		writer.number = pg_atomic_read_u64(&ring->written);
	}
	return writer;
}

/* Of a wait, its length in ns; of a mark, its value. */
static inline void
ring_put(RingWriter *writer, const Pending *wait, int64 length)
{
	TraceRecord *records = writer->ring->records;
	TraceRecord *record = &records[writer->number & writer->mask];
	int64		since = wait->start - capture.ring_base;
	uint64		ignored = 0;
	bool		mark = WAIT_CLASS(wait->event) == 0;

	__builtin_prefetch((void *) &records[(writer->number + AHEAD) & writer->mask], 1);
	record->seq = 0;
	pg_write_barrier();
	record->kind = mark ? (uint16) wait->event : RECORD_WAIT;
	record->depth = mark ? (uint16) wait->calls : 0;
	record->event = mark ? 0 : EVENT_NUMBER(wait->event);
	record->calls = mark ? 0 : wait->calls;
	record->value = length;
	/* a wait can have begun before its ring */
	record->start_ns = capture.ring_base_ns +
		(likely(since >= 0) ? clock_ns(writer->rate, since, &ignored) :
		 -clock_ns(writer->rate, -since, &ignored));
	pg_write_barrier();
	record->seq = (uint32) ++writer->number;
}

static inline void
ring_end(const RingWriter *writer)
{
	pg_write_barrier();
	pg_atomic_write_u64(&writer->ring->written, writer->number);
}

#endif							/* RING_WRITE_H */
