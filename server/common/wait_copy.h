/*-------------------------------------------------------------------------
 * wait_copy.h
 *		What wait_event_timing offers a module that keeps traces of incidents: a
 *		copy of this process's ring of waits, how long it waited for locks, and who
 *		else was in its waits for LWLocks.
 *
 * The offer is found by find_rendezvous_variable(WAIT_COPY_OFFER); the name
 * carries the version of the structure.  What reads a ring reads a copy, too
 * (wait_rings.h).
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_WAIT_COPY_H
#define PGTARE_WAIT_COPY_H

#include "postgres.h"

#include "utils/timestamp.h"

#define WAIT_COPY_OFFER "wait_event_timing/copy/2"

#define MOST_IN_SAME_WAIT 16

/* Other processes that were in an LWLock wait when this process ended its own */
typedef struct SameWait
{
	uint32		event;			/* of the wait; 0: nobody looked */
	int			sessions;		/* others that were in it */
	int64		waited_ns;		/* for LWLocks, of whatever event, in the request until then */
	TimestampTz at;
	int			pids[MOST_IN_SAME_WAIT];	/* of the first of them */
} SameWait;

typedef struct WaitCopyOffer
{
	/*
	 * Copy the ring of this process into a pinned segment, whose memory counts
	 * among what is kept: the caller lets go of both.  False: there is no ring.
	 * An error leaves nothing behind.
	 */
	bool		(*copy) (uint32 *handle, uint64 *memory, TimestampTz *started);

	/*
	 * How long this process waited for heavyweight locks since this was called
	 * last, in ns; of waits that are captured.
	 */
	int64		(*lock_waits) (void);

	/* Look who else is in our long waits for LWLocks, from now on; false: no longer. */
	void		(*watch_same_wait) (bool wanted);

	/* What was seen since */
	const SameWait *(*same_wait) (void);
} WaitCopyOffer;

#endif							/* PGTARE_WAIT_COPY_H */
