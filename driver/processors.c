/*-------------------------------------------------------------------------
 * processors.c
 *		Giving each thread and its backends one processor to share.
 *
 * Left to itself, the scheduler settles one cluster's backend next to the
 * client and another's on a processor that must be woken for each request,
 * for seconds or for the whole run: a difference between clusters several
 * times larger than any variant's.  On one shared processor all take the same
 * way.  A closed loop loses nothing by it, as only one of them runs at a time.
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "duet.h"

/* The processor of a thread, among those that this process may use */
static bool
processor_of(int thread, cpu_set_t *one)
{
	static cpu_set_t usable;
	static bool known = false;
	int			skip;

	/* asked by the main thread first, before it starts others */
	if (!known && sched_getaffinity(0, sizeof(usable), &usable) != 0)
		return false;
	known = true;
	skip = thread % CPU_COUNT(&usable);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
	{
		if (CPU_ISSET(cpu, &usable) && skip-- == 0)
		{
			CPU_ZERO(one);
			CPU_SET(cpu, one);
			return true;
		}
	}
	return false;
}

/* Pin the server's side of a connection; false if the run has been ended for a failure. */
bool
pin_backend(Link *link)
{
	const char *host = PQhost(link->conn);
	cpu_set_t	one;

	/* elsewhere the backend's number is that of some other process, or of none */
	if (host == NULL || host[0] != '/')
	{
		run_end(link->run, ENDED_BY_FAILURE,
				"cluster %d: backends can be pinned only if the connection is by a Unix socket",
				link->cluster);
		return false;
	}
	if (!processor_of(link->thread, &one) ||
		sched_setaffinity(PQbackendPID(link->conn), sizeof(one), &one) != 0)
	{
		run_end(link->run, ENDED_BY_FAILURE, "cluster %d: cannot pin its backend %d: %s",
				link->cluster, PQbackendPID(link->conn), strerror(errno));
		return false;
	}
	return true;
}

/* Pin the calling thread. */
bool
pin_thread(int thread)
{
	cpu_set_t	one;

	return processor_of(thread, &one) && sched_setaffinity(0, sizeof(one), &one) == 0;
}
