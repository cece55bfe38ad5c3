/*-------------------------------------------------------------------------
 * keeper.c
 *		The background worker that writes kept traces to files.
 *
 * Each is one file (keeper_files.c).  What is in a file takes no shared memory any more.
 * When the volume is full, what is kept stays in memory.  So does a trace that cannot be a file,
 * for which no other has to wait.
 *-------------------------------------------------------------------------
 */
#include "keeper.h"
#include "../core/module.h"

#include <dlfcn.h>
#include <unistd.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "../../common/guarded.h"
#include "../../common/lately.h"
#include "../../common/pg_compat.h"

#define RETRY_INTERVAL_MS 60000
#define RESTART_INTERVAL_S 2
#define LOCK_INTERVAL_MS 1000
#define MOST_BLOCKERS 8
#define ASKED_MS 10000			/* what is written later than this would be of another time */

PGDLLEXPORT void sql_trace_keeper_main(Datum argument);

typedef struct Work
{
	const KeptTrace *kept;
	int			directory;
	bool		unfit;			/* it cannot be a file, whatever becomes of the directory */
	bool		ended;			/* of a live ring: its place has been filled or given up */
} Work;

/* By place, what is not to be tried again until the configuration is reloaded */
static int64 unfit[MAX_PLACES];
static bool failure_reported = false;	/* until a trace has been written */

/* This trace cannot be written, others may be: that is no matter of the directory. */
static void
report_unfit(void *argument, const char *why)
{
	Work	   *work = argument;
	const KeptTrace *kept = work->kept;

	work->unfit = true;
	if (!failure_reported)
		ereport(WARNING,
				(errmsg("sql_trace cannot write the kept trace " INT64_FORMAT " to a file: %s",
						kept->id, why),
				 kept->is_live ? 0 :
				 errhint("It stays in memory, and is tried again when the configuration is reloaded.")));
	failure_reported = true;
}

static void
report_not_looked(void *argument, const char *cause)
{
	if (!failure_reported)
		ereport(WARNING, (errmsg("sql_trace cannot look who holds up others: %s", cause)));
	failure_reported = true;
}

/* Is there room for a file of that size, or can room be made? */
static bool
has_room(Work *work, uint64 size, bool for_finding)
{
	if (size > keeper_most_size(for_finding))
	{
		report_unfit(work, "it would be larger than sql_trace.keep_files_size allows");
		return false;
	}
	return keeper_has_room(work->directory, size, for_finding);
}

/* Write a trace that a trigger had kept. */
static bool
write_file(Work *work, char *name, Size size)
{
	StringInfoData bytes;

	keeper_name_file(work->kept, name, size);
	return kept_file(work->kept, &bytes) && has_room(work, bytes.len, false) &&
		keeper_write_file(work->directory, name, &bytes);
}

static void
write_kept(void *argument)
{
	Work	   *work = argument;
	char		name[KEPT_FILE_NAME];

	if (!write_file(work, name, sizeof(name)))
		return;
	(void) kept_done(work->kept->id, name);
	keeper_reported = failure_reported = false;
	keeper_refused_at = 0;
}

/* Write what a session has done that holds up another, as far as its ring tells by now. */
static void
write_blocker(void *argument)
{
	Work	   *work = argument;
	char		name[KEPT_FILE_NAME];

	kept_end_file(work->kept, write_file(work, name, sizeof(name)) ? name : NULL);
	work->ended = true;
}

/* Does a session have the ring of which somebody asked for the trace?  Then where that is now */
static bool
is_there(KeptTrace *kept)
{
	TraceEntry	now;

	if (!shmem_find_trace(shmem_get(), kept->trace.pid, false, &now) ||
		now.started != kept->trace.started)
		return false;
	kept->trace.handle = now.handle;
	return true;
}

/* Write what somebody asked for, unless its session has gone, or there is no room. */
static void
write_asked(void *argument)
{
	Work	   *work = argument;
	KeptTrace	kept = *work->kept;
	StringInfoData bytes;
	char		name[KEPT_FILE_NAME];

	keeper_name_file(&kept, name, sizeof(name));
	if (!TimestampDifferenceExceeds(kept.trigger.at, GetCurrentTimestamp(), ASKED_MS) &&
		is_there(&kept) && kept_file(&kept, &bytes) &&
		/* else it may be of another session by now; one that grew has only another place */
		is_there(&kept) &&
		has_room(work, bytes.len, true) &&
		keeper_write_file(work->directory, name, &bytes))
		(void) kept_done(kept.id, name);
	else
		(void) kept_done(kept.id, NULL);
}

typedef struct Blockers
{
	int			(*look) (Blocker *found, int most);
	int			n;
	Blocker		blocker[MOST_BLOCKERS];
} Blockers;

static void
look(void *argument)
{
	Blockers   *found = argument;

	found->n = found->look(found->blocker, MOST_BLOCKERS);
}

/*
 * Who holds up a session that waits for a lock for too long, or was in a deadlock?
 * Their traces are kept now: their rings are their own, and go on.
 */
static void
write_blockers(int directory, int (*of) (Blocker *found, int most))
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "blockers",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);
	Blockers	found;

	found.look = of;
	found.n = 0;
	(void) guarded_run("sql_trace", look, report_not_looked, &found);
	for (int i = 0; i < found.n; i++)
	{
		const Blocker *blocker = &found.blocker[i];
		KeptTrace	kept;
		Work		work = {.kept = &kept,.directory = directory};
		Firing		firing = {
			.cause = blocker->is_deadlock ? CAUSE_DEADLOCK : CAUSE_BLOCKER,
			.value = blocker->victim,
			.at = GetCurrentTimestamp()
		};

		if (!kept_begin_file(&firing, &blocker->trace, blocker->incident, &kept))
			continue;
		/* the files of others took their time: its ring may have grown */
		(void) is_there(&kept);
		(void) guarded_run("sql_trace", write_blocker, report_unfit, &work);
		if (!work.ended)
			kept_end_file(&kept, NULL);
	}
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
}

