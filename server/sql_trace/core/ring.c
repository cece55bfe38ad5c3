/*-------------------------------------------------------------------------
 * ring.c
 *		The ring of a session: room for records.
 *
 * Nobody is waited for: what no reader has fetched is overwritten and counted.
 * Records may wrap around the end of the ring, their headers' sizes never do,
 * as all begin at multiples of 8.
 *-------------------------------------------------------------------------
 */
#include "ring.h"
#include "ring_store.h"

Trace		trace = {.request = true};
RingRecord	ring_record;

static uint64 given_up;			/* number of the last record that made room */

uint64
ring_head(void)
{
	return pg_atomic_read_u64(&trace.ring->head);
}

/*
 * No record begins where the oldest should: something wrote over the ring.  Give
 * up all of it, and count what no reader is known to have.
 */
static uint64
give_up_all(uint64 head, uint64 tail, uint64 drained)
{
	Counters   *counters = &trace.slot->trace.counters;

	if (head > drained)
	{
		counters->lost_records += trace.number - given_up;
		counters->lost_bytes += head - Max(tail, drained);
	}
	given_up = trace.number;
	return head;
}

/* Give up the oldest records until "size" bytes more have room. */
void
ring_make_room(uint64 size)
{
	Ring	   *ring = trace.ring;
	TraceEntry *entry = &trace.slot->trace;
	uint64		head = pg_atomic_read_u64(&ring->head);
	uint64		tail = pg_atomic_read_u64(&ring->tail);
	uint64		drained = pg_atomic_read_u64(&ring->drained);

	while (head + size - tail > ring->size)
	{
		uint32		oldest = *(uint32 *) &ring->data[tail & (ring->size - 1)];

		if (unlikely(!record_size_fits(oldest, head - tail)))
		{
			tail = give_up_all(head, tail, drained);
			break;
		}
		/* the recorder's records are there to be overwritten */
		if (tail >= drained && trace.reason != REASON_RECORDER)
		{
			entry->counters.lost_records++;
			entry->counters.lost_bytes += oldest;
		}
		tail += oldest;
		given_up++;
	}
	pg_atomic_write_u64(&ring->tail, tail);
	/* a reader of bytes that we are about to write sees that they are gone */
	pg_memory_barrier();
}

/* A new ring has no records. */
void
ring_reset(void)
{
	trace.number = trace.calls = given_up = 0;
}
