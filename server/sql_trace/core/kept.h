/*-------------------------------------------------------------------------
 * kept.h
 *		Kept recordings: what the ring of a session held when a trigger fired.
 *
 * A trigger (trigger.c) only notes a cause in its process: a slow request or
 * transaction, a request slower than its usual time, an error, a long wait for a
 * lock, many blocks.  When the answer
 * has left, the session copies its ring, and wait_event_timing its ring of
 * waits, into segments of their own (kept.c), and goes on with its ring as it is.  The
 * ring of a session that a cause ends is not copied: it stays among those of
 * sessions that have ended (ended.c), which nobody gives up while it is kept.
 *
 * A background worker writes what is kept to files, if there is a directory for
 * them (../writer/keeper.c); that gives its memory back.  While a session waits for a
 * lock for longer than its setting says, the worker looks who holds that up
 * (../writer/blockers.c), and writes what their rings hold at that moment.  They and
 * the session that waited have the same number of an incident.  The victim of a
 * deadlock knows from its error who else was in it, and asks the worker to do the same.
 * Nobody knows who holds an LWLock: wait_event_timing notes who else was in the same
 * wait as a long one ended (SameWait), and the kept trace lists these.
 *
 * Who finds out from outside what slows the server asks for the traces of sessions by
 * a function (../writer/for_finding.c).  The worker writes these as well, and they have
 * places, a number in an hour and a share of the directory of their own.
 *
 * A few are kept, and seldom: what made a statement fire once in a while for each
 * role, no more than sql_trace.keep_most in an hour, and half of them for one role.  What was not
 * kept for that reason is counted.
 *-------------------------------------------------------------------------
 */
#ifndef KEPT_H
#define KEPT_H

#include "ring.h"

#include "../../common/wait_copy.h"

#define MAX_KEPT 32
#define MAX_FOR_FINDINGS 32		/* places of their own */
#define MAX_PLACES (MAX_KEPT + MAX_FOR_FINDINGS)
#define KEPT_FILE_NAME 80
#define KEPT_DETAIL 64			/* of trigger_detail() */
#define MAX_IN_DEADLOCK 8		/* others than the victim of whom the traces are kept */

/* Numbers of them are nowhere but in this server's memory. */
typedef enum KeptCause
{
	CAUSE_NONE,
	CAUSE_SQLSTATE,				/* value: the SQLSTATE, as the server packs it */
	CAUSE_LOCK_WAIT,			/* value: ns */
	CAUSE_REQUEST,				/* ns */
	CAUSE_TRANSACTION,			/* ns */
	CAUSE_USUAL,				/* ns */
	CAUSE_BLOCKER,				/* process that waited for this one */
	CAUSE_DEADLOCK,				/* process that was the victim */
	CAUSE_FINDING				/* somebody asked, for what "label" names */
} KeptCause;

/* What a trigger notes when it fires */
typedef struct Firing
{
	KeptCause	cause;
	int64		value;
	int64		usual_ns;		/* of CAUSE_USUAL */
	TimestampTz at;
	int64		query_id;		/* 0: not known, or of a statement that is hidden */
	SameWait	same_wait;
	char		label[KEPT_DETAIL]; /* of CAUSE_FINDING */
} Firing;

typedef struct KeptTrace
{
	int64		id;				/* 0: it is being made */
	Firing		trigger;
	TraceEntry	trace;			/* "pid" 0: the place is free; "handle" 0: in a file alone */
	int64		incident;		/* the same of all sessions in it; 0: no others are known */
	bool		is_copy;		/* of the ring; else that lies among those that ended */
	bool		is_live;		/* the ring is the session's own, only until it is written; with
								 * an id and without a file: the worker is to write it */
	uint32		names;			/* bytes behind a copy: records of what it names in the dictionary */
	uint32		waits;			/* segment of the copied ring of waits, or 0 */
	uint64		waits_memory;
	TimestampTz waits_started;
	char		file[KEPT_FILE_NAME];	/* in sql_trace.keep_directory; empty: in none */
} KeptTrace;

