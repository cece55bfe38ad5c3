/*-------------------------------------------------------------------------
 * waits.h
 *		Shared state of wait timing, and what the files of the module offer
 *		each other.
 *
 * The server announces a wait in *my_wait_event_info and then blocks in libc.
 * We take over the executable's calls of libc and time them while a wait is
 * announced.
 *
 * One file a phase, with the settings that it obeys: module.c (loading), shmem.c
 * (shared state), slot.c (the slot of a process), wrapped_calls.c and wrap.h (the
 * calls taken over), process.c (what a process knows of itself, and for how long
 * its waits are captured), capture.c (its waits), level.c (level and clock),
 * stats.c (tables of a process and of all that ended), statements.c (table by
 * statement), trace.c (messages to the client, statements in a trace), ring.c and
 * ring_write.h (the trace of a process), recorder_ring.c (in the area), ended.c (traces
 * that processes leave), offer.c (what it offers other modules), ring_copy.c (a copy of
 * a trace for them), explain.c (EXPLAIN), bench.c (what a wait costs).
 * For SQL: views.c (waits), moment.c (all of them at one moment), statement_view.c
 * (by statement), under_way.c (those of statements that are in no table yet), read.c
 * (traces), info.c (the module), control.c (set and reset), sql.c (what these
 * share).
 *-------------------------------------------------------------------------
 */
#ifndef WAITS_H
#define WAITS_H

#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "../common/call_slots.h"
#include "../common/clock_trust.h"
#include "../common/ended_rings.h"
#include "../common/module_shmem.h"
#include "../common/pg_compat.h"
#include "../common/ring_area.h"
#include "../common/ring_memory.h"
#include "../common/ring_place.h"
#include "../common/version.h"
#include "../common/wait_clock.h"
#include "../common/wait_copy.h"

#define WAIT_CLASS(event) ((event) >> 24)
#define CLASS_LWLOCK		0x01
#define CLASS_LOCK			0x03
#define CLASS_BUFFERPIN		0x04
#define CLASS_ACTIVITY		0x05
#define CLASS_CLIENT		0x06
#define CLASS_EXTENSION		0x07
#define CLASS_TIMEOUT		0x09

/*
 * Waits for work to do, and pauses that pace work in the background: they hold nothing
 * up.  Other waits of the same event can, so the process that waits decides, and sets a
 * bit that no event's number has.  Tables then hold the two kinds as two events.
 */
#define RESTING UINT32_C(0x00800000)
#define EVENT_NUMBER(event) ((event) & ~RESTING)
#define IS_IDLE(event) \
	(WAIT_CLASS(event) == CLASS_ACTIVITY || ((event) & RESTING) != 0)

#define HISTOGRAM_BUCKETS 32
#define FIRST_BUCKET_BITS 8		/* bucket 0 holds what is shorter than 256 ns */

#define SLOT_EVENTS 160			/* distinct events of one process */
#define SLOT_INDEX 256
#define TOTAL_EVENTS 1024		/* distinct (backend type, event), power of two */
#define STATEMENT_WAYS 8		/* entries that share a bucket and its lock */
#define PENDING_WAITS 64

typedef enum CaptureLevel
{
	CAPTURE_OFF,
	CAPTURE_STATS,
	CAPTURE_TRACE,
	CAPTURE_ENDING				/* off, as soon as a background process has let go of its ring */
} CaptureLevel;

/* Counts and times of one event; key 0 is free */
typedef struct EventStats
{
	uint64		key;
	uint64		waits;
	uint64		calls;			/* a wait can take several */
	uint64		total_ns;
	uint64		max_ns;
	uint64		histogram[HISTOGRAM_BUCKETS];	/* of waits */
} EventStats;

/* A wait that is over and not yet in a table; or, with a class of 0, a mark for the trace */
typedef struct Pending
{
	uint32		event;			/* of a mark: its RecordKind */
	uint32		calls;			/* of a mark: the nesting depth */
	int64		start;			/* ticks */
	int64		length;			/* ticks; of a mark: its value */
	uint64		query_id;
} Pending;

/*
 * One process.  Only the owner writes, but for "level", "asked" and "reset_wanted".
 * "changes" is odd while the tables change: a reader reads it before and
 * after, and again if it moved.
 */
