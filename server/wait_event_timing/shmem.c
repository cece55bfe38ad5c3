/*-------------------------------------------------------------------------
 * shmem.c
 *		The shared state: in the main segment, or in a named dynamic one.
 *
 * Preloaded by the server, the module has a slot for every PGPROC, auxiliary
 * processes included.  Loaded by a session (PostgreSQL 17 and later) it has
 * slots for those that can load it.  The segment's name carries version and
 * size: a rebuilt module never meets another's layout.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "waits.h"
#include "../common/rate.h"
#if HAVE_NAMED_DSM
#include "../common/segment.h"
#endif

#define SHORTEST_BASE_NS (10 * 1000 * 1000)

/* A setting that can change while sessions come would give them segments of their own */
#define DYNAMIC_STATEMENTS 4096

/* Of dynamic memory, besides the rings; and no more than a share of its volume */
#define LARGEST_SEGMENT ((uint64) 48 * 1024 * 1024)

/* Valid only in a process that has a PGPROC: see shmem_get() */
static Shared *attached = NULL;
static bool dynamic = false;

static bool counter;			/* may the processor's counter serve? */
static ClockPair at_load;
static shmem_request_hook_type previous_request;
static shmem_startup_hook_type previous_startup;

static uint32
slots_wanted(void)
{
	return MaxBackends + (dynamic ? 0 : NUM_AUXILIARY_PROCS);
}

static uint32
buckets_wanted(void)
{
	uint32		wanted = dynamic ? DYNAMIC_STATEMENTS : (uint32) waits_statements_max;
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

/* Slots, buckets and rings need no more than the zeros that fresh memory comes with. */
static void
initialise(Shared *shared)
{
	memset(shared, 0, sizeof(*shared));
	shared->tranche = LWLockNewTrancheId();
	LWLockInitialize(&shared->lock, shared->tranche);
	/* one for all processes */
	shared->rate = rate_since(counter, at_load, SHORTEST_BASE_NS);
	shared->nslots = slots_wanted();
	shared->nbuckets = buckets_wanted();
	shared->reset_at = GetCurrentTimestamp();
	pg_atomic_init_u64(&shared->evictions, 0);
	pg_atomic_init_u64(&shared->resets, 0);
	pg_atomic_init_u64(&shared->refused, 0);
	pg_atomic_init_u64(&shared->oldest_ended, 0);
}

static void
request_memory(void)
{
	if (previous_request)
		previous_request();
	RequestAddinShmemSpace(total_size());
}

static void
create_in_main_segment(void)
{
	bool		found;

	if (previous_startup)
		previous_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	attached = ShmemInitStruct("wait_event_timing", total_size(), &found);
	if (!found)
		initialise(attached);
	LWLockRelease(AddinShmemInitLock);
	LWLockRegisterTranche(attached->tranche, "wait_event_timing");
}

#if HAVE_NAMED_DSM
static void
initialise_segment(void *segment)
{
	/* what others have left in the region that is reserved */
	if (min_dynamic_shared_memory > 0)
		memset(segment, 0, total_size());
	initialise(segment);
}

static void
attach_dynamic_segment(void)
{
	uint64		most = Min(LARGEST_SEGMENT, ring_memory_segment());

	if (MyProc == NULL || !IsTransactionState())
		return;
	if (total_size() > most)
	{
		ereport(WARNING,
				(errmsg("wait_event_timing is not usable in this session"),
				 errdetail("For %d connections it needs %zu MB of dynamic shared memory, and "
						   "takes at most %zu MB.", MaxBackends, total_size() / (1024 * 1024) + 1,
						   (Size) (most / (1024 * 1024))),
				 errhint("Add wait_event_timing to \"shared_preload_libraries\" and restart.")));
		return;
	}
	attached = segment_attach_in_session("wait_event_timing", WAITS_VERSION, total_size(),
										 initialise_segment);
	if (attached)
		LWLockRegisterTranche(attached->tranche, "wait_event_timing");
}
#endif

/* Called when the library is loaded. */
void
shmem_init(void)
{
	counter = clock_trust().counter;
	at_load = clock_pair(counter);
	ring_memory_init("wait_event_timing");
	if (process_shared_preload_libraries_in_progress)
	{
		previous_request = shmem_request_hook;
		shmem_request_hook = request_memory;
		previous_startup = shmem_startup_hook;
		shmem_startup_hook = create_in_main_segment;
		return;
	}
	dynamic = true;
#if HAVE_NAMED_DSM
	attach_dynamic_segment();
#endif
}

/*
 * The shared state, or NULL where there is none.  Children inherit the pointer,
 * but some have let go of the memory behind it: only a PGPROC proves that it is
 * there.
 */
Shared *
shmem_get(void)
{
	return MyProc != NULL ? attached : NULL;
}

bool
shmem_is_dynamic(void)
{
	return dynamic;
}
