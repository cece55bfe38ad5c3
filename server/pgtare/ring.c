/*-------------------------------------------------------------------------
 * ring.c
 *		Observations on their way from a session to the process that drains them.
 *
 * A ring has one writer, its session, and one reader, the drain function under
 * the lock.  A full ring counts a loss; nobody ever waits for anybody.
 *
 * A trial that ends leaves transactions open, and it is the slow ones that are
 * open at any time: to leave them out would make a slow arm look fast.  A
 * session in the midst of one cannot report it, so it publishes each unit as
 * the unit begins, next to its ring; the drain after the end takes what is
 * still open there, each unit once.  A unit that ends before it was taken is
 * recorded as any other.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "pgtare.h"

/* How often a reader looks again while the session writes: some nanoseconds */
#define PATIENCE 100000

/*
 * Where to write how far the unit under way has come, or NULL if a new trial has
 * begun.  Its times are complete up to "since"; from there on it is busy, or
 * waits for its client.  Call open_end() afterwards, whatever this returned.
 */
OpenUnit *
open_begin(void)
{
	Open	   *open;

	if (!pgtare_begin_write(session.shared, session.generation))
		return NULL;
	open = &session.ring->open;
	pg_atomic_write_u32(&open->version, pg_atomic_read_u32(&open->version) + 1);
	pg_write_barrier();
	return &open->unit;
}

void
open_end(const OpenUnit *unit)
{
	if (unit)
	{
		Open	   *open = &session.ring->open;

		pg_write_barrier();
		pg_atomic_write_u32(&open->version, pg_atomic_read_u32(&open->version) + 1);
		if (pg_atomic_read_u32(&open->state) == OPEN_NONE)
			pg_atomic_write_u32(&open->state, OPEN_UNIT);
	}
	pgtare_end_write(session.shared);
}

/* The unit is over; false if a reader has taken it before.  Within a bracket of writing. */
bool
open_close(Ring *ring)
{
	return pg_atomic_exchange_u32(&ring->open.state, OPEN_NONE) != OPEN_TAKEN;
}

void
open_clear(Ring *ring)
{
	pg_atomic_write_u32(&ring->open.state, OPEN_NONE);
	pg_atomic_write_u32(&ring->open.version, 0);
}

/* Copy what a session published; false if it was stopped in the midst of it. */
static bool
copy(Open *open, OpenUnit *unit)
{
	for (int i = 0; i < PATIENCE; i++)
	{
		uint32		version = pg_atomic_read_u32(&open->version);

		pg_read_barrier();
		*unit = open->unit;
		pg_read_barrier();
		if ((version & 1) == 0 && pg_atomic_read_u32(&open->version) == version)
			return true;
	}
	return false;
}

/* Units that the end of the trial left open, at "to", aligned as bytes are; how many. */
uint64
open_take(Shared *shared, char *to, uint64 room)
{
	int64		now = clock_ticks(shared->def.rate.counter);
	uint64		ignored = 0;
	uint64		n = 0;

	for (int i = 0; i < shared->nrings && n < room; i++)
	{
		Open	   *open = &shared->ring[i].open;
		uint32		expected = OPEN_UNIT;
		OpenUnit	unit;
		int64		more;

		if (!pg_atomic_compare_exchange_u32(&open->state, &expected, OPEN_TAKEN) ||
			!copy(open, &unit))
			continue;
		more = clock_ns(&shared->def.rate, now - unit.since_ticks, &ignored);
		if (unit.busy)
			unit.so_far.service_ns += more;
		else
			unit.so_far.client_ns += more;
		memcpy(to + n * sizeof(Observation), &unit.so_far, sizeof(Observation));
		n++;
	}
	return n;
}

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
 * trial_drain(max_bytes int, trial bigint) returns bytea: unread observations, 72
 * bytes each, and once the trial is over the units that it left open.  Trial 0 is
 * the last that was started.
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
	if (!rights_lock_as_owner(shared, (uint64) PG_GETARG_INT64(1), false))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the trial is over, and a later one has taken its place")));
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
