/*-------------------------------------------------------------------------
 * ring_copy.c
 *		Copying records out of a session's ring while it is written.
 *
 * A writer does not wait for readers.  We copy what is whole, look again at
 * where the oldest whole record is, and leave out what was overwritten in
 * between.
 *-------------------------------------------------------------------------
 */
#include "ring.h"

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
