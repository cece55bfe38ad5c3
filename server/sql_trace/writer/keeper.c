/*-------------------------------------------------------------------------
 * keeper.c
 *		The background worker that writes kept traces to files.
 *
 * Each is one file, which gets its name when it is whole and on the disk: a
 * worker that dies leaves a part under another name, which the next one removes.
 * What is in a file takes no shared memory any more.  When the directory is full
 * by its settings, the oldest file of the commonest cause of the role that has most
 * makes way: names of files end in numbers of both.  When its volume is full, what is
 * kept stays in memory.
 *-------------------------------------------------------------------------
 */
#include "worker.h"
#include "../calls/statement.h"
#include "../core/module.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgtime.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "../../common/guarded.h"
#include "../../common/lately.h"
#include "../../common/pg_compat.h"

#define RETRY_INTERVAL_MS 60000
#define LOCK_INTERVAL_MS 1000
#define MOST_BLOCKERS 8
#define KIBIBYTE ((uint64) 1024)
#define PREFIX "kept-"
#define SUFFIX ".pgtrace"
#define UNFINISHED ".partial"
#define NUMBERS 18				/* characters in a name: a hyphen and a role, the same and a cause */

static char *keep_directory = NULL;
static int	most_files = 100;
static int	most_kb = 1024 * 1024;
static bool reported = false;	/* that something cannot be written, until something can */
static TimestampTz refused_at = 0;	/* when that was; 0: something could be since */

PGDLLEXPORT void sql_trace_keeper_main(Datum argument);

/* Where kept traces are written, or NULL */
const char *
keeper_directory(void)
{
	return keep_directory && keep_directory[0] != '\0' ? keep_directory : NULL;
}

static void
refuse(const char *why)
{
	if (!reported)
		ereport(WARNING,
				(errmsg("sql_trace cannot write a kept trace to \"%s\": %s", keep_directory, why),
				 errhint("It is tried again each minute, and when the configuration is reloaded.")));
	reported = true;
	refused_at = GetCurrentTimestamp();
}

static bool
ends_with(const char *name, const char *end)
{
	size_t		length = strlen(name);
	size_t		wanted = strlen(end);

	return length >= wanted && strcmp(name + length - wanted, end) == 0;
}

typedef struct KeptFile
{
	char		name[KEPT_FILE_NAME];
	uint64		size;
} KeptFile;

typedef struct KeptFiles
{
	int			n;
	int			room;
	uint64		size;			/* of all */
	KeptFile   *file;
} KeptFiles;