typedef struct Slot
{
	/* written at every wait */
	pg_atomic_uint32 level;		/* CaptureLevel in force */
	pg_atomic_uint32 asked;		/* times that others set it, since its own session
								 * did; then no pattern changes it */
	volatile uint32 current_event;	/* 0: no wait that we see */
	volatile int64 current_start;	/* ticks or ns, of "clock" */
	uint32		clock;			/* ClockSource */
	volatile uint32 turns;		/* odd while a wait that is over is put down */
	volatile int64 call_start;	/* of a wait for a lock, which can take several calls */
	pg_atomic_uint64 timed_since;	/* since then its waits are captured; 0: they are not */
	volatile int64 timed_until; /* when that was closed last */
	pg_atomic_uint64 timed_ns;	/* how long they were captured before; no reset touches it */
	volatile uint32 npending;
	Pending		pending[PENDING_WAITS];

	/* written when waits are folded in */
	pg_atomic_uint32 changes;
	pg_atomic_uint32 configured;	/* CaptureLevel by the settings of the process */
	int			pid;			/* 0: nobody */
	uint32		number;			/* of the PGPROC */
	bool		recorded;		/* its ring is to be in the area */
	int			backend_type;
	Oid			database;
	Oid			role;
	uint32		nevents;
	pg_atomic_uint64 reset_wanted;	/* requested by any session */
	uint64		reset_done;		/* obeyed by the owner */
	uint64		overflows;		/* waits whose event found no room */
	uint64		negative;		/* clock differences below zero */
	uint64		missed;			/* waits seen but not recorded */
	uint64		statements_missed;
	uint64		records;		/* written to its trace; no reset touches them */
	uint8		index[SLOT_INDEX];	/* number of the entry + 1 */
	EventStats	events[SLOT_EVENTS];	/* the last is for events without room */
} Slot;

StaticAssertDecl(sizeof(Slot) <= 50 * 1024, "counters of a process take 50 KiB at most");

typedef struct Statement
{
	uint64		query_id;
	Oid			role;
	Oid			database;
	int64		last_used;		/* counter ticks */
	EventStats	stats;			/* key: the event */
	uint64		identity;		/* given when it is made, and never again */
} Statement;

typedef struct StatementBucket
{
	pg_atomic_uint32 lock;		/* PID of the process that has taken it; none ever waits for it */
	uint32		made;			/* entries ever; no reset touches it */
	Statement	way[STATEMENT_WAYS];
} StatementBucket;

/* What a record of a trace is; clients know these numbers. */
typedef enum RecordKind
{
	RECORD_WAIT = 1,
	RECORD_STATEMENT_BEGIN = 2, /* value: query identifier */
	RECORD_STATEMENT_END = 3,	/* value: rows */
	RECORD_CPU = 4,				/* value: ns of the thread since the session began */
	RECORD_COMMIT = 5,
	RECORD_ABORT = 6			/* at depth 0 it ends the statement, too */
} RecordKind;

/* A record of a trace, as clients read it: keep in step with the decoder. */
typedef struct TraceRecord
{
	volatile uint32 seq;		/* low bits of its number + 1; 0: being written */
	uint16		kind;			/* RecordKind */
	uint16		depth;			/* of nested statements */
	uint32		event;
	uint32		calls;
	int64		start_ns;		/* since the ring began */
	int64		value;			/* of a wait: its length in ns */
} TraceRecord;

StaticAssertDecl(sizeof(TraceRecord) == 32, "clients read records of 32 bytes");

/* The ring of a process, in a dynamic segment of its own or in the area; or a copy of it */
typedef struct TraceRing
{
	pg_atomic_uint64 written;	/* records ever */
	uint32		nrecords;		/* power of two */
	int			pid;
	TimestampTz started;
	TraceRecord records[FLEXIBLE_ARRAY_MEMBER];
} TraceRing;

/* Background workers that the server starts by itself; beyond any BackendType */
#define PARALLEL_WORKER 100
#define LOGICAL_LAUNCHER 101

#define SMALLEST_RING 1024		/* records */

/* Types of process whose time is summed up; the last two are those above */
#define TIMED_TYPES 34
#define TIMED_TYPE(type) \
	((uint32) (type) < PARALLEL_WORKER ? Min((uint32) (type), TIMED_TYPES - 3) : \
	 TIMED_TYPES - 2 + (uint32) (type) - PARALLEL_WORKER)
#define TYPE_TIMED(timed) \
	((timed) < TIMED_TYPES - 2 ? (timed) : PARALLEL_WORKER + (timed) - (TIMED_TYPES - 2))

#define MAX_ENDED_RINGS 8		/* kept of processes that have gone, and of parallel workers */

/* A ring that can be read: of a process, or one that ended; handle 0: none */
typedef struct RingEntry
{
	RingHandle	handle;
	Oid			role;
	bool		kept;			/* none is */
	TimestampTz ended;			/* 0: it lives */
	uint64		memory;			/* that is counted for it */
	uint64		unread;			/* of one that ended: not known, so not 0 */
	int			pid;
	int			leader_pid;		/* of a parallel worker, or 0 */
	int			backend_type;
	uint32		nrecords;
	TimestampTz started;
} RingEntry;

