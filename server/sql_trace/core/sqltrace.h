/*-------------------------------------------------------------------------
 * sqltrace.h
 *		How the module works, its shared state, and what its files offer each
 *		other.
 *
 * A traced session records what it does for its client: each parse, plan,
 * execution, fetch and commit with its times, rows and blocks; the texts, plans
 * and values of statements; errors; and on request what each node of a plan
 * took.  docs/sql-trace.md is the user's view, docs/trace-format.md describes
 * the bytes of the records (records.h).
 *
 * The way of a record:
 *
 * 1. PostgreSQL calls one of our hooks: when a statement is parsed, planned or
 *	  executed, when a transaction ends, when a message goes to the client.
 * 2. If it is the first since the last ReadyForQuery, a request begins:
 *	  request_begins() looks at the settings and at what other sessions asked
 *	  for (level.c), and switches "trace.on" on or off for this request.  A
 *	  session that is not traced pays for a look at two flags in each hook.
 * 3. The hook fills a Call.  When the call has ended, call_write() writes its
 *	  record, after those of the text and the plan if the ring does not hold
 *	  them (text.c, plan.c); what the recorder needs again is in a dictionary
 *	  (dictionary.h).  Mostly all calls of a request, its values and its
 *	  transaction are kept back and make one record when it has been answered
 *	  (fused.c).  Fetches in a row share a record, too (fetches.c).
 * 4. record.c decides what goes before the record.  ring_store.h stores its bytes
 *	  in the ring of the session.  A full ring overwrites its oldest records; what no
 *	  reader had fetched is counted as lost.
 * 5. A reader copies records out of the ring while the session writes on
 *	  (ring_copy.c): a client by sql_trace_drain() (read.c), or the background
 *	  worker, which writes files (writer/).
 * 6. When the session ends, its ring is kept for a while (ended.c).  What a ring held
 *	  when a trigger fired is kept for longer (kept.h).
 *
 * Memory and locks:
 *
 * - "Shared" is in the main segment, or in a named dynamic one if a session
 *	 loads the library (../../common/module_shmem.h).  It has a Slot for each process, and a TraceEntry for each
 *	 ring that can be read.  The lock in it protects whose a slot is, the
 *	 identities of rings, and the rings of sessions that ended.  No hook takes it
 *	 while a statement runs.
 * - A ring is a dynamic segment with one writer, its session, which takes no
 *	 lock.  Readers take none either: they copy, and look afterwards at whether
 *	 the copy was overwritten under their hands.
 * - A ring that nobody asked for, but the recorder, is in an area of the main segment
 *	 (../../common/ring_area.h), and not in a segment of its own.  Next to it is the
 *	 recorder's dictionary (dictionary.h), with a lock that a hook takes when it needs
 *	 a text or a plan for the second time.
 * - The memory of all other rings is counted together with those of other modules
 *	 (../../common/ring_memory.h).  A ring is made where the session holds nothing
 *	 and an error can be caught (../../common/guarded.h).
 * - "trace" is what a process knows of its own trace; nobody else sees it.
 *
 * The folders, lower ones first:
 *
 * core/	module.c (loading, settings), shmem.c (shared state), ring.c and
 *			ring_store.h (the ring of a session), ring_make.c (making it), ring_grow.c (the
 *			recorder's), ring_copy.c (reading it), dictionary.c (texts and plans of
 *			all recorders), dictionary_move.c (from the ring to there), names.c (those that
 *			records name),
 *			ended.c (rings of sessions that ended), trigger.c (what has a trace kept),
 *			kept.c (traces that are kept), record.c (writing records),
 *			timeline.c (time in the ring), level.c (whether a session is traced),
 *			transaction.c (the one under way), client_messages.c (messages to the client),
 *			read.c and sessions.c (functions in SQL)
 * calls/	request.c (from a client's message to ReadyForQuery), call.c (what all
 *			calls share), analyse.c (parse and plan), execute.c and execution.c
 *			(executions), fetches.c (fetches, and what interrupts them), fused.c (a
 *			request in one record), utility.c,
 *			commit.c (commit and rollback), text.c (texts), secret_words.c
 *			and secrets.c (what must not be shown), binds.c (values), plan.c (plan
 *			trees), init_plans.c (in whose calls init plans run)
 * rows/	row sources: rows.h explains it
 * writer/	the background worker: worker.h explains it
 *-------------------------------------------------------------------------
 */
