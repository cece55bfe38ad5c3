/*-------------------------------------------------------------------------
 * shmem.c
 *		The shared state: slots, the table by statement, and where rings are.
 *
 * Preloaded by the server, the module has a slot for every PGPROC, auxiliary
 * processes included.  Loaded by a session (PostgreSQL 17 and later) it has
 * slots for those that can load it.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/shmem.h"

#include "waits.h"
#include "../common/rate.h"

#define SHORTEST_BASE_NS (10 * 1000 * 1000)

/* A setting that can change while sessions come would give them segments of their own */
#define DYNAMIC_STATEMENTS 4096

/* Of dynamic memory, besides the rings; and no more than a share of its volume */
#define LARGEST_SEGMENT ((uint64) 48 * 1024 * 1024)

static Size total_size(void);
static void initialise(void *fresh);
static bool may_attach(void);

ModuleShmem shmem_memory = {
	"wait_event_timing", "wait_event_timing", PGTARE_VERSION, total_size, initialise, may_attach
};

static int	statements_most = 4096;

static RateBase at_load;

static uint32
slots_wanted(void)
{
	return MaxBackends + (shmem_memory.dynamic ? 0 : NUM_AUXILIARY_PROCS);
}

static uint32
buckets_wanted(void)
{
	uint32		wanted = shmem_memory.dynamic ? DYNAMIC_STATEMENTS : (uint32) statements_most;
	uint32		n = 1;

	while (n * STATEMENT_WAYS < wanted)
		n *= 2;
	return n;
}

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
	Size		size = add_size(PG_CACHE_LINE_SIZE, slots_offset());

	size = add_size(size, mul_size(slot_size(), slots_wanted()));
	size = add_size(size, mul_size(sizeof(StatementBucket), buckets_wanted()));
	return add_size(size, mul_size(sizeof(RingEntry), slots_wanted()));
}

Slot *
shmem_slot(Shared *shared, uint32 number)
{
	return (Slot *) ((char *) shared + slots_offset() + number * slot_size());
}

StatementBucket *
shmem_bucket(Shared *shared, uint32 number)
{
	return (StatementBucket *) ((char *) shared + slots_offset() + shared->nslots * slot_size()) +
		number;
}

/* The entry of the trace of a live process */
RingEntry *
shmem_ring(Shared *shared, uint32 number)
{
	return (RingEntry *) shmem_bucket(shared, shared->nbuckets) + number;
}

/* Slots, buckets and rings, and all atomic words, need no more than the zeros that fresh memory has. */
static void
initialise(void *fresh)
{
	Shared	   *shared = fresh;

	/* in the region that is reserved for dynamic memory others have left something */
	memset(shared, 0, shmem_memory.dynamic && min_dynamic_shared_memory > 0 ? total_size() :
		   sizeof(*shared));
	/* one for all processes */
	shared->rate = rate_since(clock_counter_usable(), &at_load, SHORTEST_BASE_NS);
	shared->nslots = slots_wanted();
	shared->nbuckets = buckets_wanted();
	shared->made_at = shared->reset_at = GetCurrentTimestamp();
}

/* A session may, if the memory takes no large part of what all sessions share. */
static bool
may_attach(void)
{
	uint64		most = Min(LARGEST_SEGMENT, ring_memory_segment());

	if (total_size() <= most)
		return true;
	ereport(warning_in_leader(),
			(errmsg("wait_event_timing is not usable in this session"),
			 errdetail("For %d connections it needs %zu MB of dynamic shared memory, and "
					   "takes at most %zu MB.", MaxBackends, total_size() / (1024 * 1024) + 1,
					   (Size) (most / (1024 * 1024))),
			 errhint("Add wait_event_timing to \"shared_preload_libraries\" and restart.")));
	return false;
}

/* Called when the library is loaded. */
void
shmem_init(void)
{
	at_load = rate_base();
	ring_memory_init("wait_event_timing");
	module_shmem_init(&shmem_memory);
	DefineCustomIntVariable("wait_event_timing.statements_max",
							"Pairs of statement and wait event that are kept.",
							"Has an effect if the server itself loads the library.",
							&statements_most, 4096, 64, 1 << 20,
							process_shared_preload_libraries_in_progress ? PGC_POSTMASTER : PGC_SIGHUP, 0,
							NULL, NULL, NULL);
	ring_memory_define("wait_event_timing.trace_memory",
					   "Shared memory that all traces may take, of waits and of calls together.");
}
