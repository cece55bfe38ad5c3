/*-------------------------------------------------------------------------
 * shmem.c
 *		The shared state: in the main segment, or in a named dynamic one.
 *
 * It says who is traced; the records are in a dynamic segment of each session.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "../common/rate.h"
#if HAVE_NAMED_DSM
#include "../common/segment.h"
#endif

#define SHORTEST_BASE_NS (10 * 1000 * 1000)

/* Valid only in a process that has a PGPROC: see shmem_get() */
static Shared *attached = NULL;

static bool counter;			/* may the processor's counter serve? */
static ClockPair at_load;
static shmem_request_hook_type previous_request;
static shmem_startup_hook_type previous_startup;

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
initialise(Shared *shared)
{
	memset(shared, 0, total_size());
	shared->tranche = LWLockNewTrancheId();
	LWLockInitialize(&shared->lock, shared->tranche);
	/* one for all processes */
	shared->rate = rate_since(counter, at_load, SHORTEST_BASE_NS);
	shared->nslots = MaxBackends;
	pg_atomic_init_u64(&shared->refused, 0);
	pg_atomic_init_u64(&shared->oldest_ended, 0);
	pg_atomic_init_u32(&shared->writer, 0);
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		pg_atomic_init_u32(&shmem_slot(shared, i)->asked, 0);
		pg_atomic_init_u32(&shmem_slot(shared, i)->asked_level, NOT_ASKED);
	}
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
	attached = ShmemInitStruct("sql_trace", total_size(), &found);
	if (!found)
		initialise(attached);
	LWLockRelease(AddinShmemInitLock);
	LWLockRegisterTranche(attached->tranche, "sql_trace");
}

#if HAVE_NAMED_DSM
static void
initialise_segment(void *segment)
{
	initialise(segment);
}

static void
attach_dynamic_segment(void)
{
	if (MyProc == NULL || !IsTransactionState())
		return;
	attached = segment_attach_in_session("sql_trace", TRACE_VERSION, total_size(),
										 initialise_segment);
	if (attached)
		LWLockRegisterTranche(attached->tranche, "sql_trace");
}
#endif

/* Called when the library is loaded. */
void
shmem_init(void)
{
	counter = clock_trust().counter;
	at_load = clock_pair(counter);
	ring_memory_init("sql_trace");
	if (process_shared_preload_libraries_in_progress)
	{
		previous_request = shmem_request_hook;
		shmem_request_hook = request_memory;
		previous_startup = shmem_startup_hook;
		shmem_startup_hook = create_in_main_segment;
		return;
	}
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

/* The same, for functions that are of no use without it */
Shared *
shmem_get_or_error(void)
{
	Shared	   *shared = shmem_get();

	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sql_trace is not loaded in this session"),
				 errhint("Add it to \"shared_preload_libraries\" and restart the server; from "
						 "PostgreSQL 17 on \"session_preload_libraries\" serves new sessions.")));
	return shared;
}