/* Look at all files of ours; "found": NULL to remove those that were never finished. */
static void
look_at_files(int directory, KeptFiles *found)
{
	int			descriptor = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR		   *all = descriptor >= 0 ? fdopendir(descriptor) : NULL;
	struct dirent *file;
	struct stat status;

	while (all && (file = readdir(all)) != NULL)
	{
		const char *name = file->d_name;

		if (!found && strncmp(name, "." PREFIX, strlen("." PREFIX)) == 0 &&
			ends_with(name, UNFINISHED))
			(void) unlinkat(descriptor, name, 0);
		if (!found || strncmp(name, PREFIX, strlen(PREFIX)) != 0 || !ends_with(name, SUFFIX) ||
			strlen(name) >= KEPT_FILE_NAME ||
			fstatat(descriptor, name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
			!S_ISREG(status.st_mode))
			continue;
		if (found->n == found->room)
		{
			found->room = Max(2 * found->room, 128);
			found->file = found->file ?
				repalloc(found->file, found->room * sizeof(KeptFile)) :
				palloc(found->room * sizeof(KeptFile));
		}
		strlcpy(found->file[found->n].name, name, KEPT_FILE_NAME);
		found->file[found->n++].size = status.st_size;
		found->size += status.st_size;
	}
	if (all)
		closedir(all);
	else if (descriptor >= 0)
		close(descriptor);
}

/* The end of a name, from its role on; one that is too short ends in itself. */
static const char *
end_of(const KeptFile *file)
{
	int			numbers = (int) strlen(file->name) - (int) strlen(SUFFIX) - NUMBERS;

	return file->name + Max(numbers, 0);
}

/* By role, cause and age */
static int
compare_files(const void *one, const void *other)
{
	int			order = strcmp(end_of(one), end_of(other));

	return order != 0 ? order : strcmp(((const KeptFile *) one)->name,
									   ((const KeptFile *) other)->name);
}

/* How many of the sorted files, from one on, have names that end like it in so many characters? */
static int
alike(const KeptFiles *files, int first, int length)
{
	int			n = 1;

	while (first + n < files->n &&
		   strncmp(end_of(&files->file[first]), end_of(&files->file[first + n]), length) == 0)
		n++;
	return n;
}

/* Of sorted files, remove the oldest of the commonest cause of the role that has most. */
static bool
make_room(int directory, KeptFiles *files)
{
	int			found = 0;
	int			most = 0;
	int			commonest = 0;

	for (int role = 0, of_role; role < files->n; role += of_role)
	{
		of_role = alike(files, role, NUMBERS / 2);
		for (int cause = role, of_cause; cause < role + of_role; cause += of_cause)
		{
			of_cause = alike(files, cause, NUMBERS);
			/* of causes as common as each other, the oldest file */
			if (of_role > most || (of_role == most && of_cause > commonest) ||
				(of_role == most && of_cause == commonest &&
				 strcmp(files->file[cause].name, files->file[found].name) < 0))
			{
				most = of_role;
				commonest = of_cause;
				found = cause;
			}
		}
	}
	if (unlinkat(directory, files->file[found].name, 0) != 0 && errno != ENOENT)
	{
		refuse(strerror(errno));
		return false;
	}
	files->size -= files->file[found].size;
	memmove(&files->file[found], &files->file[found + 1],
			(--files->n - found) * sizeof(KeptFile));
	return true;
}

static bool
has_room(int directory, uint64 size)
{
	KeptFiles	files = {0};

	if (size > most_kb * KIBIBYTE)
	{
		refuse("it would be larger than sql_trace.keep_files_size allows");
		return false;
	}
	look_at_files(directory, &files);
	if (files.n > 0)
		qsort(files.file, files.n, sizeof(KeptFile), compare_files);
	while (files.n > 0 && (files.n >= most_files || files.size + size > most_kb * KIBIBYTE))
		if (!make_room(directory, &files))
			return false;
	return true;
}

static bool
write_all(int fd, const char *data, Size size)
{
	while (size > 0)
	{
		ssize_t		done = write(fd, data, size);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
		{
			errno = done == 0 ? ENOSPC : errno;
			return false;
		}
		data += done;
		size -= done;
	}
	return true;
}

/* A file that is whole, or none */
static bool
write_file(int directory, const char *name, const char *data, Size size)
{
	char		unfinished[KEPT_FILE_NAME + 16];
	int			fd;
	bool		done;

	snprintf(unfinished, sizeof(unfinished), ".%s%s", name, UNFINISHED);
	fd = openat(directory, unfinished, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
	{
		refuse(strerror(errno));
		return false;
	}
	done = write_all(fd, data, size) && fsync(fd) == 0 &&
		renameat(directory, unfinished, directory, name) == 0 && fsync(directory) == 0;
	if (!done)
	{
		refuse(strerror(errno));
		(void) unlinkat(directory, unfinished, 0);
	}
	close(fd);
	return done;
}

static void
name_file(const KeptTrace *kept, char *name, Size size)
{
	pg_time_t	seconds = timestamptz_to_time_t(kept->trigger.at);
	const Firing *trigger = &kept->trigger;
	int64		cause[3] = {
		trigger->cause, trigger->query_id, trigger->cause == CAUSE_SQLSTATE ? trigger->value : 0
	};
	char		when[32];

	pg_strftime(when, sizeof(when), "%Y%m%dT%H%M%S", pg_gmtime(&seconds));
	snprintf(name, size, PREFIX "%s-%d-" INT64_FORMAT "-%08x-%08x" SUFFIX, when, kept->trace.pid,
			 kept->id, kept->trace.role,
			 (uint32) text_hash((const char *) cause, sizeof(cause)));
}

typedef struct Work
{
	const KeptTrace *kept;
	int			directory;
} Work;

static void
write_kept(void *argument)
{
	const Work *work = argument;
	TraceFile	file;
	char		name[KEPT_FILE_NAME];

	if (!kept_file(work->kept, &file) || !has_room(work->directory, file.memory.len))
		return;
	name_file(work->kept, name, sizeof(name));
	if (!write_file(work->directory, name, file.memory.data, file.memory.len))
		return;
	kept_written(work->kept->id, name);
	reported = false;
	refused_at = 0;
}

static void
report_failure(void *argument, const char *cause)
{
	refuse(cause);
}

/* Write what a session has done that holds up another, as far as its ring tells by now. */
static void
write_blocker(void *argument)
{
	const Work *work = argument;
	TraceFile	file;
	char		name[KEPT_FILE_NAME];
	bool		done;

	name_file(work->kept, name, sizeof(name));
	done = kept_file(work->kept, &file) && has_room(work->directory, file.memory.len) &&
		write_file(work->directory, name, file.memory.data, file.memory.len);
	kept_end_file(work->kept, done ? name : NULL);
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
	(void) guarded_run("sql_trace", look, report_failure, &found);
	for (int i = 0; i < found.n; i++)
	{
		const Blocker *blocker = &found.blocker[i];
		KeptTrace	kept;
		Work		work = {&kept, directory};
		Firing		firing = {
			.cause = blocker->is_deadlock ? CAUSE_DEADLOCK : CAUSE_BLOCKER,
			.value = blocker->victim,
			.at = GetCurrentTimestamp()
		};

		if (kept_begin_file(&firing, &blocker->trace, blocker->incident, &kept) &&
			!guarded_run("sql_trace", write_blocker, report_failure, &work))
			kept_end_file(&kept, NULL);
	}
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
}

/* Write all that is in no file yet. */
static void
write_all_kept(int directory)
{
	KeptShared *shared = kept_get();
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "kept trace",
												  ALLOCSET_DEFAULT_SIZES);

	for (int i = 0; i < MAX_KEPT && !ShutdownRequestPending; i++)
	{
		MemoryContext before = MemoryContextSwitchTo(context);
		KeptTrace	kept;
		Work		work = {&kept, directory};

		LWLockAcquire(&shared->lock, LW_SHARED);
		kept = shared->kept[i];
		LWLockRelease(&shared->lock);
		if (kept.id != 0 && kept.trace.handle != 0)
			(void) guarded_run("sql_trace", write_kept, report_failure, &work);
		MemoryContextSwitchTo(before);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
}

static void
leave(int code, Datum arg)
{
	KeptShared *shared = kept_get();

	if (shared)
		pg_atomic_write_u32(&shared->keeper, 0);
}

void
sql_trace_keeper_main(Datum argument)
{
	int			directory = -1;
	bool		watches = false;
	TimestampTz looked = 0;
	TimestampTz now;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	before_shmem_exit(leave, (Datum) 0);
	if (kept_get() != NULL)
		pg_atomic_write_u32(&kept_get()->keeper, (uint32) MY_PROC_NUMBER + 1);
	while (!ShutdownRequestPending)
	{
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			reported = false;
			refused_at = 0;
			if (directory >= 0)
				close(directory);
			directory = -1;
		}
		if (directory < 0 && !reported)
		{
			directory = directory_open(keep_directory, "sql_trace.keep_directory");
			if (directory >= 0)
				look_at_files(directory, NULL);
			reported = directory < 0;
		}
		now = GetCurrentTimestamp();
		if (directory >= 0 && kept_get() != NULL &&
			!lately(refused_at, now, RETRY_INTERVAL_MS * INT64CONST(1000)))
		{
			write_blockers(directory, blockers_in_deadlocks);
			watches = pg_atomic_read_u32(&kept_get()->watches) != 0;
			/* it takes every lock of the lock manager's table */
			if (watches && !lately(looked, now, LOCK_INTERVAL_MS * INT64CONST(1000)))
			{
				write_blockers(directory, blockers_find);
				looked = now;
			}
			write_all_kept(directory);
		}
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

/* Called when the library is loaded: by the server itself, a worker can be had. */
void
keeper_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;					/* worker_init() defines what is not used */
	DefineCustomStringVariable("sql_trace.keep_directory",
							   "Directory in which a background worker writes the traces that are kept.",
							   "Empty: there is no worker, and they are kept in memory alone.",
							   &keep_directory, "",
							   PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
	DefineCustomIntVariable("sql_trace.keep_files",
							"Number of kept traces in the directory at which older ones make way.",
							NULL,
							&most_files, 100, 1, INT_MAX,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("sql_trace.keep_files_size",
							"Size of all kept traces in the directory at which older ones make way.",
							NULL,
							&most_kb, 1024 * 1024, 64, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
	if (keeper_directory() != NULL)
		worker_announce(sql_trace_keeper_main, "sql_trace_keeper_main", "sql_trace keeper",
						"sql_trace writes no kept traces");
}
