/*-------------------------------------------------------------------------
 * open_unit.c
 *		The unit under way, where a reader finds it when the trial has ended.
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
