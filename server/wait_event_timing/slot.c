/*-------------------------------------------------------------------------
 * slot.c
 *		The slot of a process: taking it, and letting it go.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"

#include "waits.h"

static pg_atomic_uint32 never = {CAPTURE_OFF};	/* of a process that has let its slot go */

static void
leave_at_exit(int code, Datum arg)
{
	slot_detach();
}

/* The slot of the leader whose parallel worker we are, or NULL */
static Slot *
slot_of_leader(Shared *shared)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;
	Slot	   *slot;
	uint32		number;

	if (leader == NULL || leader == MyProc)
		return NULL;
	number = (uint32) (leader - ProcGlobal->allProcs);
	if (number >= shared->nslots)
		return NULL;
	slot = shmem_slot(shared, number);
	return slot->pid == leader->pid ? slot : NULL;
}

static bool
is_worker_of_server(const char *function)
{
	return MyBgworkerEntry && strcmp(MyBgworkerEntry->bgw_library_name, "postgres") == 0 &&
		strcmp(MyBgworkerEntry->bgw_function_name, function) == 0;
}

/* A parallel worker can wait before the server itself says that it is one. */
static int
own_type(void)
{
	if (IsParallelWorker() || is_worker_of_server("ParallelWorkerMain"))
		return PARALLEL_WORKER;
	return is_worker_of_server("ApplyLauncherMain") ? LOGICAL_LAUNCHER : MyBackendType;
}

/*
 * Take the slot that belongs to this process, and return whether it captures.
 * Called at the first wait of a process, in the middle of whatever it does, so
 * it takes no lock.
 */
bool
slot_attach(void)
{
	Shared	   *shared = shmem_get();
	Slot	   *slot;
	Slot	   *leader;

	/* no PGPROC yet, or never: the postmaster, the syslogger, dead-end children */
	if (shared == NULL || MY_PROC_NUMBER >= shared->nslots)
		return false;

	slot = shmem_slot(shared, MY_PROC_NUMBER);
	pg_atomic_write_u32(&slot->changes, pg_atomic_read_u32(&slot->changes) | 1);
	pg_write_barrier();
	stats_clear_slot(slot);
	slot->records = 0;
	slot->reset_done = pg_atomic_read_u64(&slot->reset_wanted);
	slot->current_event = 0;
	slot->npending = 0;
	slot->turns = 0;
	pg_atomic_write_u64(&slot->timed_since, 0);
	slot->timed_until = 0;
	pg_atomic_write_u64(&slot->timed_ns, 0);
	slot->clock = capture_clock;
	slot->backend_type = own_type();
	slot->database = MyProc->databaseId;
	slot->role = MyProc->roleId;
	slot->number = MY_PROC_NUMBER;
	/* others that find us by our PID must see whose process this is */
	pg_write_barrier();
	slot->pid = MyProcPid;
	/* who sets our leader's level sees us, or we see that level: see write_level() */
	pg_memory_barrier();
	leader = slot_of_leader(shared);
	pg_atomic_write_u32(&slot->configured, capture_setting);
	slot->recorded = leader && leader->recorded;
	pg_atomic_write_u32(&slot->level,
						leader ? (int) pg_atomic_read_u32(&leader->level) : capture_setting);
	pg_atomic_write_u32(&slot->asked, 0);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->changes, pg_atomic_read_u32(&slot->changes) + 1);

	capture.clock = capture_clock;
	capture.lock_entry = -1;
	capture.slot = slot;
	capture.level = &slot->level;

	/*
	 * Dynamic memory is gone when on_shmem_exit callbacks run.  In the main
	 * segment we can stay until then, and so see the waits of the exit; and to
	 * register a before_shmem_exit callback here would break code that expects
	 * its own to be the latest.
	 */
	if (!shmem_memory.dynamic)
		on_shmem_exit(leave_at_exit, (Datum) 0);
	else
		before_shmem_exit(leave_at_exit, (Datum) 0);
	return pg_atomic_read_u32(&slot->level) != CAPTURE_OFF;
}

/* Does this process have a slot?  It takes one if it has not waited yet. */
bool
slot_present(void)
{
	if (capture.slot == NULL && pg_atomic_read_u32(capture.level) != CAPTURE_OFF)
		(void) slot_attach();
	return capture.slot != NULL;
}

/* Add what this process has seen to the totals, and let its slot go. */
void
slot_detach(void)
{
	Shared	   *shared = shmem_get();
	Slot	   *slot = capture.slot;

	if (slot == NULL)
		return;
	/* a background worker can die from a signal in the midst of anything */
	capture_abandon();
	capture.lock_entry = -1;
	capture_fold();
	if (shared)
		recorder_leave(shared);
	capture.slot = NULL;
	capture.level = &never;
	if (shared == NULL)
		return;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	timing_stop(slot, shared, clock_source_read(slot->clock));
	stats_fold_into_totals(shared, slot);
	pg_atomic_write_u32(&slot->changes, pg_atomic_read_u32(&slot->changes) | 1);
	pg_write_barrier();
	slot->pid = 0;
	slot->current_event = 0;
	pg_atomic_write_u64(&slot->timed_ns, 0);
	stats_clear_slot(slot);
	pg_write_barrier();
	pg_atomic_write_u32(&slot->changes, pg_atomic_read_u32(&slot->changes) + 1);
	LWLockRelease(&shared->lock);
}

/* A parallel worker captures what its leader does, however that was set. */
void
slot_follow_leader(void)
{
	Shared	   *shared = shmem_get();
	Slot	   *leader = shared ? slot_of_leader(shared) : NULL;

	if (leader == NULL || capture.slot == NULL)
		return;
	pg_atomic_write_u32(&capture.slot->level, pg_atomic_read_u32(&leader->level));
	pg_read_barrier();
	capture.slot->recorded = leader->recorded;
	timing_follow_level();
}
