/*-------------------------------------------------------------------------
 * ring.c
 *		The ring of a session: room for records.
 *
 * Nobody is waited for: what no reader has fetched is overwritten and counted.
 * Records may wrap around the end of the ring, their headers' sizes never do,
 * as all begin at multiples of 8.
 *
 * A reader copies records while the ring is written: it copies what is whole, looks
 * again at where the oldest whole record is, and leaves out what was overwritten in
 * between.
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

/* Bytes of the ring, wherever they are */
void
ring_read(const Ring *ring, uint64 from, uint64 n, char *to)
{
	uint64		at = from & (ring->size - 1);
	uint64		first = Min(n, ring->size - at);

	memcpy(to, &ring->data[at], first);
	memcpy(to + first, ring->data, n - first);
}

/*
 * Whether a record begins there.  Values that clients sent may look like records, so
 * this is found by the sizes of those before it.
 */
bool
ring_begins_record(const Ring *ring, uint64 position)
{
	uint64		at = pg_atomic_read_u64(&unconstify(Ring *, ring)->drained);

	if (at > position)
		at = 0;
	while (at < position)
	{
		uint64		tail = pg_atomic_read_u64(&unconstify(Ring *, ring)->tail);
		RecordHeader header;

		if (at < tail)
		{
			at = tail;
			continue;
		}
		ring_read(ring, at, Min(sizeof(header), position - at), (char *) &header);
		pg_read_barrier();
		if (pg_atomic_read_u64(&unconstify(Ring *, ring)->tail) > at)
			continue;			/* it has been overwritten meanwhile */
		if (position - at < sizeof(header) || !record_size_fits(header.size, position - at))
			return false;
		at += header.size;
	}
	return true;
}

/*
 * How many bytes from the beginning are whole records; "first": what the first
 * one takes, though it may not be whole; "sound": nothing else is there
 */
static uint64
whole_records(const char *data, uint64 n, bool cut, uint32 *first, bool *sound)
{
	uint64		at = 0;

	*first = 0;
	*sound = true;
	while (at < n)
	{
		uint32		size = n - at >= sizeof(RecordHeader) ?
			((const RecordHeader *) (data + at))->size : 0;

		if (cut && n - at < sizeof(RecordHeader))
			break;
		if (!record_size_fits(size, cut ? PG_UINT32_MAX : n - at))
		{
			*sound = false;
			break;
		}
		if (at == 0)
			*first = size;
		if (size > n - at)
			break;
		at += size;
	}
	return at;
}

/* Whole records from a position on that is no later than the end; the buffer has so much room. */
RingCopy
ring_copy(Ring *ring, uint64 from, char *buffer, Size room)
{
	RingCopy	copy;
	uint64		head = pg_atomic_read_u64(&ring->head);
	uint64		tail;
	uint64		n;
	bool		cut;
	uint32		first;

	pg_read_barrier();
	tail = pg_atomic_read_u64(&ring->tail);
	copy.position = Max(from, tail);
	copy.data = buffer;
	n = head > copy.position ? head - copy.position : 0;
	cut = n > room;
	n = Min(n, room);
	ring_read(ring, copy.position, n, buffer);
	pg_read_barrier();
	tail = pg_atomic_read_u64(&ring->tail);

	/* what was overwritten during the copy is lost */
	if (tail > copy.position)
	{
		uint64		skip = Min(tail - copy.position, n);

		copy.data += skip;
		copy.position += skip;
		n -= skip;
	}
	copy.size = whole_records(copy.data, n, cut, &first, &copy.sound);
	copy.next = copy.position + (copy.size > 0 ? copy.size : first);
	return copy;
}

/* Readers have what lies before; never back. */
void
ring_note_drained(Ring *ring, uint64 position)
{
	uint64		drained = pg_atomic_read_u64(&ring->drained);

	while (drained < position &&
		   !pg_atomic_compare_exchange_u64(&ring->drained, &drained, position))
		;
}
