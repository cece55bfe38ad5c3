/*-------------------------------------------------------------------------
 * worker.c
 *		The background worker that writes traces to files: its settings, and when
 *		it records.
 *
 * Each start of the worker is a recording in a directory of its own.  When no
 * more can be written it says so once, and waits for a reload; sessions do not
 * wait for it, nor know of it.  It reads shared memory alone and connects to no
 * database.  As with any process with shared memory, the server restarts if
 * it is killed by kill -9.
 *-------------------------------------------------------------------------
 */
#include "worker.h"
#include "../core/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/json.h"
#include "utils/wait_event.h"

#include "../../common/lately.h"
#include "../../common/pg_compat.h"

#define LOOK_INTERVAL_MS 100
#define SYNC_INTERVAL_US (2 * USECS_PER_SEC)
#define IDLE_INTERVAL_MS 60000
#define RESTART_INTERVAL_S 2
#define KIBIBYTE ((uint64) 1024)

/*
 * Size after which another file begins: small enough to be copied or deleted while
 * the next ones are written.  worker_max_size bounds all of them together.
 */
#define FILE_KB (64 * 1024)

static char *worker_directory = NULL;
static int	worker_max_kb = 1024 * 1024;
static int	worker_reserve_kb = 512 * 1024;

PGDLLEXPORT void sql_trace_worker_main(Datum argument);

/*
 * A session that loads the library by itself has no workers.  Lines of the
 * configuration file that speak of them have no effect there; but to reserve the
 * prefix would warn of each that is not known, at each login, and so would a
 * value that is refused.  So they are known, and take whatever they are given.
 */
