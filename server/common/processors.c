/*-------------------------------------------------------------------------
 * processors.c
 *		How many processors this process may use.  Free of PostgreSQL.
 *
 * Those that its affinity allows, which a cpuset narrows; and no more than the
 * quota of any control group that it is in.  In a container the process sees the
 * groups from its own on, or the path of a group that is not there: then the
 * root of what is mounted is its own group.
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "processors.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_PROCESSORS 65536
#define LINE_BYTES 4096
#define FILE_BYTES (LINE_BYTES + 512)

/* Processors by affinity, or those online if that cannot be asked */
static double
allowed(void)
{
	for (int most = 1024; most <= MOST_PROCESSORS; most *= 2)
	{
		cpu_set_t  *set = CPU_ALLOC(most);
		size_t		size = CPU_ALLOC_SIZE(most);
		int			found = 0;

		if (set == NULL)
			break;
		if (sched_getaffinity(0, size, set) == 0)
			found = CPU_COUNT_S(size, set);
		CPU_FREE(set);
		if (found > 0)
			return found;
	}
	return (double) sysconf(_SC_NPROCESSORS_ONLN);
}

/* Reads up to two numbers; how many there are.  "max", as other words, is none. */
static int
numbers_in(const char *directory, const char *name, long long *first, long long *second)
{
	char		path[FILE_BYTES];
	FILE	   *file;
	int			n;

	if (snprintf(path, sizeof(path), "%s/%s", directory, name) >= (int) sizeof(path))
		return 0;
	file = fopen(path, "re");
	if (file == NULL)
		return 0;
	n = fscanf(file, "%lld %lld", first, second);
	fclose(file);
	return n > 0 ? n : 0;
}

/* The quota of one group in processors, or "most" if that is less. */
static double
quota_of(const char *directory, int version, double most)
{
	long long	quota = 0,
				period = 0,
				unused;
	int			known;

	if (version == 2)
		known = numbers_in(directory, "cpu.max", &quota, &period) == 2;
	else
		known = numbers_in(directory, "cpu.cfs_quota_us", &quota, &unused) == 1 &&
			numbers_in(directory, "cpu.cfs_period_us", &period, &unused) == 1;
	if (!known || quota <= 0 || period <= 0 || (double) quota / (double) period > most)
		return most;
	return (double) quota / (double) period;
}

/* The same of a group and all above it: "group" is its path, and is cut. */
static double
quota_of_all(const char *mount, char *group, int version, double most)
{
	for (;;)
	{
		char		directory[FILE_BYTES];
		char	   *slash;

		if (snprintf(directory, sizeof(directory), "%s%s", mount, group) < (int) sizeof(directory))
			most = quota_of(directory, version, most);
		slash = strrchr(group, '/');
		if (slash == NULL)
			return most;
		*slash = '\0';
	}
}

static int
names_processors(const char *controllers)
{
	char		copy[LINE_BYTES];
	char	   *rest = copy;
	char	   *name;

	snprintf(copy, sizeof(copy), "%s", controllers);
	while ((name = strsep(&rest, ",")) != NULL)
		if (strcmp(name, "cpu") == 0)
			return 1;
	return 0;
}

/* The groups of this process, one a line: number:controllers:path; those of version 2 have none. */
static double
quota(const char *root, double most)
{
	char		path[FILE_BYTES];
	char		line[LINE_BYTES];
	FILE	   *file;

	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	file = fopen(path, "re");
	if (file == NULL)
		return most;
	while (fgets(line, sizeof(line), file) != NULL)
	{
		char	   *rest = line;
		char	   *controllers;

		line[strcspn(line, "\n")] = '\0';
		(void) strsep(&rest, ":");
		controllers = strsep(&rest, ":");
		if (controllers == NULL || rest == NULL)
			continue;
		if (controllers[0] == '\0')
		{
			/* next to version 1, version 2 is mounted apart */
			const char *mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};

			for (int i = 0; i < 2; i++)
			{
				char		group[LINE_BYTES];

				snprintf(group, sizeof(group), "%s", rest);
				snprintf(path, sizeof(path), "%s%s", root, mounts[i]);
				most = quota_of_all(path, group, 2, most);
			}
		}
		else if (names_processors(controllers))
		{
			const char *mounts[] = {controllers, "cpu"};

			for (int i = 0; i < 2; i++)
			{
				char		group[LINE_BYTES];

				snprintf(group, sizeof(group), "%s", rest);
				snprintf(path, sizeof(path), "%s/sys/fs/cgroup/%.256s", root, mounts[i]);
				most = quota_of_all(path, group, 1, most);
			}
		}
	}
	fclose(file);
	return most;
}

double
processors_usable(const char *root)
{
	return quota(strcmp(root, "/") == 0 ? "" : root, allowed());
}