/* What others can know of a process that may wait for locks */
typedef struct LockWatch
{
	int			pid;			/* whose this is */
	int			limit_ms;		/* waits longer than this are of interest; -1: none are */
	int64		incident;		/* of the wait of the request under way; 0: none */
	/* others in the deadlock of which this was the victim, until the keeper has taken them */
	pg_atomic_uint32 nothers;	/* 0: the rest is ours to write; else the keeper's to read */
	int			others[MAX_IN_DEADLOCK];
	int64		deadlock;		/* its incident */
} LockWatch;

typedef struct KeptShared
{
	LWLock		lock;			/* all of it */
	int			tranche;
	TimestampTz since;			/* when the server started */
	int64		last_id;
	int64		skipped;		/* not kept, by the limits of their number */
	int64		refused;		/* not kept, as there was no memory */
	pg_atomic_uint32 keeper;	/* number of the PGPROC that writes files, plus 1; 0: none can */
	pg_atomic_uint32 watches;	/* has any session ever wanted its waits for locks watched? */
	pg_atomic_uint32 deadlocks; /* has any been met that the keeper has not looked into? */
	pg_atomic_uint64 last_incident;
	KeptTrace	kept[MAX_PLACES];	/* from MAX_KEPT on: for findings */
	LockWatch	watch[FLEXIBLE_ARRAY_MEMBER];	/* by number of the PGPROC; own process alone,
												 * but for "incident": under the lock */
} KeptShared;

MODULE_LOCK_LEADS(KeptShared);

#pragma GCC visibility push(hidden)

/* kept_places.c */
extern void kept_shmem_init(void);
extern KeptShared *kept_get(void);
extern KeptShared *kept_get_or_error(void);
extern KeptTrace *kept_take_place(KeptShared *shared, const Firing *trigger,
								  const TraceEntry *trace_entry, int64 incident, bool live);
extern void kept_give_up_place(KeptShared *shared, KeptTrace *place);
extern void kept_publish(KeptShared *shared, KeptTrace *place, const KeptTrace *made);
extern void kept_wake_keeper(KeptShared *shared);
extern bool kept_find(int64 id, KeptTrace *found);
extern bool kept_done(int64 id, const char *file);
extern bool kept_is_near(TimestampTz at, TimestampTz other, int64 us);

/* kept.c */
extern void kept_copy(const Firing *trigger);
extern bool kept_session_ended(const Firing *trigger, RingHandle handle);
extern bool kept_begin_file(const Firing *trigger, const TraceEntry *of, int64 incident,
							KeptTrace *made);
extern void kept_end_file(const KeptTrace *made, const char *file);
extern void kept_watch_locks(int limit_ms);
extern void kept_forget_incident(void);
extern void kept_deadlock(const int *others, int n);

/* trigger.c */
extern bool trigger_armed;
extern bool trigger_ready;
extern void trigger_request_begins(bool traced);
extern void trigger_error(uint32 sqlstate, const char *deadlock);
extern void trigger_transaction_ended(int64 ns);
extern void trigger_request_ended(int64 ns, uint32 answered);
extern void trigger_answer_leaves(void);
extern void trigger_flushed(void);
extern bool trigger_session_ended(RingHandle handle);
extern const char *trigger_cause_name(KeptCause cause);
extern void trigger_detail(const Firing *trigger, char *to, Size size);

/* usual_time.c */
extern int64 usual_time(int64 query_id, int64 ns, int64 at_least);

/* Has somebody asked the worker to write it? */
static inline bool
kept_is_asked(const KeptTrace *kept)
{
	return kept->id != 0 && kept->is_live && kept->file[0] == '\0';
}

/* Bytes of a copy of a ring, which has what it names behind it; a multiple of 8 */
static inline Size
kept_copy_size(const Ring *ring)
{
	uint64		head = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &ring->head));

	return offsetof(Ring, data) + Min(head, ring->size);
}

#pragma GCC visibility pop

#endif							/* KEPT_H */
