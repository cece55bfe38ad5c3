/*-------------------------------------------------------------------------
 * shmem.c
 *		The shared state: in the main segment, or in a named dynamic one.
 *
 * Preloaded by the server, the module asks for room in the main segment.
 * Loaded by a session (PostgreSQL 17 and later) it uses a dynamic segment,
 * smaller, since that lives in /dev/shm until the server restarts.  Its name
 * carries version and size: a rebuilt module never meets another's layout.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "pgtare.h"
#include "module.h"
#if HAVE_NAMED_DSM
#include "../common/segment.h"
#endif

#define SESSION_RING_BYTES (UINT64CONST(8) * 1024 * 1024)

/* Valid only in a process that has a PGPROC: see pgtare_shared() */
static Shared *attached = NULL;

static shmem_request_hook_type previous_request;
static shmem_startup_hook_type previous_startup;

static Size
header_size(void)
{
	return MAXALIGN(offsetof(Shared, writer) + sizeof(Writer) * MaxBackends);
}

/* The pool begins on a cache line, after the header. */
Observation *
pgtare_ring_pool(Shared *shared)
{
	return (Observation *) CACHELINEALIGN((char *) shared + header_size());
}

static Size
total_size(uint64 ring_bytes)
{
	return add_size(add_size(header_size(), PG_CACHE_LINE_SIZE), ring_bytes);
}

static void
initialise(Shared *shared, uint64 ring_bytes)
{
	memset(shared, 0, header_size());
	shared->tranche = LWLockNewTrancheId();
	LWLockInitialize(&shared->lock, shared->tranche);
	shared->ring_bytes = ring_bytes;
	shared->nwriters = MaxBackends;
	pg_atomic_init_u64(&shared->generation, 0);
	pg_atomic_init_u32(&shared->running, 0);
	pg_atomic_init_u32(&shared->closing, 0);
	pg_atomic_init_u32(&shared->end_reason, END_NONE);
	pg_atomic_init_u32(&shared->next_backend, 0);
	pg_atomic_init_u32(&shared->joined_now, 0);
	pg_atomic_init_u32(&shared->no_ring, 0);
	pg_atomic_init_u32(&shared->cannot_join, 0);
	for (int i = 0; i < MAX_ARMS; i++)
		pg_atomic_init_u32(&shared->failed_arm[i], 0);
	for (int i = 0; i < MAX_RINGS; i++)
	{
		pg_atomic_init_u32(&shared->ring[i].state, RING_FREE);
		pg_atomic_init_u64(&shared->ring[i].head, 0);
		pg_atomic_init_u64(&shared->ring[i].tail, 0);
		pg_atomic_init_u64(&shared->ring[i].lost, 0);
		pg_atomic_init_u64(&shared->ring[i].negative, 0);
		pg_atomic_init_u32(&shared->ring[i].open.state, OPEN_NONE);
		pg_atomic_init_u32(&shared->ring[i].open.version, 0);
	}
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&shared->writer[i].writing, 0);
}

static void
request_memory(void)
{
	if (previous_request)
		previous_request();
	RequestAddinShmemSpace(total_size((uint64) pgtare_ring_memory * 1024));
}

static void
create_in_main_segment(void)
{
	uint64		ring_bytes = (uint64) pgtare_ring_memory * 1024;
	bool		found;

	if (previous_startup)
		previous_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	attached = ShmemInitStruct("pgtare", total_size(ring_bytes), &found);
	if (!found)
		initialise(attached, ring_bytes);
	LWLockRelease(AddinShmemInitLock);
	LWLockRegisterTranche(attached->tranche, "pgtare");
}

#if HAVE_NAMED_DSM
static void
initialise_segment(void *segment)
{
	initialise(segment, SESSION_RING_BYTES);
}

/* Dynamic memory is detached between the two kinds of exit callbacks. */
static void
detach_at_exit(int code, Datum arg)
{
	attached = NULL;
}

static void
attach_dynamic_segment(void)
{
	/* no subtransaction can be had in these, and they never take part */
	if (MyProc == NULL || !IsTransactionState() || IsInParallelMode() ||
		MyBackendType != B_BACKEND)
		return;
	attached = segment_attach_or_warn("pgtare", PGTARE_VERSION, total_size(SESSION_RING_BYTES),
									  initialise_segment);
	if (attached)
	{
		LWLockRegisterTranche(attached->tranche, "pgtare");
		before_shmem_exit(detach_at_exit, (Datum) 0);
	}
}
#endif

/* Called when the library is loaded. */
void
pgtare_shmem_init(void)
{
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
#else
	ereport(WARNING,
			(errmsg("pgtare is not usable in this session"),
			 errhint("Before PostgreSQL 17 the server itself must load it: add pgtare to "
					 "\"shared_preload_libraries\" and restart.")));
#endif
}

/*
 * The shared state, or NULL where there is none.  Children inherit the pointer,
 * but some have let go of the memory behind it: only a PGPROC proves that it is
 * there.
 */
Shared *
pgtare_shared(void)
{
	return MyProc != NULL ? attached : NULL;
}

/* Does the trial of this generation run? */
bool
pgtare_runs(Shared *shared, uint64 generation)
{
	return pg_atomic_read_u32(&shared->running) == (uint32) generation;
}

/* End the trial of this generation, unless it has ended already. */
void
pgtare_end_trial(Shared *shared, uint64 generation, EndReason reason)
{
	uint32		expected = (uint32) generation;

	/* no trial has this generation before the first one */
	if (generation != 0 &&
		pg_atomic_compare_exchange_u32(&shared->running, &expected, 0))
	{
		pg_atomic_write_u32(&shared->end_reason, reason);
		shared->ended = GetCurrentTimestamp();
	}
}

/*
 * Bracket what a session writes for the trial of its generation: rings, and the
 * counters of the trial.  A new trial takes them over, so we must not write
 * once it has begun.  We raise our flag first and look at the generation
 * afterwards; the starter moves the generation first and waits for the flags
 * afterwards.  Nothing between the two may wait or throw; end the bracket
 * whatever begin_write says.
 */
bool
pgtare_begin_write(Shared *shared, uint64 generation)
{
	pg_atomic_write_u32(&shared->writer[MY_PROC_NUMBER].writing, 1);
	pg_memory_barrier();
	return pg_atomic_read_u64(&shared->generation) == generation;
}

void
pgtare_end_write(Shared *shared)
{
	pg_write_barrier();
	pg_atomic_write_u32(&shared->writer[MY_PROC_NUMBER].writing, 0);
}
