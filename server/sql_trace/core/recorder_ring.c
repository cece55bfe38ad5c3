/*-------------------------------------------------------------------------
 * recorder_ring.c
 *		The ring of a session in the area: whose it is, and how it grows.
 *
 * Its session claims it as a request begins, and lets it rest when that has been
 * answered and no transaction is open.  While it rests, others who need memory may
 * take it.
 *
 * It grows between requests, while there is room, up to the size that is set: the
 * records are copied into a block of twice the size, under the same positions, and
 * readers find them there.  Whoever reads the old block goes on with it.
 *-------------------------------------------------------------------------
 */
#include "dictionary.h"
#include "module.h"
#include "ring.h"

#include "miscadmin.h"
#include "utils/guc.h"

#define NEVER PG_UINT64_MAX

int			recorder_ring_kb = 256;
RingBlock	recorder_block;
uint64		recorder_grow_at = NEVER;

static int	memory_kb = 0;

/*
 * A request begins, or is answered: our ring, which rested, is written again.
 * False: it has been taken.  Its entry stays until the next ring begins, as no lock
 * may be had here: readers see that the ring is gone.
 */
bool
recorder_claim(void)
{
	if (likely(ring_block_claim(&recorder_block)))
		return true;
	trace.ring = NULL;
	return false;
}

/* It is tried when the ring, whose oldest record is there, is nearly full, if it may be larger. */
void
recorder_may_grow(void)
{
	Ring	   *ring = trace.ring;

	recorder_grow_at = ring != NULL && ring->size * 2 <= (uint64) recorder_ring_kb * 1024 ?
		pg_atomic_read_u64(&ring->tail) + ring->size / 4 * 3 : NEVER;
}

/* Records keep their positions, though not their places. */
static void
copy_records(const Ring *from, Ring *to)
{
	uint64		head = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &from->head));
	uint64		at = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &from->tail));

	while (at < head)
	{
		uint64		here = at & (from->size - 1);
		uint64		there = at & (to->size - 1);
		uint64		n = Min(head - at, Min(from->size - here, to->size - there));

		memcpy(&to->data[there], &from->data[here], n);
		at += n;
	}
}

/* Nobody else writes to our ring, except "drained": at worst too much loss is reported. */
void
recorder_grow(void *unused)
{
	Shared	   *shared = shmem_get();
	TraceEntry *mine = &trace.slot->trace;
	Ring	   *old = trace.ring;
	Ring	   *ring;
	RingHandle	gone = mine->handle;
	RingBlock	larger;

	if (!ring_area()->take(old->size * 2, false, &larger))
	{
		recorder_grow_at = ring_head() + old->size;	/* not again and again */
		return;
	}
	ring = larger.memory;
	memcpy(ring, old, offsetof(Ring, data));
	ring->size = larger.room;
	ring->session.ring_bytes = ring->size;
	copy_records(old, ring);
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	mine->handle = larger.handle;
	mine->ring_bytes = ring->size;
	LWLockRelease(&shared->lock);
	recorder_block = larger;
	trace.ring = ring;
	ring_place_free(gone);
	recorder_may_grow();
}

/*
 * Called when the library is loaded.  A session that loads it by itself has no
 * memory for such rings; see define_unused() in ../writer/keeper.c.
 */
void
recorder_init(void)
{
	static char *unused;
	uint64		bytes;

	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("sql_trace.recorder_memory",
								"Shared memory that all recorders take together, reserved at the start.",
								"0: there is no recorder.",
								&memory_kb, 0, 0, 64 * 1024 * 1024,
								PGC_POSTMASTER, GUC_UNIT_KB, NULL, NULL, NULL);
	else
		DefineCustomStringVariable("sql_trace.recorder_memory",
								   "Of the recorder, which needs a server that preloads the library.",
								   NULL,
								   &unused, "",
								   PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("sql_trace.recorder_ring",
							"Size to which the recorder's rings of a session grow, of calls and of waits each.",
							NULL,
							&recorder_ring_kb, 256, SMALLEST_RING_KB, 1024 * 1024,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);
	bytes = (uint64) memory_kb * 1024;
	ring_area_init(bytes - dictionary_init(bytes));
}
