/*-------------------------------------------------------------------------
 * shmem.c
 *		The shared state of a trial.
 *
 * A dynamic segment is smaller, since it lives in /dev/shm until the server
 * restarts.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "pgtare.h"

static int	ring_kb = 32 * 1024;	/* setting */

#define SESSION_RING_BYTES (UINT64CONST(8) * 1024 * 1024)

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

static Size total_size(void);
static void initialise(void *memory);
static bool may_attach(void);

static ModuleShmem memory = {
	"pgtare", "pgtare", PGTARE_VERSION, total_size, initialise, may_attach
};

static uint64
ring_bytes(void)
{
	return memory.dynamic ? SESSION_RING_BYTES : (uint64) ring_kb * 1024;
}

static Size
total_size(void)
{
	return add_size(add_size(header_size(), PG_CACHE_LINE_SIZE), ring_bytes());
}

static void
initialise(void *fresh)
{
	Shared	   *shared = fresh;

	memset(shared, 0, header_size());	/* which atomic words begin with, too */
	shared->ring_bytes = ring_bytes();
	shared->nwriters = MaxBackends;
	pg_atomic_init_u64(&shared->lease_ticks, NO_LEASE);
}

/* No subtransaction can be had in parallel mode, and others than clients never take part. */
static bool
may_attach(void)
{
	return !IsInParallelMode() && MyBackendType == B_BACKEND;
}

/* Dynamic memory is detached between the two kinds of exit callbacks. */
static void
detach_at_exit(int code, Datum arg)
{
	memory.attached = NULL;
}

/* Called when the library is loaded. */
void
pgtare_shmem_init(void)
{
	DefineCustomIntVariable("pgtare.ring_memory",
							"Shared memory for observations not yet read.",
							"Has an effect only if the server preloads the library.",
							&ring_kb, 32 * 1024, 1024, INT_MAX / 1024,
							process_shared_preload_libraries_in_progress ? PGC_POSTMASTER : PGC_SIGHUP,
							GUC_UNIT_KB,
							NULL, NULL, NULL);
	module_shmem_init(&memory);
	if (memory.dynamic && memory.attached)
		before_shmem_exit(detach_at_exit, (Datum) 0);
}

/* The shared state, or NULL if there is none */
Shared *
pgtare_shared(void)
{
	return module_shmem_get(&memory);
}

/* The shared state, or an error that says how to have one */
Shared *
pgtare_require_shared(void)
{
	Shared	   *shared = pgtare_shared();

	if (shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pgtare has no shared memory in this server"),
#if HAVE_NAMED_DSM
				 errhint("Free some of /dev/shm, or add pgtare to \"shared_preload_libraries\" "
						 "and restart.")));
#else
				 errhint("Add pgtare to \"shared_preload_libraries\" and restart.")));
#endif
	return shared;
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
 * Has the client of the trial that runs been silent for too long?  A session of
 * an earlier trial may read the lease of a new one: it can end only its own.
 */
bool
pgtare_lease_expired(Shared *shared, int64 now_ticks)
{
	return now_ticks >= (int64) pg_atomic_read_u64(&shared->lease_ticks);
}

/* Does a trial run?  One past its deadline or its lease is ended here. */
bool
pgtare_is_running(Shared *shared)
{
	uint64		generation = pg_atomic_read_u64(&shared->generation);
	int64		now_ticks;

	if (generation == 0 || !pgtare_runs(shared, generation))
		return false;
	now_ticks = clock_ticks(shared->def.rate.counter);
	if (now_ticks >= shared->def.deadline_ticks)
		pgtare_end_trial(shared, generation, END_DEADLINE);
	else if (pgtare_lease_expired(shared, now_ticks))
		pgtare_end_trial(shared, generation, END_LEASE_EXPIRED);
	else
		return true;
	return false;
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