#ifndef SQLTRACE_H
#define SQLTRACE_H

#include "postgres.h"

#include "executor/execdesc.h"
#include "executor/instrument.h"
#include "lib/stringinfo.h"
#include "nodes/execnodes.h"
#include "nodes/parsenodes.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "../../common/application.h"
#include "../../common/clock_trust.h"
#include "../../common/module_shmem.h"
#include "../../common/pg_compat.h"
#include "../../common/ring_area.h"
#include "../../common/ring_memory.h"
#include "../../common/ring_place.h"
#include "../../common/version.h"
#include "../../common/wait_clock.h"
#include "dictionary.h"
#include "records.h"

#define LEVEL_BINDS(level) (((level) & 4) != 0)
#define LEVEL_WAITS(level) (((level) & 8) != 0)

#define SMALLEST_RING_KB 64

/* What a pattern of the application's name can say in the place of a level */
#define LEVEL_RECORDER 16

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
	uint64		sessions;
	uint64		records;
	uint64		bytes;
} Unread;

/* A trace that can be read: of a session, or one that ended; handle 0: none */
typedef struct TraceEntry
{
	int			pid;
	Oid			role;
	Oid			database;
	RingHandle	handle;
	TimestampTz started;
	TimestampTz ended;			/* 0: it lives */
	uint64		ring_bytes;
	uint64		memory;			/* that is counted for it */
	int			level;			/* now in force */
	int			reason;			/* LevelReason */
	bool		waits;			/* are traced as well */
	bool		others;			/* holds what ran with the rights of another role */
	bool		kept;			/* of one that ended: it does not make way (kept.h) */
	Counters	counters;
	Unread		unread;			/* of one that ended */
	char		application[NAMEDATALEN];
} TraceEntry;

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
	pg_atomic_uint32 writer;	/* number of the PGPROC that writes files, plus 1; 0: none does */
	Counters	ended_totals;	/* of all that ever ended */
	Unread		unread;			/* of those, when they were given up */
	TraceEntry	ended[MAX_ENDED];
	/* slots, by number of the PGPROC, follow */
} Shared;

MODULE_LOCK_LEADS(Shared);

/*
 * The request under way, as far as it is kept back: the record that it is going to
 * be.  Only its session writes, and only adds, until it begins anew.
 */
#define FUSED_ROOM 1024

typedef struct OpenRequest
{
	uint32		generation;		/* of what is kept back */
	uint32		size;			/* 0: nothing is */
	union
	{
		FusedRecord record;
		char		bytes[FUSED_ROOM];
	};
} OpenRequest;

/*
 * The ring of a session, in a dynamic segment of its own or in the area.
 * Positions count bytes ever written.  [tail, head) holds whole records; the
 * owner moves "tail" before it overwrites, and "head" after it has written.
 */
typedef struct Ring
{
	pg_atomic_uint64 head;
	char		padding1[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint64)];
	pg_atomic_uint64 tail;
	pg_atomic_uint64 drained;	/* how far a reader has come */
	pg_atomic_uint32 held;		/* readers that read it to its end, even if it is unlisted */
	char		padding2[PG_CACHE_LINE_SIZE - 2 * sizeof(pg_atomic_uint64) - sizeof(pg_atomic_uint32)];
	uint64		size;			/* power of two */
	TimestampTz started;
	SessionRecord session;
	char		padding3[PG_CACHE_LINE_SIZE];
	OpenRequest open;
	char		padding4[PG_CACHE_LINE_SIZE - 2 * sizeof(uint32)];
	char		data[FLEXIBLE_ARRAY_MEMBER];
} Ring;

