/*-------------------------------------------------------------------------
 * ended_rings.h
 *		Rings of processes that have ended: which of them stay to be read, and for how
 *		long.
 *
 * A few stay: in no more memory than they need, within the share of what all rings
 * may take, and for a while.  A place is taken from the role whose process ends, so
 * that nobody can push out all that others have left, and first from what has been
 * read.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_ENDED_RINGS_H
#define PGTARE_ENDED_RINGS_H

#include "postgres.h"

#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "ring_place.h"

/* What the entry of a ring begins with, of a process or of one that ended */
typedef struct EndedRing
{
	RingHandle	handle;			/* 0: none */
	Oid			role;
	bool		kept;			/* of one that ended: it does not make way */
	TimestampTz ended;			/* 0: it lives */
	uint64		memory;			/* that is counted for it */
	uint64		unread;			/* bytes of one that ended; 0: nobody misses it */
} EndedRing;

/* A structure that does: its first members are these, and "unread" has the name that is given */
#define ENDED_RING_LEADS(type, unread_member) \
	StaticAssertDecl(offsetof(type, handle) == offsetof(EndedRing, handle) && \
					 offsetof(type, role) == offsetof(EndedRing, role) && \
					 offsetof(type, kept) == offsetof(EndedRing, kept) && \
					 offsetof(type, ended) == offsetof(EndedRing, ended) && \
					 offsetof(type, memory) == offsetof(EndedRing, memory) && \
					 offsetof(type, unread_member) == offsetof(EndedRing, unread), \
					 "the entry of a ring begins as those of rings that ended do")

/* Those of a module, in its shared memory */
typedef struct EndedRings
{
	LWLock	   *lock;
	pg_atomic_uint64 *oldest;	/* when the first of them ended; 0: there are none */
	char	   *entries;
	Size		entry_size;
	int			n;
	void		(*gone) (const EndedRing *entry);	/* one makes way, under the lock; or NULL */
} EndedRings;

/* What has made way, to be freed without the lock */
typedef struct EndedGone
{
	int			n;
	RingHandle	handle[32];
} EndedGone;

#pragma GCC visibility push(hidden)

/*
 * The caller holds the lock.  A process ends: its entry moves to those from "first" on,
 * "n" of them, and those that are no longer to be kept make way.  "for_kept": bytes that
 * all together may take.  NULL: there is no place, and nobody has its ring.
 */
extern EndedRing *ended_rings_add(EndedRings rings, int first, int n, EndedRing *of,
								  uint64 for_kept, EndedGone *gone);
extern void ended_rings_free(const EndedGone *gone);

/* The caller holds the lock, and has changed entries. */
extern void ended_rings_note_oldest(EndedRings rings);

/* A ring that begins needs memory: give up one of these.  False: there are none. */
extern bool ended_rings_make_way(EndedRings rings, int first, int n);

/* Give up those that ended by then; returns how many. */
extern int	ended_rings_give_up(EndedRings rings, TimestampTz until);

/* Give up those that have been kept for long enough; "failure": what the log has if that fails */
extern void ended_rings_give_up_old(EndedRings rings, const char *failure);

#pragma GCC visibility pop

#endif							/* PGTARE_ENDED_RINGS_H */