static void
define_unused(void)
{
	static const char *const names[] = {
		"sql_trace.worker_directory", "sql_trace.worker_max_size", "sql_trace.worker_reserve",
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

static void
define_settings(void)
{
	DefineCustomStringVariable("sql_trace.worker_directory",
							   "Directory in which a background worker writes the traces of all sessions.",
							   "Empty: there is no worker.",
							   &worker_directory, "",
							   PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomIntVariable("sql_trace.worker_max_size",
							"Size that all traces of the worker may take; it stops there.",
							NULL,
							&worker_max_kb, 1024 * 1024, 64, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("sql_trace.worker_reserve",
							"Space on the volume that the worker leaves free; it stops there.",
							NULL,
							&worker_reserve_kb, 512 * 1024, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
}

/* As the settings are now */
static void
set_limits(Recording *recording)
{
	TraceFile  *file = &recording->file;
	uint64		there = directory_size(recording->directory);
	uint64		most = worker_max_kb * KIBIBYTE;

	/* what has been deleted, of this recording as well, made room */
	file->size_limit = file->written + (most > there ? most - there : 0);
	file->reserve = worker_reserve_kb * KIBIBYTE;
	recording->file_limit = FILE_KB * KIBIBYTE;
}

static bool
begin_recording(Recording *recording)
{
	memset(recording, 0, sizeof(*recording));
	recording->began = GetCurrentTimestamp();
	recording->directory = directory_begin(worker_directory, worker_max_kb * KIBIBYTE,
										   worker_reserve_kb * KIBIBYTE, recording->began,
										   &recording->file);
	if (recording->directory < 0)
		return false;
	set_limits(recording);
	rings_begin(recording);
	return true;
}

static const char *
stop_name(FileStop stop)
{
	return stop == STOP_SIZE ? "size" : stop == STOP_SPACE ? "space" :
		stop == STOP_ERROR ? "error" : "interrupt";
}

/* Say in the files how it ended. */
static void
write_end(Recording *recording, Unwritten rest)
{
	TraceFile  *file = &recording->file;
	StringInfoData json;

	if (file->fd < 0)
		return;
	initStringInfo(&json);
	appendStringInfo(&json, "{\"stopped_by\": \"%s\", \"why\": ", stop_name(file->stop));
	escape_json(&json, file->why);
	appendStringInfo(&json, ", \"seconds\": %.3f, \"losses\": {}",
					 (GetCurrentTimestamp() - recording->began) / 1e6);
	appendStringInfo(&json, ", \"unwritten\": {\"bytes\": " UINT64_FORMAT ", \"waits\": "
					 UINT64_FORMAT "}", rest.bytes, rest.waits);
	appendStringInfo(&json, ", \"unread\": {\"sessions\": " UINT64_FORMAT ", \"records\": "
					 UINT64_FORMAT ", \"bytes\": " UINT64_FORMAT "}}",
					 recording->unread.sessions - recording->unread_before.sessions,
					 recording->unread.records - recording->unread_before.records,
					 recording->unread.bytes - recording->unread_before.bytes);
	block_begin(file, TABLE_END, 1);
	block_bytes(file, "json", json.data, json.len);
	(void) block_end(file);
	pfree(json.data);
}

/* Say how it ended, in the files and, unless we were asked to, in the log. */
static void
end_recording(Recording *recording)
{
	TraceFile  *file = &recording->file;
	Unwritten	rest = {0};

	if (file->stop != STOP_NONE)
	{
		rest = rings_unwritten(recording);
		ereport(WARNING,
				(errmsg("sql_trace has stopped writing traces to \"%s\": %s", file->path,
						file->why),
				 errdetail("What was in %d rings is not in the files: " UINT64_FORMAT
						   " bytes of calls and " UINT64_FORMAT " waits.",
						   rest.rings, rest.bytes, rest.waits),
				 file->stop == STOP_MOVED ? errhint("Another recording begins now.") :
				 errhint("Make room and reload the configuration: a new recording begins then.")));
	}
	if (file->stop != STOP_MOVED)
		write_end(recording, rest);
	/* a recording that could not even begin leaves nothing behind, however often it is tried */
	if (file->stop != STOP_NONE && file->stop != STOP_MOVED && !recording->has_rows)
		file_discard(file, recording->directory);
	rings_end(recording);
	file_free(file);
	close(recording->directory);
}

/* Sessions that end wake us while we record, so that we come before others push their traces out. */
static void
be_woken(bool wanted)
{
	Shared	   *shared = shmem_get();

	if (shared)
		pg_atomic_write_u32(&shared->writer, wanted ? (uint32) MY_PROC_NUMBER + 1 : 0);
}

static Recording recording;

/* However we end */
static void
leave(int code, Datum arg)
{
	be_woken(false);
	rings_let_go(&recording);
}

/* The more is written, the more often we look: rings must be emptied when a quarter is new. */
static long
next_interval(long last, bool behind)
{
	return behind ? last / 4 : Min(last * 2 + 1, LOOK_INTERVAL_MS);
}

void
sql_trace_worker_main(Datum argument)
{
	bool		records;
	long		interval = LOOK_INTERVAL_MS;
	TimestampTz synced = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	before_shmem_exit(leave, (Datum) 0);
	records = shmem_get() != NULL && begin_recording(&recording);
	while (!ShutdownRequestPending)
	{
		TimestampTz now;

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			if (records)
				set_limits(&recording);
			else
				records = shmem_get() != NULL && begin_recording(&recording);
		}
		if (records && !rings_look(&recording, false))
		{
			bool		moved = recording.file.stop == STOP_MOVED;

			end_recording(&recording);
			records = moved && begin_recording(&recording);
		}
		be_woken(records);
		now = GetCurrentTimestamp();
		if (records && !lately(synced, now, SYNC_INTERVAL_US))
		{
			file_sync(&recording.file);
			synced = now;
		}
		interval = next_interval(interval, recording.behind);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 records ? interval : IDLE_INTERVAL_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (records)
	{
		(void) rings_look(&recording, true);
		end_recording(&recording);
	}
	/* started anew, unless the server shuts down */
	proc_exit(1);
}

/* Start a worker with the server.  "lacking": what is missing if that cannot be done */
void
worker_announce(bgworker_main_type main, const char *function, const char *name,
				const char *lacking)
{
	BackgroundWorker worker = {0};
	Dl_info		ours;

	if (dladdr(main, &ours) == 0 || strlen(ours.dli_fname) >= sizeof(worker.bgw_library_name))
	{
		ereport(WARNING, (errmsg("%s: the path of its library is too long", lacking)));
		return;
	}
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = RESTART_INTERVAL_S;
	strlcpy(worker.bgw_library_name, ours.dli_fname, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, function, BGW_MAXLEN);
	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	strlcpy(worker.bgw_type, name, BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/* Called when the library is loaded: by the server itself, a worker can be had. */
void
worker_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
	{
		define_unused();
		return;
	}
	define_settings();
	if (worker_directory != NULL && worker_directory[0] != '\0')
		worker_announce(sql_trace_worker_main, "sql_trace_worker_main", "sql_trace writer",
						"sql_trace has no background worker");
}