StaticAssertDecl(offsetof(Ring, data) <= RING_PIECE_HEADER, "a block has room for the header");

/* Counters of blocks and WAL, in the order of a CALL's groups */
#define NUSAGE 12
#define NUSAGE_BLOCKS 10
#define USAGE_SHARED 0			/* where each group begins */
#define USAGE_LOCAL_TEMP 4
#define USAGE_WAL 10
typedef struct Usage
{
	uint64		counter[NUSAGE];
	bool		any;			/* of a difference: it is not 0; else its counters mean nothing */
} Usage;

StaticAssertDecl(offsetof(BufferUsage, shared_blks_hit) == 0 &&
				 offsetof(BufferUsage, local_blks_hit) == 4 * sizeof(uint64) &&
				 offsetof(BufferUsage, temp_blks_read) == 8 * sizeof(uint64) &&
				 offsetof(BufferUsage, temp_blks_written) == 9 * sizeof(uint64),
				 "blocks are counted in the order of a CALL's groups");

/* What is known of a call; written when it has ended */
typedef struct Call
{
	CallKind	kind;
	uint16		flags;
	uint32		sqlstate;
	uint64		number;
	uint64		parent;
	uint64		text;
	int64		query_id;
	uint64		plan;
	uint64		execution;
	int64		start;
	int64		busy;
	uint64		rows;
	uint64		fetches;		/* in one record; more than 1: several */
	Usage		usage;
} Call;

/* What this process knows of its trace */
typedef struct Trace
{
	bool		on;				/* records are being written */
	bool		request;		/* a request is under way; or none ever will be */
	bool		client;			/* of a client, and with a slot */
	Slot	   *slot;
	Ring	   *ring;			/* NULL: none */
	int			level;			/* in force for this session */
	int			reason;
	int			now_level;		/* in force for this request */
	uint64		number;			/* of the last record */
	uint64		calls;			/* of the last call */
	uint64		current;		/* call under way, or 0 */
	int			depth;
	int64		last_end;		/* end of what was recorded last outside any call */
	int64		covered;		/* ns in calls without a parent since the message arrived */
	int64		arrived;		/* of the message under way */
	int64		request_start;	/* arrival of the first message; -1: not known yet */
	uint64		text;			/* of the client's statement, as far as known */
	bool		secret;			/* it is not to be shown */
	bool		answered;		/* and what follows may be another */
	int			secret_depth;	/* what runs deeper runs within a secret statement */
	bool		secret_met;		/* by this request: messages of its errors may quote it */
	bool		secret_transaction; /* and by this transaction: so may its deferred triggers */
	bool		unseen;			/* a request of the transaction was not traced: it may have been */
} Trace;

/* Of the hook for utility statements */
#define UTILITY_PARAMETERS PlannedStmt *statement, const char *text, bool read_only, \
	ProcessUtilityContext context, ParamListInfo parameters, QueryEnvironment *environment, \
	DestReceiver *receiver, QueryCompletion *done
#define UTILITY_ARGUMENTS statement, text, read_only, context, parameters, environment, receiver, done

#pragma GCC visibility push(hidden)

extern Trace trace;

/* module.c */
extern bool trace_enabled;
extern int	trace_level_setting;
extern bool trace_recorder;
extern int	trace_recorder_level;
extern int	trace_recorder_kb;
extern int	trace_query_level;
extern double trace_statement_rate;
extern int	trace_ring_kb;
extern int	trace_memory_kb;
extern int	trace_bind_length;
extern int	trace_cpu_interval;
extern int	trace_clock;
extern char *trace_sensitive_roles;

/* shmem.c */
extern void shmem_init(void);
extern Shared *shmem_get(void);
extern Shared *shmem_get_or_error(void);
extern Slot *shmem_slot(Shared *shared, uint32 number);