ENDED_RING_LEADS(RingEntry, unread);

#define MAX_EXPLAINS 16			/* EXPLAIN (WAITS) at one time that see their workers */
#define EXPLAIN_EVENTS 48

/* Where parallel workers leave what an explained statement waited for in them */
typedef struct ExplainArea
{
	pg_atomic_uint32 pid;		/* leader, or 0 */
	int			workers;
	int			depth;			/* of the EXPLAIN among nested statements */
	EventStats	events[EXPLAIN_EVENTS]; /* key: the event */
} ExplainArea;

typedef struct Shared
{
	LWLock		lock;			/* "totals", and the death of slots */
	int			tranche;
	ClockRate	rate;			/* of the processor's counter */
	uint32		nslots;
	uint32		nbuckets;		/* power of two */
	TimestampTz made_at;
	TimestampTz reset_at;
	/* sums of processes that ended */
	uint64		overflows;
	uint64		negative;
	uint64		missed;
	uint64		statements_missed;
	uint64		processes;
	uint64		records;
	uint64		total_overflows;	/* events that found no room in "totals" */
	pg_atomic_uint64 evictions;
	pg_atomic_uint64 resets;	/* of all counters or of one process: RESET_BEGINS, RESET_ENDS */
	pg_atomic_uint64 skipped;	/* processes and buckets that readers found busy */
	pg_atomic_uint64 refused;	/* traces for which there was no memory */
	pg_atomic_uint64 oldest_ended;	/* when the first of those below did; 0: there are none */
	TimestampTz refused_at;		/* when the log got the last line */
	RingEntry	ended[2 * MAX_ENDED_RINGS]; /* parallel workers in the second half */
	ExplainArea explains[MAX_EXPLAINS];
	uint64		timed_ns[TIMED_TYPES];	/* by backend type, of processes that ended */
	EventStats	totals[TOTAL_EVENTS + 1];	/* key: backend type + 1, event; without room */
	/* slots, by number of the PGPROC, then buckets, and rings by PGPROC follow */
} Shared;

MODULE_LOCK_LEADS(Shared);

typedef enum CallKind
{
	CALL_OTHER,
	CALL_EPOLL_WAIT,
	CALL_READ,
	CALL_SEM_WAIT
} CallKind;

/* Resets that are over, and in the low bits those that run */
#define RESETS_RUNNING_BITS 20
#define RESET_BEGINS UINT64CONST(1)
#define RESET_ENDS ((UINT64CONST(1) << RESETS_RUNNING_BITS) - 1)

/* What came of an attempt to copy a slot */
typedef enum SlotCopy
{
	SLOT_FREE,					/* nobody has it */
	SLOT_COPIED,
	SLOT_BUSY					/* its owner is stopped in the midst of a change */
} SlotCopy;

/* What a process knows of itself */
typedef struct Capture
{
	pg_atomic_uint32 *level;	/* whether to look at waits at all */
	Slot	   *slot;
	ClockSource clock;
	CallKind	last_kind;
	bool		last_interrupted;
	bool		folding;
	uint64		waits;			/* calls in waits, ever */
	int			lock_entry;		/* pending entry of a lock still waited for, or -1 */
	uint64		lock_since;		/* tells one wait for a lock from the next */
	uint64		lock_now;		/* the same, of the wait under way */
	TraceRing  *ring;			/* NULL: no trace */
	int64		ring_base;		/* ticks ... */
	int64		ring_base_ns;	/* ... and the time in the ring that they mean */
	uint32		clock_changes;	/* of those, of the ring, of the clock */
	uint32		level_sets;		/* how often this session has set its level itself */
	RingBlock	block;			/* of the ring, if it is in the area */
	uint64		most;			/* bytes to which such a ring grows */
	uint32		asked_for_waits;	/* "asked" since only another module wants them; 0: not so */
} Capture;

/* no detour through our own offset table at every wait */
#pragma GCC visibility push(hidden)

/* shmem.c */
extern void shmem_init(void);
extern ModuleShmem shmem_memory;
extern Slot *shmem_slot(Shared *shared, uint32 number);
extern StatementBucket *shmem_bucket(Shared *shared, uint32 number);
extern RingEntry *shmem_ring(Shared *shared, uint32 number);

/* wrapped_calls.c */
extern bool calls_hooks;		/* setting: they are taken over */
extern void calls_init(void);
extern void calls_install(void);
extern CallSlot calls_taken[];
extern const int calls_ntaken;

/* process.c */
extern Capture capture;
extern int	capture_setting;	/* setting: a CaptureLevel, for which the slot's counts */
extern int	capture_clock;		/* setting: a ClockSource, for which that of "capture" counts */
extern const ClockRate timing_nanoseconds;
extern void timing_stop(Slot *slot, const Shared *shared, int64 now);
extern void timing_stop_own(void);
extern void timing_follow_level(void);
extern void timing_add_wait(int64 start, int64 end);

