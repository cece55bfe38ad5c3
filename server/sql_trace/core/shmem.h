/*-------------------------------------------------------------------------
 * shmem.h
 *		What all sessions share: whose traces there are, not what is in them.
 *
 * "Shared" is in the main segment, or in a named dynamic one if a session loads
 * the library (../../common/module_shmem.h).  It has a Slot for each process, and a
 * TraceEntry for each ring that can be read.  The lock in it protects whose a slot
 * is, the identities of rings, and the rings of sessions that ended.  No hook takes
 * it while a statement runs.
 *
 * When a session ends, or gives up its trace, its entry moves to "ended" (ended.c).
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_SHMEM_H
#define SQL_TRACE_SHMEM_H

#include "postgres.h"

#include "port/atomics.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

#include "../../common/clock.h"
#include "../../common/ended_rings.h"
#include "../../common/module_shmem.h"

#define MAX_ENDED 16			/* traces kept of sessions that have gone */

/* What one trace has counted, or all together */
typedef struct Counters
{
	uint64		records;
	uint64		bytes;
	uint64		lost_records;	/* overwritten before any reader had them */
	uint64		lost_bytes;
	uint64		wait_requests;	/* requests traced together with their waits */
	uint64		row_sources;	/* executions traced with their row sources */
} Counters;

/* What was given up before anybody had read it, or would be */
typedef struct Unread
{
	uint64		bytes;
	uint64		sessions;
	uint64		records;
} Unread;

/* A trace that can be read: of a session, or one that ended; handle 0: none */
typedef struct TraceEntry
{
	RingHandle	handle;
	Oid			role;
	bool		kept;			/* of one that ended: it does not make way (kept.h) */
	TimestampTz ended;			/* 0: it lives */
	uint64		memory;			/* that is counted for it */
	Unread		unread;			/* of one that ended */
	int			pid;
	Oid			database;
	TimestampTz started;
	uint64		ring_bytes;
	int			level;			/* now in force */
	int			reason;			/* LevelReason */
	bool		waits;			/* are traced as well */
	bool		others;			/* holds what ran with the rights of another role */
	Counters	counters;
	char		application[NAMEDATALEN];
} TraceEntry;

ENDED_RING_LEADS(TraceEntry, unread.bytes);

/*
 * One session.  Others write only "asked" and "asked_level", with the lock, under
 * which the slot changes hands: so what is asked of one is never heard by the next.
 */
typedef struct Slot
{
	int			pid;			/* 0: nobody; under the lock */
	pg_atomic_uint32 asked_level;	/* what another session wants; NOT_ASKED: nothing */
	pg_atomic_uint32 asked;		/* times that it changed */
	TraceEntry	trace;			/* identity under the lock; counters by the owner alone */
} Slot;

#define NOT_ASKED UINT32_MAX

typedef struct Shared
{
	LWLock		lock;			/* identities of traces, and whose the slots are */
	int			tranche;
	ClockRate	rate;			/* of the processor's counter */
	uint32		nslots;
	pg_atomic_uint64 refused;	/* traces for which there was no memory */
	pg_atomic_uint64 oldest_ended;	/* when the first of "ended" did; 0: there are none */
	Counters	ended_totals;	/* of all that ever ended */
	Unread		unread;			/* of those, when they were given up */
	TraceEntry	ended[MAX_ENDED];
	/* slots, by number of the PGPROC, follow */
} Shared;

MODULE_LOCK_LEADS(Shared);

#pragma GCC visibility push(hidden)

/* shmem.c */
extern void shmem_init(void);
extern ModuleShmem shmem_memory;
extern Shared *shmem_get_or_error(void);
extern Slot *shmem_slot(Shared *shared, uint32 number);
extern TraceEntry *shmem_trace(Shared *shared, uint32 i);
extern bool shmem_find_trace(Shared *shared, int pid, bool ended, TraceEntry *found);

/* The shared state, or NULL if there is none */
static inline Shared *
shmem_get(void)
{
	return module_shmem_get(&shmem_memory);
}

/* ended.c */
struct Ring;
extern void ended_count(Counters *sum, const Counters *counters);
extern bool ended_keep(Shared *shared, TraceEntry *of, struct Ring *ring, dsm_segment *segment);
extern void ended_let_go(Shared *shared, TraceEntry *of, struct Ring *ring);
extern void ended_read(Shared *shared, RingHandle handle, struct Ring *ring);
extern bool ended_hold(Shared *shared, RingHandle handle, bool held, TraceEntry *found);
extern bool ended_make_way(void);
extern int	ended_give_up(Shared *shared);
extern void ended_look(void);

#pragma GCC visibility pop

#endif							/* SQL_TRACE_SHMEM_H */