/* level.c */
extern void level_setting_changed(int level, GucSource source);
extern void level_query_ids_changed(void *extra);
extern bool level_check_query_ids(char **newval, void **extra, GucSource source);
extern void level_attach(void);
extern void level_update(bool can_open);
extern void level_answered(void);
extern void level_match(int64 query_id);
extern bool level_has_query_ids(void);
extern bool level_is_valid(int level);
extern void level_ring_given_up(void);
extern void level_ring_lost(void);
extern void level_waits_lost(void);
extern void level_setting_reported(void);
extern void level_recorder_changed(void);

/* ring.c, ring_store.h */
extern void ring_reset(void);
extern uint64 ring_head(void);

/* ring_make.c */
extern RingBlock ring_block;
extern bool ring_open(bool recorder);
extern bool ring_rest(bool traced, char status);
extern bool ring_claim(void);
extern void ring_let_rest(void);
extern void ring_leave(void);

/* ring_grow.c */
extern uint64 ring_grow_at;
extern void ring_may_grow(void);
extern void ring_grow(void);

/* record.c */
extern bool record_begin(RecordKind kind, int depth, uint64 call, int64 time, Size size,
						 RecordHeader *header);
extern bool record_begin_ahead(RecordKind kind, uint64 call, Size size, RecordHeader *header);
extern void record_put(const void *data, Size size);
extern void record_pad(void);
extern void record_end(void);
extern bool record_write(RecordKind kind, int depth, uint64 call, int64 time, void *record,
						 Size size);
extern void record_call(const Call *call, int depth, int64 end, int64 cpu);

/* Set by those above: writes what waits to be written before any other record, or NULL */
extern void (*record_held_back) (void);

/* What is kept back of the request under way */
typedef struct Fused
{
	bool		open;			/* what happens is kept back */
	bool		named;			/* a call has told its text */
	bool		last_is_commit; /* among the calls */
	bool		committed;
	uint32		size;			/* of the record so far */
	uint64		first;			/* number of the first call of the request */
} Fused;

extern Fused fused;
extern void (*record_kept_back) (void);

static inline void
record_flush(void)
{
	if (fused.open)
		record_kept_back();
	if (record_held_back)
		record_held_back();
}

/* ended.c */
extern void counters_add(Counters *sum, const Counters *counters);
extern bool ended_keep(Shared *shared, TraceEntry *of, Ring *ring, dsm_segment *segment);
extern void ended_let_go(Shared *shared, TraceEntry *of, Ring *ring);
extern void ended_read(Shared *shared, RingHandle handle, Ring *ring);
extern bool ended_hold(Shared *shared, RingHandle handle, bool held, TraceEntry *found);
extern bool ended_make_way(Shared *shared);
extern int	ended_give_up(Shared *shared);
extern void ended_look(void);

/* trigger.c */
extern bool trigger_armed;
extern bool trigger_ready;
extern void trigger_define(void);
extern void trigger_request_begins(bool traced);
extern void trigger_error(uint32 sqlstate, const char *deadlock);
extern void trigger_transaction_ended(int64 ns);
extern void trigger_request_ended(int64 ns, uint32 answered);
extern void trigger_answer_leaves(void);
extern void trigger_flushed(void);
extern bool trigger_session_ended(RingHandle handle);

/* ring_copy.c */
typedef struct RingCopy
{
	uint64		position;		/* of the first record */
	char	   *data;
	Size		size;			/* of whole records */
	uint64		next;			/* where to go on, past a record for which there was no room */
	bool		sound;			/* else no record begins there */
} RingCopy;

extern RingCopy ring_copy(Ring *ring, uint64 from, char *buffer, Size room);
extern void ring_note_drained(Ring *ring, uint64 position);

extern void ring_read(const Ring *ring, uint64 from, uint64 n, char *to);

/* dictionary_move.c */
extern uint64 dictionary_move(uint64 position, uint64 *id, bool may_wait);

/* timeline.c */
extern const uint64 *timeline_waits;	/* waits of this process that have been traced */
extern ClockSource timeline_source;

