/*-------------------------------------------------------------------------
 * shmem.c
 *		The shared state (shmem.h).
 *-------------------------------------------------------------------------
 */
#include "shmem.h"

#include "miscadmin.h"
#include "storage/shmem.h"

#include "../../common/rate.h"
#include "../../common/ring_memory.h"
#include "../../common/version.h"

#define SHORTEST_BASE_NS (10 * 1000 * 1000)

static RateBase at_load;

static Size
slots_offset(void)
{
	return TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(Shared));
}

static Size
slot_size(void)
{
	return TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(Slot));
}

static Size
total_size(void)
{
	return add_size(slots_offset(), mul_size(slot_size(), MaxBackends));
}

/* The slot of a client's process */
Slot *
shmem_slot(Shared *shared, uint32 number)
{
	return (Slot *) ((char *) shared + slots_offset() + number * slot_size());
}

static void
initialise(void *fresh)
{
	Shared	   *shared = fresh;

	memset(shared, 0, total_size());	/* which atomic words begin with, too */
	/* one for all processes */
	shared->rate = rate_since(clock_counter_usable(), &at_load, SHORTEST_BASE_NS);
	shared->nslots = MaxBackends;
	for (uint32 i = 0; i < shared->nslots; i++)
		pg_atomic_init_u32(&shmem_slot(shared, i)->asked_level, NOT_ASKED);
}

ModuleShmem shmem_memory = {
	"sql_trace", "sql_trace", PGTARE_VERSION, total_size, initialise
};

/* Called when the library is loaded. */
void
shmem_init(void)
{
	at_load = rate_base();
	ring_memory_init("sql_trace");
	module_shmem_init(&shmem_memory);
}

/* The shared state, for functions that are of no use without it */
Shared *
shmem_get_or_error(void)
{
	return module_shmem_get_or_error(&shmem_memory);
}

/* The traces of sessions, then those of sessions that have ended */
TraceEntry *
shmem_trace(Shared *shared, uint32 i)
{
	return i < shared->nslots ? &shmem_slot(shared, i)->trace : &shared->ended[i - shared->nslots];
}

/* The trace of a process, maybe of one that has ended; the latest if there are several of that number */
bool
shmem_find_trace(Shared *shared, int pid, bool ended, TraceEntry *found)
{
	found->handle = 0;
	LWLockAcquire(&shared->lock, LW_SHARED);
	for (uint32 i = 0; i < shared->nslots + (ended ? MAX_ENDED : 0); i++)
	{
		const TraceEntry *entry = shmem_trace(shared, i);

		if (ring_place_is_there(entry->handle) && entry->pid == pid &&
			(found->handle == 0 || entry->started > found->started))
			*found = *entry;
	}
	LWLockRelease(&shared->lock);
	return found->handle != 0;
}