/*
 * Write all that is in no file yet.  Without a directory: what somebody asked for will be of
 * another time when there is one again.
 */
static void
write_all_kept(int directory)
{
	KeptShared *shared = kept_get();
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "kept trace",
												  ALLOCSET_DEFAULT_SIZES);

	for (int i = 0; i < MAX_PLACES && !ShutdownRequestPending; i++)
	{
		MemoryContext before = MemoryContextSwitchTo(context);
		KeptTrace	kept;
		Work		work = {.kept = &kept,.directory = directory};

		LWLockAcquire(&shared->lock, LW_SHARED);
		kept = shared->kept[i];
		LWLockRelease(&shared->lock);
		if (kept.id != 0 && kept.trace.handle != 0 && directory >= 0 && kept.id != unfit[i])
			(void) guarded_run("sql_trace", write_kept, report_unfit, &work);
		else if (kept_is_asked(&kept) &&
				 (directory < 0 ||
				  !guarded_run("sql_trace", write_asked, report_unfit, &work)))
			(void) kept_done(kept.id, NULL);
		if (work.unfit)
			unfit[i] = kept.id;
		MemoryContextSwitchTo(before);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
}

/* Whether we can write: others wake us, and are promised files, only then. */
static void
announce(bool writes)
{
	KeptShared *shared = kept_get();

	if (shared)
		pg_atomic_write_u32(&shared->keeper, writes ? (uint32) MY_PROC_NUMBER + 1 : 0);
}

static void
leave(int code, Datum arg)
{
	announce(false);
}

/*
 * The directory that the setting names.  A descriptor follows one that is moved, and may be all
 * that is left of one.  -1: it cannot be used until the configuration is reloaded.
 */
static int
open_again(int directory)
{
	if (directory >= 0 && keeper_is_directory(directory))
		return directory;
	if (directory >= 0)
	{
		close(directory);
		keeper_reported = false;
		keeper_refused_at = 0;
	}
	else if (keeper_reported)
		return -1;
	directory = keeper_open_directory();
	if (directory >= 0)
		keeper_remove_unfinished(directory);
	keeper_reported = directory < 0;
	return directory;
}

static bool
can_write(int directory)
{
	return directory >= 0 && kept_get() != NULL &&
		!lately(keeper_refused_at, GetCurrentTimestamp(), RETRY_INTERVAL_MS * INT64CONST(1000));
}

void
sql_trace_keeper_main(Datum argument)
{
	int			directory = -1;
	bool		watches = false;
	bool		writes;
	TimestampTz looked = 0;
	TimestampTz now;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	before_shmem_exit(leave, (Datum) 0);
	while (!ShutdownRequestPending)
	{
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			keeper_reported = failure_reported = false;
			keeper_refused_at = 0;
			memset(unfit, 0, sizeof(unfit));
			if (directory >= 0)
				close(directory);
			directory = -1;
		}
		directory = open_again(directory);
		writes = can_write(directory);
		announce(writes);
		if (writes)
		{
			now = GetCurrentTimestamp();
			write_blockers(directory, blockers_in_deadlocks);
			watches = pg_atomic_read_u32(&kept_get()->watches) != 0;
			/* it takes every lock of the lock manager's table */
			if (watches && !lately(looked, now, LOCK_INTERVAL_MS * INT64CONST(1000)))
			{
				write_blockers(directory, blockers_find);
				looked = now;
			}
			write_all_kept(directory);
			announce(can_write(directory));
		}
		else if (kept_get() != NULL)
			write_all_kept(-1);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 watches ? LOCK_INTERVAL_MS : RETRY_INTERVAL_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (directory >= 0 && kept_get() != NULL)
	{
		ShutdownRequestPending = false;
		write_all_kept(directory);
	}
	/* started anew, unless the server shuts down */
	proc_exit(1);
}

/* Start the worker with the server. */
static void
announce_worker(void)
{
	BackgroundWorker worker = {0};
	Dl_info		ours;

	if (dladdr(sql_trace_keeper_main, &ours) == 0 ||
		strlen(ours.dli_fname) >= sizeof(worker.bgw_library_name))
	{
		ereport(WARNING,
				(errmsg("sql_trace writes no kept traces: the path of its library is too long")));
		return;
	}
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = RESTART_INTERVAL_S;
	strlcpy(worker.bgw_library_name, ours.dli_fname, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "sql_trace_keeper_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "sql_trace keeper", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "sql_trace keeper", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/*
 * A session that loads the library by itself has no worker.  Lines of the
 * configuration file that speak of it have no effect there; but to reserve the
 * prefix would warn of each that is not known, at each login, and so would a
 * value that is refused.  So they are known, and take whatever they are given.
 */
static void
define_unused(void)
{
	static const char *const names[] = {
		"sql_trace.keep_directory", "sql_trace.keep_files", "sql_trace.keep_files_size",
	};
	static char *unused[lengthof(names)];

	for (int i = 0; i < (int) lengthof(names); i++)
		DefineCustomStringVariable(names[i],
								   "Of the background worker, which this session does not have.",
								   "Has an effect only if the server preloads the library.",
								   &unused[i], "",
								   PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
}

/* Called when the library is loaded: by the server itself, a worker can be had. */
void
keeper_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
	{
		define_unused();
		return;
	}
	keeper_directory_init();
	keeper_files_init();
	if (keeper_directory() != NULL)
		announce_worker();
}