/* At "base" of our clock the time in the ring was "base_ns". */
typedef struct Timeline
{
	ClockRate	rate;
	int64		base;
	int64		base_ns;
} Timeline;

extern Timeline timeline;
extern int64 timeline_cpu_read_at;	/* time in the ring; before it began: never */
extern void timeline_begin(Shared *shared);
extern int64 timeline_ns(int64 ticks);
extern int64 timeline_ticks(int64 ns);
extern void timeline_follow_clock(void);
extern void timeline_follow_waits(void);
extern bool timeline_has_waits(void);
extern bool timeline_want_waits(WaitsWanted wanted);
extern bool timeline_claim_waits(void);
extern int64 timeline_read_cpu(int64 now);
extern int64 timeline_arrival(TimestampTz at, int64 now);

/* request.c */
extern void request_begins(bool can_open);
extern void request_ends(char status);
extern int64 request_message_arrived(void);
extern int64 request_message_arrived_by(int64 now);
extern void request_statement(uint64 text, bool secret);
extern void request_answered(int64 now);

/* call.c */
extern void call_usage_since(const Usage *pg_restrict before, Usage *pg_restrict sum);
extern void call_failed(Call *call, int sqlstate);

/* fused.c, fused.h */
extern void call_write(const Call *call, int64 end);
extern Size fused_look(const Ring *ring, uint64 head, char *to);

/* fetches.c, fetches.h */
extern uint64 call_begins(int64 start, int64 now);
extern void execute_forget(int nest_level, uint16 flags);
extern void series_nested(void);
extern void series_close(void);
extern void series_forget(void);
extern void series_look_for_error(void);

/* text.c */
extern uint32 text_rings;
extern void text_begin(void);
extern void text_begin_as(bool recorder);
extern void text_forget(void);
extern uint64 text_of(const char *source_text, int location, int length, int64 *query_id,
					  const Node *utility, bool *secret);
extern uint64 text_of_message(const char *message, int64 *query_id, bool *secret);
extern bool text_is_whole(const char *source_text, int location, int length);
extern bool text_is_secret(const char *text);
extern bool text_was_known(uint64 id);
extern uint64 text_known(uint64 id, uint64 *position);
extern void text_remember(uint64 id, uint64 position, uint64 shown);
extern bool text_in_dictionary;
extern uint64 text_request_began;
extern int	text_most(void);
extern uint64 text_hash(const char *text, Size length);

/* secret_words.c */
extern bool words_show_secret(const char *text, Size length);

/* secrets.c */
extern bool secrets_in_statement(const Node *utility);
extern bool secrets_in_message(const char *message);
extern bool secrets_of_role(void);
extern bool secrets_of_role_known(void);
extern void secrets_roles_changed(void);
extern void secrets_watch_roles(void);
extern void secrets_watch_errors(void);
extern const char *secrets_application(void);

/* binds.c */
extern void binds_write(uint64 call, ParamListInfo parameters, bool secret);

/* analyse.c, execution.c, execute.c, utility.c, commit.c, client_messages.c */
extern void analyse_install(void);
extern void execute_install(void);
extern void execute_bound(int64 now);
extern void execute_inherit(int nest_level);
extern void utility_install(void);
extern void commit_install(void);
extern void protocol_install(void);

/* transaction.c */
extern LocalTransactionId transaction_recorded;
extern void transaction_begins(int64 start, int64 now);
extern void transaction_write(TransactionEvent event, uint64 xid, int64 at);
extern bool transaction_is_known(void);
extern void transaction_over(void);

/* plan.c */
extern const char *plan_kind(NodeTag tag);
extern void plan_made(void);
extern uint64 plan_of(const QueryDesc *queryDesc, uint64 call, uint64 text);
extern bool plan_statement(const PlannedStmt *plan, uint64 *text, uint64 *id);
extern void plan_keep_text(const PlannedStmt *plan, uint64 text);

