/*-------------------------------------------------------------------------
 * same_wait.c
 *		Who else is in the LWLock wait that this process just ended.
 *
 * Nobody knows who holds an LWLock.  What can be known is which processes are in
 * the same wait, and only while it lasts: a process looks as its own wait ends, when
 * the others have not been woken yet, or not been scheduled.  It reads one word of
 * each process's shared memory and takes no lock.
 *
 * That delays a process that has just been given a lock.  So it is done only while a
 * module wants it, and once for each 10 ms that the process has waited for LWLocks
 * since it last looked: a look at 1,000 processes takes some 0.1 ms at worst.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"

#include "waits.h"

#define LOOK_EVERY_NS INT64CONST(10000000)

bool		same_wait_watched = false;

static SameWait found;
static int64 waited_ns;			/* since "found" was cleared */
static int64 looked_at_ns;		/* when it was so much */

/* Begin anew, or end. */
void
same_wait_watch(bool wanted)
{
	same_wait_watched = wanted;
	found.event = 0;
	found.sessions = 0;
	waited_ns = looked_at_ns = 0;
}

/* The look at which most others were in the same wait; "event" 0: there was none. */
const SameWait *
same_wait_found(void)
{
	return &found;
}

static void
look(uint32 event)
{
	SameWait	now;

	now.event = event;
	now.waited_ns = waited_ns;
	now.sessions = 0;
	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		const volatile PGPROC *proc = &ProcGlobal->allProcs[i];

		if (proc->wait_event_info != event || proc->pid == 0 || proc->pid == MyProcPid)
			continue;
		if (now.sessions < MOST_IN_SAME_WAIT)
			now.pids[now.sessions] = proc->pid;
		now.sessions++;
	}
	if (found.event != 0 && now.sessions <= found.sessions)
		return;
	now.at = GetCurrentTimestamp();
	found = now;
}

/* A wait for an LWLock is over, while it is still announced. */
void
same_wait_ended(uint32 event, int64 start)
{
	const Shared *shared = shmem_get();
	uint64		ignored = 0;

	if (shared == NULL || MyProc == NULL)
		return;
	waited_ns += clock_ns(timing_rate(shared, capture.clock),
						  clock_source_read(capture.clock) - start, &ignored);
	if (waited_ns - looked_at_ns < LOOK_EVERY_NS)
		return;
	looked_at_ns = waited_ns;
	look(event);
}
