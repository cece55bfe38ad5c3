/*-------------------------------------------------------------------------
 * worker_directory.c
 *		The directory that the background worker writes to, and recordings in it.
 *
 * Nobody but the server's user and root may be able to put something else in
 * the place of what we make.  So the path is walked from the root, each step by
 * a descriptor of the one before, and each directory on the way is looked at;
 * recordings and files are then made relative to the last descriptor.
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgtime.h"

#define DIRECTORY_FLAGS (O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define MOST_NAMES 1000

static void
refuse(const char *path, const char *why, const char *hint)
{
	ereport(WARNING,
			(errmsg("sql_trace writes no traces to \"%s\": %s", path, why),
			 errhint("%s", hint)));
}

/*
 * The owner of a directory, and those that can write to it, could put something else in the
 * place of what is in it.  On the way, a sticky one will do: there, others
 * cannot rename or remove what is ours.  NULL: nobody else can.
 */
static const char *
whose_else(const struct stat *found, bool last)
{
	if (found->st_uid != 0 && found->st_uid != geteuid())
		return "belongs to another user";
	if ((found->st_mode & (S_IWGRP | S_IWOTH)) == 0 || (!last && (found->st_mode & S_ISVTX)))
		return NULL;
	return found->st_mode & S_IWOTH ? "can be written by everybody" :
		"can be written by its group";
}

/* Why a directory on the way, or the last one, will not do; false: it will. */
static bool
has_fault(const struct stat *found, const char *name, bool last, char *why, Size size)
{
	const char *fault = whose_else(found, last);
	struct stat data;

	if (fault && last)
		snprintf(why, size, "it %s", fault);
	else if (fault)
		snprintf(why, size, "\"%s\" in its path %s", name, fault);
	else if (stat(DataDir, &data) == 0 && data.st_dev == found->st_dev &&
			 data.st_ino == found->st_ino)
		snprintf(why, size, "it lies in the data directory");	/* whose disk must never fill */
	else
		return false;
	return true;
}

/* One step of the path, from the directory "at"; -1, with the reason: it cannot be taken. */
static int
step(int at, const char *name, bool last, char *why, Size size)
{
	struct stat found;
	int			next;

	if (last && mkdirat(at, name, S_IRWXU) != 0 && errno != EEXIST)
	{
		snprintf(why, size, "%s", strerror(errno));
		return -1;
	}
	next = openat(at, name, (last ? O_RDONLY : O_PATH) | DIRECTORY_FLAGS);
	if (next < 0)
	{
		int			error = errno;

		if (fstatat(at, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode))
			snprintf(why, size, "\"%s\" in its path is a symbolic link", name);
		else
			snprintf(why, size, "%s", strerror(error));
		return -1;
	}
	if (fstat(next, &found) == 0 && !has_fault(&found, name, last, why, size))
		return next;
	close(next);
	return -1;
}

/* A descriptor of the directory that a setting names; -1: it will not do, and the log tells why. */
int
directory_open(const char *path, const char *setting)
{
	char		hint[256];
	char		names[MAXPGPATH];
	char		why[MAXPGPATH + 64] = "it cannot be opened";
	char	   *rest;
	int			at;

	if (!is_absolute_path(path))
	{
		snprintf(hint, sizeof(hint), "Set %s to another directory, and restart the server.", setting);
		refuse(path, "the path is not absolute", hint);
		return -1;
	}
	strlcpy(names, path, sizeof(names));
	at = open("/", O_RDONLY | DIRECTORY_FLAGS);
	for (char *name = strtok_r(names, "/", &rest); name && at >= 0;)
	{
		char	   *following = strtok_r(NULL, "/", &rest);
		int			next = step(at, name, following == NULL, why, sizeof(why));

		close(at);
		at = next;
		name = following;
	}
	snprintf(hint, sizeof(hint), "Make the directory for the server's user alone, and reload the "
			 "configuration; or set %s to another one, and restart.", setting);
	if (at < 0)
		refuse(path, why, hint);
	return at;
}

/* Bytes of all files of a recording */
static uint64
size_of_recording(int at, const char *name)
{
	int			descriptor = openat(at, name, O_RDONLY | DIRECTORY_FLAGS);
	DIR		   *files = descriptor >= 0 ? fdopendir(descriptor) : NULL;
	struct dirent *file;
	struct stat found;
	uint64		sum = 0;

	while (files && (file = readdir(files)) != NULL)
		if (fstatat(descriptor, file->d_name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
			S_ISREG(found.st_mode))
			sum += found.st_size;
	if (files)
		closedir(files);
	else if (descriptor >= 0)
		close(descriptor);
	return sum;
}

/* Bytes of all files of all recordings */
uint64
directory_size(int directory)
{
	int			descriptor = openat(directory, ".", O_RDONLY | DIRECTORY_FLAGS);
	DIR		   *all = descriptor >= 0 ? fdopendir(descriptor) : NULL;
	struct dirent *recording;
	uint64		sum = 0;

	while (all && (recording = readdir(all)) != NULL)
		if (strncmp(recording->d_name, "trace-", 6) == 0)
			sum += size_of_recording(descriptor, recording->d_name);
	if (all)
		closedir(all);
	else if (descriptor >= 0)
		close(descriptor);
	return sum;
}

static bool
has_room(int directory, const char *path, uint64 most, uint64 reserve)
{
	struct statvfs volume;

	if (directory_size(directory) >= most)
		refuse(path, "what is there has reached sql_trace.worker_max_size",
			   "Delete old recordings, or raise the setting, and reload the configuration.");
	else if (reserve > 0 && fstatvfs(directory, &volume) == 0 &&
			 (uint64) volume.f_bavail * volume.f_frsize < reserve)
		refuse(path, "the volume has less space left than sql_trace.worker_reserve",
			   "Make room, or lower the setting, and reload the configuration.");
	else
		return true;
	return false;
}

/*
 * A directory for a recording that begins now, in that one; false: it cannot be
 * made.  Those that one process begins in one second differ by a number.
 */
static bool
make_recording(int directory, const char *path, TimestampTz began, TraceFile *file)
{
	pg_time_t	seconds = timestamptz_to_time_t(began);
	char		when[32];
	char		name[64];
	int			number = 1;
	int			error;
	bool		made;

	pg_strftime(when, sizeof(when), "%Y%m%dT%H%M%S", pg_gmtime(&seconds));
	snprintf(name, sizeof(name), "trace-%s-%d", when, MyProcPid);
	while (!(made = mkdirat(directory, name, S_IRWXU) == 0) && errno == EEXIST &&
		   number < MOST_NAMES)
		snprintf(name, sizeof(name), "trace-%s-%d.%d", when, MyProcPid, ++number);
	if (made && file_init(file, directory, path, name))
		return true;
	error = errno;
	if (made)
		(void) unlinkat(directory, name, AT_REMOVEDIR);
	refuse(path, strerror(error), "Let the server's user write there, and reload the "
		   "configuration.");
	return false;
}

/*
 * Make a place for a recording that begins now, if there is room for it.
 * Returns a descriptor of the directory that the setting names, or -1: then the
 * log tells why nothing is written.
 */
int
directory_begin(const char *path, uint64 most, uint64 reserve, TimestampTz began, TraceFile *file)
{
	int			directory = directory_open(path, "sql_trace.worker_directory");

	if (directory < 0)
		return -1;
	if (has_room(directory, path, most, reserve) &&
		make_recording(directory, path, began, file))
		return directory;
	close(directory);
	return -1;
}