/* init_plans.c */
extern const SubPlan *askers_subplan(const PlanState *parent, const PlanState *state);
extern void askers_put(StringInfo json, PlanState *parent, const PlanState *state);
extern uint64 askers_hash(const PlanState *state);

/*
 * For row_*.c.  Their hooks are installed last, and so run outside ours: when
 * their ExecutorStart hook has called the one before, the execution is known;
 * until their ExecutorEnd hook calls the one before, it can be written about.
 */
extern bool execute_is_traced(const QueryDesc *queryDesc);
extern bool execute_is_written(const QueryDesc *queryDesc);
extern bool execute_row_sources(const QueryDesc *queryDesc, uint32 sampling,
								const RowSource *nodes, uint32 n);
extern void row_sources_init(void);

/* Has it not been recorded that the transaction under way began? */
static inline bool
transaction_is_new(void)
{
	return unlikely(MY_LXID != transaction_recorded && LocalTransactionIdIsValid(MY_LXID));
}

/* Is this process being traced, now that something begins?  If a trace can begin, it does. */
static inline bool
trace_begins(void)
{
	if (unlikely(!trace.request))
		request_begins(true);
	return unlikely(trace.on);
}

/* Is the record that begins here in our ring still whole? */
static inline bool
ring_holds(uint64 position)
{
	return position >= pg_atomic_read_u64(&trace.ring->tail);
}

/*
 * Is a text or a plan still where it was written: in our ring, or in the dictionary?  One
 * that was needed once is not, in the place NEEDED_ONCE: look for it again.
 */
static inline bool
text_is_held(uint64 position)
{
	if ((position & IN_DICTIONARY) != 0)
		return dictionary_holds(position);
	return ring_holds(position);
}

/* Does what begins now run within a secret statement? */
static inline bool
secrets_around(void)
{
	return unlikely(trace.depth > trace.secret_depth);
}

/*
 * A statement begins, or goes on, at the depth under way: a secret one hides what
 * runs deeper, and any other one shows that a secret one at its depth is over.
 */
static inline void
secrets_enter(bool secret)
{
	if (unlikely(secret))
		trace.secret_met = trace.secret_transaction = true;
	if (likely(trace.depth <= trace.secret_depth))
		trace.secret_depth = secret ? trace.depth : INT_MAX;
}

/* What runs deeper than this is hidden, until something at that depth begins. */
static inline void
secrets_hide(int depth)
{
	trace.secret_met = trace.secret_transaction = true;
	trace.secret_depth = Min(trace.secret_depth, depth);
}

/* The clock of this process's trace, now; timeline_of() tells what time that is */
static inline int64
timeline_reading(void)
{
	return clock_source_read(timeline_source);
}

/* A reading of our clock, now or long ago, as time in the ring */
static inline int64
timeline_of(int64 reading)
{
	uint64		ignored = 0;

	if (unlikely(reading < timeline.base))
		return timeline.base_ns - clock_ns(&timeline.rate, timeline.base - reading, &ignored);
	return timeline.base_ns + clock_ns(&timeline.rate, reading - timeline.base, &ignored);
}

static inline int64
timeline_now(void)
{
	return timeline_of(timeline_reading());
}

/* CPU time since the ring began, or -1: it has been read not long ago. */
static inline int64
timeline_cpu(int64 now)
{
	if (likely(trace_cpu_interval < 0 ||
			   now - timeline_cpu_read_at < (int64) trace_cpu_interval * 1000))
		return -1;
	return timeline_read_cpu(now);
}

/* Counters of this process as they are */
static inline void
call_usage(Usage *usage)
{
	memcpy(usage->counter, &pgBufferUsage, NUSAGE_BLOCKS * sizeof(uint64));
	usage->counter[NUSAGE_BLOCKS] = pgWalUsage.wal_records;
	usage->counter[NUSAGE_BLOCKS + 1] = pgWalUsage.wal_bytes;
}

#pragma GCC visibility pop

#endif							/* SQLTRACE_H */