/* slot.c */
extern bool slot_attach(void);
extern bool slot_present(void);
extern void slot_detach(void);
extern void slot_follow_leader(void);

/* level.c */
extern const struct config_enum_entry level_names[];
extern void level_init(void);

/* same_wait.c */
extern bool same_wait_watched;
extern void same_wait_watch(bool wanted);
extern const SameWait *same_wait_found(void);
extern void same_wait_ended(uint32 event, int64 start);

/* The shared state, or NULL if there is none */
static inline Shared *
shmem_get(void)
{
	return module_shmem_get(&shmem_memory);
}

/* What turns readings of a clock into nanoseconds */
static inline const ClockRate *
timing_rate(const Shared *shared, ClockSource clock)
{
	return clock_source_counts(clock) ? &shared->rate : &timing_nanoseconds;
}

/* capture.c */
extern void capture_fold_now(Slot *slot);
extern void capture_abandon(void);
extern int64 capture_begin_lock(uint32 event);
extern void capture_record(uint32 event, int64 start, int64 end, CallKind kind,
						   bool interrupted);
extern void capture_mark(RecordKind kind, int depth, int64 value);

/* Move all finished waits into the tables.  Safe inside a wait: it takes no lock. */
static inline void
capture_fold(void)
{
	Slot	   *slot = capture.slot;

	if (slot != NULL &&
		(slot->npending != 0 || pg_atomic_read_u64(&slot->reset_wanted) != slot->reset_done))
		capture_fold_now(slot);
}

/* ring.c */
extern void ring_init(void);
extern TimestampTz ring_refused_at;
extern void ring_open(void);
extern void ring_follow_in_background(void);
extern void ring_follow_level(void);
extern void ring_let_end(Slot *slot, bool has_ring);
extern struct dsm_segment *ring_segment(uint32 nrecords);
extern void ring_answered(const char *status);
extern void ring_rebase(const Shared *shared, int64 old_ticks, ClockSource old,
						int64 new_ticks);

/* recorder_ring.c */
extern void recorder_may_grow(void);
extern bool recorder_claim(void);
extern void recorder_let_rest(void);
extern void recorder_rest(bool idle);
extern void recorder_leave(Shared *shared);

/* ended.c */
extern bool ended_keep(Shared *shared, RingEntry *of, const TraceRing *ring,
					   struct dsm_segment *segment);
extern bool ended_make_way(void);
extern void ended_give_up(Shared *shared);
extern void ended_look(void);

/* read.c */
extern RingEntry *read_ring_entry(Shared *shared, uint32 i);
extern uint64 read_written(TraceRing *ring);
extern bool read_record(TraceRing *ring, uint64 number, TraceRecord *copy);

/* offer.c */
extern void offer_install(void);

/* trace.c */
extern CpuReading trace_cpu;
extern void trace_install(void);
extern int	trace_depth(void);
extern void trace_follow_level(void);

/* ring_copy.c */
extern bool ring_copy(uint32 *handle, uint64 *memory, TimestampTz *started);

/* explain.c */
#if HAVE_EXPLAIN_OPTIONS
extern struct Explained *explain_innermost; /* NULL: no EXPLAIN (WAITS) is under way */
extern void explain_install(void);
extern void explain_ends(int depth);
extern void explain_executor_starts(bool instrumented);
extern void explain_executor_ends(void);
#else
#define explain_innermost ((struct Explained *) NULL)
#define explain_install() ((void) 0)
#define explain_ends(depth) ((void) 0)
#define explain_executor_starts(instrumented) ((void) 0)
#define explain_executor_ends() ((void) 0)
#endif

/* stats.c */
extern void stats_clear_slot(Slot *slot);
extern EventStats *stats_entry(Slot *slot, uint32 event);
extern void stats_fold_into_totals(Shared *shared, const Slot *slot);
extern SlotCopy stats_copy_slot(Slot *from, Slot *to);
extern void stats_merge(EventStats *into, const EventStats *from);
extern void stats_count(EventStats *stats, const Pending *wait, uint64 ns);
extern EventStats *stats_total_entry(EventStats *totals, int backend_type, uint32 event);

/* statements.c */
extern void statements_begin(Shared *shared);
extern bool statements_add(Shared *shared, const Pending *wait, uint64 ns);
extern void statements_end(void);
extern void statements_abandon(void);
extern bool statements_lock(StatementBucket *bucket);
extern void statements_unlock(StatementBucket *bucket);
extern void statements_reset(Shared *shared);

#pragma GCC visibility pop

#endif							/* WAITS_H */
