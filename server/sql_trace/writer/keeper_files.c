/*-------------------------------------------------------------------------
 * keeper_files.c
 *		The files of kept traces: their names, and how many there are.
 *
 * A file gets its name when it is whole and on the disk: a worker that dies leaves a
 * part under another name, which the next one removes.  When the directory is full
 * by its settings, the oldest file of the commonest cause of the role that has most
 * makes way: names of files end in numbers of both.  Those for findings end in that word:
 * they have a quarter of the room in addition, and make way for each other alone.
 *-------------------------------------------------------------------------
 */
#include "keeper.h"
#include "../calls/statement.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nodes/pg_list.h"
#include "pgtime.h"
#include "utils/guc.h"

#define KIBIBYTE ((uint64) 1024)
#define PREFIX "kept-"
#define SUFFIX ".pgtrace"
#define UNFINISHED ".partial"
#define NUMBERS 18				/* characters in a name: a hyphen and a role, the same and a cause */
#define FINDINGS "findings"		/* in the place of a cause */

bool		keeper_reported = false;	/* that something cannot be written, until something can */
TimestampTz keeper_refused_at = 0;	/* when that was; 0: something could be since */

static int	most_files = 100;
static int	most_kb = 1024 * 1024;

/* The directory takes nothing, so nothing is written for a while. */
void
keeper_refuse(const char *why)
{
	if (!keeper_reported)
		ereport(WARNING,
				(errmsg("sql_trace cannot write a kept trace to \"%s\": %s", keeper_directory(),
						why),
				 errhint("It is tried again each minute, and when the configuration is reloaded.")));
	keeper_reported = true;
	keeper_refused_at = GetCurrentTimestamp();
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

/* To read what is in it, and to be closed; NULL: that cannot be read. */
static DIR *
open_list(int directory)
{
	int			descriptor = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR		   *all = descriptor >= 0 ? fdopendir(descriptor) : NULL;

	if (all == NULL && descriptor >= 0)
		close(descriptor);
	return all;
}

/* Files of ours, those for findings or all others, and their size together. */
static List *
look_at_files(int directory, bool for_findings, uint64 *size)
{
	DIR		   *all = open_list(directory);
	List	   *files = NIL;
	struct dirent *file;
	struct stat status;

	*size = 0;
	while (all && (file = readdir(all)) != NULL)
	{
		const char *name = file->d_name;
		KeptFile   *found;

		if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || !ends_with(name, SUFFIX) ||
			ends_with(name, "-" FINDINGS SUFFIX) != for_findings ||
			strlen(name) >= KEPT_FILE_NAME ||
			fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
			!S_ISREG(status.st_mode))
			continue;
		found = palloc(sizeof(KeptFile));
		strlcpy(found->name, name, KEPT_FILE_NAME);
		found->size = status.st_size;
		*size += found->size;
		files = lappend(files, found);
	}
	if (all)
		closedir(all);
	return files;
}

/*
 * Remove what a worker left that died.  Only as a directory is opened: another server
 * may be writing there.
 */
void
keeper_remove_unfinished(int directory)
{
	DIR		   *all = open_list(directory);
	struct dirent *file;

	while (all && (file = readdir(all)) != NULL)
		if (strncmp(file->d_name, "." PREFIX, strlen("." PREFIX)) == 0 &&
			ends_with(file->d_name, UNFINISHED))
			(void) unlinkat(directory, file->d_name, 0);
	if (all)
		closedir(all);
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
compare_files(const ListCell *one, const ListCell *other)
{
	const KeptFile *a = lfirst(one);
	const KeptFile *b = lfirst(other);
	int			order = strcmp(end_of(a), end_of(b));

	return order != 0 ? order : strcmp(a->name, b->name);
}

/* How many of the sorted files, from one on, have names that end like it in so many characters? */
static int
alike(const List *files, int first, int length)
{
	int			n = 1;

	while (first + n < list_length(files) &&
		   strncmp(end_of(list_nth(files, first)), end_of(list_nth(files, first + n)), length) == 0)
		n++;
	return n;
}

/* Of sorted files, remove the oldest of the commonest cause of the role that has most. */
static bool
make_room(int directory, List **files, uint64 *size)
{
	const KeptFile *found = NULL;
	int			found_at = 0;
	int			most = 0;
	int			commonest = 0;

	for (int role = 0, of_role; role < list_length(*files); role += of_role)
	{
		of_role = alike(*files, role, NUMBERS / 2);
		for (int cause = role, of_cause; cause < role + of_role; cause += of_cause)
		{
			const KeptFile *file = list_nth(*files, cause);

			of_cause = alike(*files, cause, NUMBERS);
			/* of causes as common as each other, the oldest file */
			if (of_role > most || (of_role == most && of_cause > commonest) ||
				(of_role == most && of_cause == commonest && strcmp(file->name, found->name) < 0))
			{
				most = of_role;
				commonest = of_cause;
				found = file;
				found_at = cause;
			}
		}
	}
	if (unlinkat(directory, found->name, 0) != 0 && errno != ENOENT)
	{
		keeper_refuse(strerror(errno));
		return false;
	}
	*size -= found->size;
	*files = list_delete_nth_cell(*files, found_at);
	return true;
}

/* So much may all files have together, those for findings or all others. */
uint64
keeper_most_size(bool for_findings)
{
	return most_kb * KIBIBYTE / (for_findings ? 4 : 1);
}

/* Is there room for another of that size, which may be one alone?  Older ones make way. */
bool
keeper_has_room(int directory, uint64 size, bool for_finding)
{
	uint64		all;
	List	   *files = look_at_files(directory, for_finding, &all);
	int			most = for_finding ? (most_files + 3) / 4 : most_files;
	uint64		most_size = keeper_most_size(for_finding);

	list_sort(files, compare_files);
	while (files != NIL && (list_length(files) >= most || all + size > most_size))
		if (!make_room(directory, &files, &all))
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
bool
keeper_write_file(int directory, const char *name, const StringInfoData *bytes)
{
	char		unfinished[KEPT_FILE_NAME + 16];
	int			fd;
	bool		done;

	snprintf(unfinished, sizeof(unfinished), ".%s%s", name, UNFINISHED);
	fd = openat(directory, unfinished, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
	{
		keeper_refuse(strerror(errno));
		return false;
	}
	done = write_all(fd, bytes->data, bytes->len) && fsync(fd) == 0 &&
		renameat(directory, unfinished, directory, name) == 0 && fsync(directory) == 0;
	if (!done)
	{
		keeper_refuse(strerror(errno));
		(void) unlinkat(directory, unfinished, 0);
	}
	close(fd);
	return done;
}

void
keeper_name_file(const KeptTrace *kept, char *name, Size size)
{
	pg_time_t	seconds = timestamptz_to_time_t(kept->trigger.at);
	const Firing *trigger = &kept->trigger;
	int64		cause[3] = {
		trigger->cause, trigger->query_id, trigger->cause == CAUSE_SQLSTATE ? trigger->value : 0
	};
	char		when[32];
	char		hash[] = FINDINGS;

	if (trigger->cause != CAUSE_FINDING)
		snprintf(hash, sizeof(hash), "%08x",
				 (uint32) text_hash((const char *) cause, sizeof(cause)));
	pg_strftime(when, sizeof(when), "%Y%m%dT%H%M%S", pg_gmtime(&seconds));
	snprintf(name, size, PREFIX "%s-%d-" INT64_FORMAT "-%08x-%s" SUFFIX, when, kept->trace.pid,
			 kept->id, kept->trace.role, hash);
}

/* Called when the library is loaded by the server itself. */
void
keeper_files_init(void)
{
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
}
