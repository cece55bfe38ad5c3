/*-------------------------------------------------------------------------
 * ring.c
 *		Observations on their way from a session to the process that drains them.
 *
 * A ring has one writer, its session, and one reader, the drain function under
 * the lock.  A full ring counts a loss; nobody ever waits for anybody.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "pgtare.h"

static bool
take(Ring *ring, RingState state)
{
	uint32		expected = state;

	return pg_atomic_read_u32(&ring->state) == state &&
		pg_atomic_compare_exchange_u32(&ring->state, &expected, RING_OWNED);
}

/*
 * Take over a ring that is free, or else one whose owner has gone.  The latter
 * may hold records that nobody has read yet: we write on behind them.
 */
Ring *
ring_take(Shared *shared, int *number)
{
	static const RingState by_preference[] = {RING_FREE, RING_RETIRED};

	for (int p = 0; p < (int) lengthof(by_preference); p++)
		for (int i = 0; i < shared->nrings; i++)
			if (take(&shared->ring[i], by_preference[p]))
			{
				*number = i;
				return &shared->ring[i];
			}
	return NULL;
}

/* Store the observation of a unit that is over in the session's ring. */
void
ring_put(const Observation *observation)
{
	Shared	   *shared = session.shared;
	Ring	   *ring = session.ring;

	if (pgtare_begin_write(shared, session.generation))
	{
		uint64		head = pg_atomic_read_u64(&ring->head);

		if (!open_close(ring))
			;					/* a reader has taken it as one still open */
		else if (head - pg_atomic_read_u64(&ring->tail) > session.mask)
			pg_atomic_write_u64(&ring->lost, pg_atomic_read_u64(&ring->lost) + 1);
		else
		{
			session.records[head & session.mask] = *observation;
			pg_write_barrier();
			pg_atomic_write_u64(&ring->head, head + 1);
		}
		pg_atomic_write_u64(&ring->negative, session.negative);
	}
	pgtare_end_write(shared);
}

/* Append a ring's unread records at "to", aligned as bytes are; returns how many fitted. */
static uint64
read_ring(Shared *shared, int number, char *to, uint64 room)
{
	Ring	   *ring = &shared->ring[number];
	const Observation *records = pgtare_ring_pool(shared) + (uint64) number * shared->ring_records;
	uint64		tail = pg_atomic_read_u64(&ring->tail);
	uint64		unread = pg_atomic_read_u64(&ring->head) - tail;
	uint64		n = Min(unread, room);

	pg_read_barrier();
	for (uint64 i = 0; i < n; i++)
		memcpy(to + i * sizeof(Observation), &records[(tail + i) & (shared->ring_records - 1)],
			   sizeof(Observation));
	/* the records must be copied before their places are given back */
	pg_memory_barrier();
	pg_atomic_write_u64(&ring->tail, tail + n);
	return n;
}

PG_FUNCTION_INFO_V1(pgtare_trial_drain);

/*
 * trial_drain(max_bytes int) returns bytea: unread observations, 64 bytes each,
 * and once the trial is over the units that it left open.
 */
Datum
pgtare_trial_drain(PG_FUNCTION_ARGS)
{
	Shared	   *shared = pgtare_require_shared();
	int32		max_bytes = PG_GETARG_INT32(0);
	uint64		room;
	uint64		n = 0;
	uint64		unread = 0;
	bool		over;
	bytea	   *result;

	if (max_bytes < (int32) sizeof(Observation) || max_bytes > 256 * 1024 * 1024)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_bytes must lie between %zu and %d",
						sizeof(Observation), 256 * 1024 * 1024)));

	/* one reader at a time: the second would hand out the same records */
	rights_lock_as_owner(shared, false);
	over = !pgtare_is_running(shared);
	for (int i = 0; i < shared->nrings; i++)
		unread += pg_atomic_read_u64(&shared->ring[i].head) -
			pg_atomic_read_u64(&shared->ring[i].tail);
	room = Min(unread + (over ? shared->nrings : 0), max_bytes / sizeof(Observation));
	result = palloc(VARHDRSZ + room * sizeof(Observation));
	for (int i = 0; i < shared->nrings && n < room; i++)
		n += read_ring(shared, i, VARDATA(result) + n * sizeof(Observation), room - n);
	if (over)
		n += open_take(shared, VARDATA(result) + n * sizeof(Observation), room - n);
	LWLockRelease(&shared->lock);

	SET_VARSIZE(result, VARHDRSZ + n * sizeof(Observation));
	PG_RETURN_BYTEA_P(result);
}
