/*-------------------------------------------------------------------------
 * control.c
 *		What SQL requests: resetting counters, setting another session's level.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

#include "sql.h"

PG_FUNCTION_INFO_V1(wait_event_timing_reset);
PG_FUNCTION_INFO_V1(wait_event_timing_set);

/* The slot of a process, or a warning and NULL */
static Slot *
slot_of(Shared *shared, int pid)
{
	for (uint32 i = 0; pid != 0 && i < shared->nslots; i++)
	{
		Slot	   *slot = shmem_slot(shared, i);

		if (slot->pid == pid && sql_is_live(i, pid))
			return slot;
	}
	ereport(WARNING, (errmsg("PID %d is not a process that wait_event_timing watches", pid)));
	return NULL;
}

static void
reset_all(Shared *shared)
{
	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	for (uint32 i = 0; i < shared->nslots; i++)
		pg_atomic_fetch_add_u64(&shmem_slot(shared, i)->reset_wanted, 1);
	memset(shared->totals, 0, sizeof(shared->totals));
	shared->overflows = shared->negative = shared->missed = shared->statements_missed = 0;
	shared->total_overflows = shared->processes = 0;
	shared->reset_at = GetCurrentTimestamp();
	LWLockRelease(&shared->lock);
	ended_give_up(shared);
	statements_reset(shared);
}

/* Also where the session is cancelled or ended in the midst of a reset */
static void
reset_ends(int code, Datum shared)
{
	pg_atomic_fetch_add_u64(&((Shared *) DatumGetPointer(shared))->resets, RESET_ENDS);
}

/*
 * Owners clear their counters themselves: until they do, readers see them as
 * empty.  A reset is announced before and counted when that is so: one who finds
 * no reset under way and the same count before the counters and after them has
 * read counters of one time.
 */
Datum
wait_event_timing_reset(PG_FUNCTION_ARGS)
{
	Shared	   *shared = sql_shared();
	Slot	   *slot = PG_ARGISNULL(0) ? NULL : slot_of(shared, PG_GETARG_INT32(0));

	if (slot == NULL && !PG_ARGISNULL(0))
		PG_RETURN_BOOL(false);
	/* a full barrier, as is the addition at the end */
	pg_atomic_fetch_add_u64(&shared->resets, RESET_BEGINS);
	PG_ENSURE_ERROR_CLEANUP(reset_ends, PointerGetDatum(shared));
	{
		if (slot)
			pg_atomic_fetch_add_u64(&slot->reset_wanted, 1);
		else
			reset_all(shared);
	}
	PG_END_ENSURE_ERROR_CLEANUP(reset_ends, PointerGetDatum(shared));
	reset_ends(0, PointerGetDatum(shared));
	PG_RETURN_BOOL(true);
}

/*
 * A background process can begin its trace, and let go of it, when it has
 * nothing to do, and sleep for long.  Others do that at work, and a wake-up
 * would cut a wait in two.
 */
static void
write_level(Shared *shared, Slot *slot, int level)
{
	bool		has_ring;

	pg_atomic_write_u32(&slot->level, level);
	/* a process that is making a ring looks at the level once others see the ring */
	pg_memory_barrier();
	has_ring = shmem_ring(shared, slot->number)->handle != 0;
	ring_let_end(slot, has_ring);
	if (has_ring != (level == CAPTURE_TRACE) && slot->backend_type != B_BACKEND &&
		slot->backend_type != PARALLEL_WORKER)
		SetLatch(&GetPGProcByNumber(slot->number)->procLatch);
}

/* A process in the midst of a wait that it captures sees to that itself. */
static void
stop_timing(Shared *shared, Slot *slot)
{
	int64		now;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	/* before we look: a wait that begins from here on has a later time */
	now = clock_source_read(slot->clock);
	pg_memory_barrier();
	if (pg_atomic_read_u32(&slot->level) == CAPTURE_OFF && slot->current_event == 0)
		timing_stop(slot, shared, now);
	LWLockRelease(&shared->lock);
}

/* Given back: what the process has configured; a worker goes on as its leader, whose level it gets. */
static int
set_level(Shared *shared, Slot *slot, int level, bool give_back)
{
	if (give_back)
		pg_atomic_write_u32(&slot->asked, 0);
	else
		pg_atomic_fetch_add_u32(&slot->asked, 1);
	pg_memory_barrier();
	if (level < 0)
		level = (int) pg_atomic_read_u32(&slot->configured);
	write_level(shared, slot, level);
	stop_timing(shared, slot);
	return level;
}

/* Workers to come ask their leader; those that run are informed. */
static void
set_level_of_workers(Shared *shared, const Slot *leader, int level, bool give_back)
{
	for (uint32 i = 0; i < shared->nslots; i++)
	{
		Slot	   *slot = shmem_slot(shared, i);

		if (slot != leader && slot->pid != 0 && slot->pid == GetPGProcByNumber(i)->pid &&
			GetPGProcByNumber(i)->lockGroupLeader == GetPGProcByNumber(leader->number))
			(void) set_level(shared, slot, level, give_back);
	}
}

/* The level of a name, or an error */
static int
level_of(const char *name)
{
	const struct config_enum_entry *level;

	for (level = level_names; level->name && pg_strcasecmp(level->name, name) != 0; level++)
		;
	if (level->name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid capture level: \"%s\"", name),
				 errhint("Levels are those of wait_event_timing.capture; NULL gives the level back "
						 "to the settings of the process.")));
	return level->val;
}

Datum
wait_event_timing_set(PG_FUNCTION_ARGS)
{
	Shared	   *shared = sql_shared();
	bool		give_back = PG_ARGISNULL(1);
	int			level = give_back ? -1 : level_of(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	Slot	   *slot;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	slot = slot_of(shared, PG_GETARG_INT32(0));
	if (slot)
	{
		level = set_level(shared, slot, level, give_back);
		set_level_of_workers(shared, slot, level, give_back);
	}
	PG_RETURN_BOOL(slot != NULL);
}
