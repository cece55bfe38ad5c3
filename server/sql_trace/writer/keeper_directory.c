/*-------------------------------------------------------------------------
 * keeper_directory.c
 *		The directory that kept traces are written to.
 *
 * Nobody but the server's user and root may be able to put something else in
 * the place of what we make.  So the path is walked from the root, each step by
 * a descriptor of the one before, and each directory on the way is looked at;
 * files are then made relative to the last descriptor.
 *-------------------------------------------------------------------------
 */
#include "keeper.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "utils/guc.h"

#define DIRECTORY_FLAGS (O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

static char *keep_directory = NULL;

/* Where kept traces are written, or NULL */
const char *
keeper_directory(void)
{
	return keep_directory && keep_directory[0] != '\0' ? keep_directory : NULL;
}

static void
refuse(const char *why, const char *hint)
{
	ereport(WARNING,
			(errmsg("sql_trace writes no traces to \"%s\": %s", keep_directory, why),
			 errhint("%s", hint)));
}

/* Does the path of the setting lead to what a descriptor is of? */
bool
keeper_is_directory(int descriptor)
{
	struct stat there,
				ours;

	return lstat(keep_directory, &there) == 0 && fstat(descriptor, &ours) == 0 &&
		there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
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

/* A descriptor of the directory that the setting names; -1: it will not do, and the log tells why. */
int
keeper_open_directory(void)
{
	char		names[MAXPGPATH];
	char		why[MAXPGPATH + 64] = "it cannot be opened";
	char	   *rest;
	int			at;

	if (!is_absolute_path(keep_directory))
	{
		refuse("the path is not absolute",
			   "Set sql_trace.keep_directory to another directory, and restart the server.");
		return -1;
	}
	strlcpy(names, keep_directory, sizeof(names));
	at = open("/", O_RDONLY | DIRECTORY_FLAGS);
	for (char *name = strtok_r(names, "/", &rest); name && at >= 0;)
	{
		char	   *following = strtok_r(NULL, "/", &rest);
		int			next = step(at, name, following == NULL, why, sizeof(why));

		close(at);
		at = next;
		name = following;
	}
	if (at < 0)
		refuse(why, "Make the directory for the server's user alone, and reload the configuration; "
			   "or set sql_trace.keep_directory to another one, and restart.");
	return at;
}

/* Called when the library is loaded by the server itself. */
void
keeper_directory_init(void)
{
	DefineCustomStringVariable("sql_trace.keep_directory",
							   "Directory in which a background worker writes the traces that are kept.",
							   "Empty: there is no worker, and they are kept in memory alone.",
							   &keep_directory, "",
							   PGC_POSTMASTER, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);
}
