/*-------------------------------------------------------------------------
 * joining.c
 *		Which sessions take part in a trial: joining and leaving.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fnmatch.h>

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/plancache.h"

#include "pgtare.h"

/* The generation that we looked at last, and under which application name */
static uint64 considered;
static char considered_name[NAMEDATALEN];
static bool exit_registered;

static bool
is_client_session(void)
{
	return MyProc != NULL && MyProcPort != NULL && MyBackendType == B_BACKEND &&
		!am_walsender && IsUnderPostmaster;
}

/* Copy the definition; false if it changed or ended while we copied. */
static bool
copy_definition(Shared *shared, uint64 generation)
{
	if (session.def == NULL)
	{
		session.def = MemoryContextAllocExtended(TopMemoryContext, sizeof(TrialDef),
												 MCXT_ALLOC_NO_OOM);
		if (session.def == NULL)
			return false;
	}
	memcpy(session.def, &shared->def, sizeof(TrialDef));
	pg_read_barrier();
	return pg_atomic_read_u64(&shared->generation) == generation;
}

static bool
is_asked_for(const TrialDef *def)
{
	const char *name = application_name ? application_name : "";

	/* neither the client's own session, nor an operator who looks at the trial */
	if (def->owner_pid == MyProcPid || strcmp(name, "pgtare") == 0)
		return false;
	if (OidIsValid(def->database) && def->database != MyDatabaseId)
		return false;
	if (OidIsValid(def->role) && def->role != GetSessionUserId())
		return false;
	if (!rights_session_may_join(def))
		return false;
	if (fnmatch(def->text + def->application, name, 0) != 0)
		return false;
	/* a fixed draw for each session, so that a session does not come and go */
	if (def->participation != UINT32_MAX &&
		hash_combine(murmurhash32((uint32) MyProcPid ^ (uint32) def->seed),
					 murmurhash32((uint32) MyStartTimestamp)) >= def->participation)
		return false;
	return true;
}

/* Get a ring and a number in the trial, unless a new one has begun since. */
static void
enter(Shared *shared, uint64 generation)
{
	int			number;

	if (pgtare_begin_write(shared, generation))
	{
		session.ring = ring_take(shared, &number);
		if (session.ring == NULL)
			pg_atomic_fetch_add_u32(&shared->no_ring, 1);
		else
		{
			session.generation = generation;
			session.records = pgtare_ring_pool(shared) + (uint64) number * shared->ring_records;
			session.mask = shared->ring_records - 1;
			session.backend = pg_atomic_fetch_add_u32(&shared->next_backend, 1);
			/* the ring's counter goes on where its last owner stopped */
			session.negative = pg_atomic_read_u64(&session.ring->negative);
			session.shared = shared;
			session.restored = true;
			session.joined = true;
			pg_atomic_fetch_add_u32(&shared->joined_now, 1);
		}
	}
	pgtare_end_write(shared);
}

/* Give the ring back, unless a new trial has divided the pool anew. */
static void
let_go(void)
{
	session.joined = false;
	if (pgtare_begin_write(session.shared, session.generation))
	{
		pg_atomic_fetch_sub_u32(&session.shared->joined_now, 1);
		(void) open_close(session.ring);
		/* the next owner must see all that we wrote */
		pg_write_barrier();
		pg_atomic_write_u32(&session.ring->state, RING_RETIRED);
	}
	pgtare_end_write(session.shared);
	session.ring = NULL;
	session.records = NULL;
	settings_release();
}

/* Runs before dynamic shared memory is detached; nothing may touch it later. */
static void
leave_at_exit(int code, Datum arg)
{
	if (session.joined)
	{
		unit_left_open();
		let_go();
	}
	session.shared = NULL;
}

/* Called while the session is idle, outside a transaction. */
void
joining_consider(void)
{
	Shared	   *shared;
	uint64		generation;
	const char *name = application_name ? application_name : "";

	if (!pgtare_enabled || !is_client_session())
		return;
	shared = pgtare_shared();
	if (shared == NULL || !pg_atomic_read_u32(&shared->running))
		return;
	generation = pg_atomic_read_u64(&shared->generation);
	if ((generation & 1) ||
		(generation == considered && strcmp(name, considered_name) == 0))
		return;
	pg_read_barrier();
	if (!copy_definition(shared, generation))
		return;
	considered = generation;
	strlcpy(considered_name, name, sizeof(considered_name));
	if (!is_asked_for(session.def))
		return;
	if (!settings_bind(session.def))
	{
		if (pgtare_begin_write(shared, generation))
			pg_atomic_fetch_add_u32(&shared->cannot_join, 1);
		pgtare_end_write(shared);
		return;
	}
	if (!exit_registered)
	{
		before_shmem_exit(leave_at_exit, (Datum) 0);
		exit_registered = true;
	}
	enter(shared, generation);
	if (!session.joined)
		settings_release();
}

/* Called while the session is idle, outside a transaction. */
void
joining_leave(void)
{
	settings_restore();
	/* prepared statements and functions are planned anew, with the session's own values */
	if (settings_shape_plans())
		ResetPlanCache();
	let_go();
}
