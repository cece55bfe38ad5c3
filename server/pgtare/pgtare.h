/*-------------------------------------------------------------------------
 * pgtare.h
 *		Shared state of a trial, and what the files of the module offer each other.
 *
 * One file a phase, with the settings that it obeys: module.c (loading), shmem.c
 * (shared state), trial.c (start and stop by SQL), rights.c (who may), status.c
 * (the trial's state), transaction_bounds.c (where transactions begin and end),
 * joining.c (who takes part), session.c (what a session has of the trial), unit.c
 * (the unit under way), run.c (the run that it is in), slice.c (spans of time that
 * all sessions share), draw_arms.c (what is drawn for all of these), settings.c
 * (applying and restoring settings), setting_watch.c (noticing changes of them),
 * evidence.c (what ran, and what failed), ring.c (observations, and the unit under
 * way, for readers).
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_H
#define PGTARE_H

#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "../common/clock.h"
#include "../common/module_shmem.h"
#include "../common/pg_compat.h"
#include "../common/version.h"

#define MAX_ARMS 32				/* arms of a trial, the base included */
#define MAX_SETTINGS 32			/* settings that its arms name together */
#define MAX_BLOCK 64			/* runs of a permuted block */
#define MAX_RINGS 1024			/* sessions of a trial at one time */
#define MAX_ROLES 1024			/* roles that may take part if not all may */
#define TEXT_POOL 16384			/* bytes for names and values */
#define NO_TEXT UINT32_MAX		/* in a pool: the session's own value */
#define MAX_RUN UINT8_MAX		/* units of a run */
#define SLICE_MIXED (-1)		/* a kind of slice: each session draws its arm for it */
#define NO_LEASE ((uint64) PG_INT64_MAX)
#define NO_SLICE UINT32_MAX		/* in a trial without slices */
#define NO_BLOCK UINT32_MAX		/* of a first run, and in a trial in slices */

/* What happened in a unit */
#define UNIT_FIRST_RUN		(1 << 0)	/* in the first run of a session that began in the trial */
#define UNIT_ABORTED		(1 << 1)	/* an error ended a transaction of it */
#define UNIT_SWITCH_FAILED	(1 << 2)	/* a setting of the arm was refused */
#define UNIT_APP_CHANGED	(1 << 3)	/* the application changed one, be it for a while */
#define UNIT_NO_ARRIVAL		(1 << 4)	/* the request was buffered already */
#define UNIT_COPY			(1 << 5)
#define UNIT_LOGGED			(1 << 6)	/* a line went to the server log */
#define UNIT_INSTRUMENTED	(1 << 7)	/* a plan with per-node instrumentation */
#define UNIT_TOTAL_TIMED	(1 << 8)	/* a plan with whole-query instrumentation */
#define UNIT_QUERY_ID		(1 << 9)	/* a plan with a query identifier */
#define UNIT_BLOCKS_READ	(1 << 10)
#define UNIT_IO_TIMED		(1 << 11)
#define UNIT_EXECUTED		(1 << 12)	/* a plan was executed */
#define UNIT_RELOADED		(1 << 13)	/* the configuration was read again: arm not surely in force */
#define UNIT_STRADDLED		(1 << 14)	/* its answer came after the end of its slice */
#define UNIT_MIXED			(1 << 15)	/* in a slice where each session draws its arm */
#define UNIT_OPEN			(1 << 16)	/* still open when its trial or its session ended */
#define UNIT_UNDRAWN		(1 << 17)	/* under way before its arm could be drawn */
#define UNIT_SYSTEM_CLOCK	(1 << 18)	/* the server took times from the system's clock */

/* One measured unit, as clients read it: keep in step with the decoder. */
typedef struct Observation
{
	int64		start_ns;		/* request arrival, since the trial began */
	int64		service_ns;		/* arrival to answer without sending, over requests */
	int64		client_ns;		/* waiting for the client, and sending to it */
	int64		cpu_ns;			/* thread CPU of the cycle, -1: not taken */
	uint32		backend;		/* ordinal of the session in the trial */
	uint32		unit;			/* running number in the session */
	uint32		block;			/* running number of the block in the session, or NO_BLOCK */
	uint8		position;		/* in the run, or in the slice: UINT8_MAX or more is that */
	uint8		arm;
	uint16		requests;
	uint32		flags;			/* UNIT_... */
	uint32		switch_ns;		/* cost of the switch before this unit */
	int32		pid;
	uint32		slice;			/* running number in the trial, or NO_SLICE */
	uint32		run;			/* number in the block, from 0 */
	uint32		stratum;		/* a hash of the session's role and database */
} Observation;

StaticAssertDecl(sizeof(Observation) == 72, "clients read observations of 72 bytes");
StaticAssertDecl(MAX_ARMS <= UINT8_MAX && MAX_RUN <= UINT8_MAX,
				 "arm and position fit into a byte each");

typedef enum RingState
{
	RING_FREE,
	RING_OWNED,
	RING_RETIRED				/* its session has gone, its tail may be unread */
} RingState;

/* A unit under way: complete up to "since", and busy or waiting for its client since then */
typedef struct OpenUnit
{
	Observation so_far;
	int64		since_ticks;
	bool		busy;
} OpenUnit;

typedef enum OpenState
{
	OPEN_NONE,
	OPEN_UNIT,
	OPEN_TAKEN					/* by a reader, after the end of the trial */
} OpenState;

typedef struct Open
{
	pg_atomic_uint32 state;		/* OpenState */
	pg_atomic_uint32 version;	/* odd while the session writes */
	OpenUnit	unit;
} Open;

/* Single producer, single consumer; positions only grow. */
typedef struct Ring
{
	pg_atomic_uint32 state;		/* RingState */
	char		pad0[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint32)];
	pg_atomic_uint64 head;		/* written by the session */
	pg_atomic_uint64 lost;		/* found no room */
	pg_atomic_uint64 negative;	/* clock differences below zero */
	char		pad1[PG_CACHE_LINE_SIZE - 3 * sizeof(pg_atomic_uint64)];
	pg_atomic_uint64 tail;		/* written by the reader */
	char		pad2[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint64)];
	Open		open;
	char		pad3[PG_CACHE_LINE_SIZE - sizeof(Open) % PG_CACHE_LINE_SIZE];
} Ring;

/* Describes a trial; copied by every session that takes part. */
typedef struct TrialDef
{
	uint64		seed;
	int32		narms;
	int32		nsettings;
	int32		nblock;
	uint16		block[MAX_BLOCK];	/* arms of a block's runs, before permutation */
	int64		inject_ns[MAX_ARMS];
	uint16		run_shortest;	/* bounds of a run's units */
	uint16		run_longest;
	int32		nslices;		/* slices of a block of slices, 0: no slices */
	int16		slice_kind[MAX_BLOCK];	/* an arm or SLICE_MIXED, before permutation */
	int64		slice_min_ns;	/* bounds of a slice's length */
	int64		slice_max_ns;
	uint32		name[MAX_SETTINGS]; /* offsets into text */
	uint32		value[MAX_ARMS][MAX_SETTINGS];	/* likewise, or NO_TEXT */
	Oid			database;		/* InvalidOid: any */
	Oid			role;
	Oid			owner_role;		/* of the role that started it */
	bool		limited;		/* only sessions of "roles" take part */
	int32		nroles;
	Oid			roles[MAX_ROLES];
	uint32		application;	/* pattern as of fnmatch(3) */
	uint32		participation;	/* of 2^32 sessions; UINT32_MAX: all */
	bool		take_cpu;
	ClockRate	rate;
	int64		start_ticks;
	int64		deadline_ticks;
	TimestampTz started;
	int			owner_pid;
	char		text[TEXT_POOL];
} TrialDef;

typedef enum EndReason
{
	END_NONE,
	END_FINISHED,				/* by the session that started it */
	END_STOPPED,				/* by another */
	END_DEADLINE,
	END_OWNER_GONE,
	END_KILL_SWITCH,
	END_LEASE_EXPIRED			/* its client did not renew the lease in time */
} EndReason;

/* Lets a new trial wait until nobody writes for the last one: see pgtare_begin_write() */
typedef struct Writer
{
	pg_atomic_uint32 writing;
	char		pad[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint32)];
} Writer;

typedef struct Shared
{
	LWLock		lock;			/* start, stop and drain, one at a time */
	int			tranche;
	uint64		ring_bytes;		/* the pool that a trial divides into rings */
	int32		nwriters;

	pg_atomic_uint64 generation;	/* odd while a definition is being written */
	pg_atomic_uint32 running;	/* low half of the generation that runs, or 0 */
	pg_atomic_uint32 end_reason;	/* EndReason of the last trial */
	pg_atomic_uint64 lease_ticks;	/* when the trial's lease ends, or NO_LEASE */
	TimestampTz ended;
	TrialDef	def;

	int32		nrings;
	uint32		ring_records;	/* a power of two */

	/* counters of the trial */
	pg_atomic_uint32 next_backend;
	pg_atomic_uint32 next_new;	/* sessions that have drawn their first run */
	pg_atomic_uint32 joined_now;
	pg_atomic_uint32 no_ring;	/* sessions that found none */
	pg_atomic_uint32 cannot_join;	/* sessions that lack a setting */
	pg_atomic_uint32 failed_arm[MAX_ARMS];

	Ring		ring[MAX_RINGS];
	Writer		writer[FLEXIBLE_ARRAY_MEMBER];	/* by number of the PGPROC */
} Shared;

MODULE_LOCK_LEADS(Shared);

/* no detour through our own offset table at every transaction */
#pragma GCC visibility push(hidden)

/* shmem.c */
extern Shared *pgtare_shared(void);
extern Shared *pgtare_require_shared(void);
extern void pgtare_shmem_init(void);
extern Observation *pgtare_ring_pool(Shared *shared);
extern bool pgtare_runs(Shared *shared, uint64 generation);
extern bool pgtare_is_running(Shared *shared);
extern bool pgtare_lease_expired(Shared *shared, int64 now_ticks);
extern void pgtare_end_trial(Shared *shared, uint64 generation, EndReason reason);
extern bool pgtare_begin_write(Shared *shared, uint64 generation);
extern void pgtare_end_write(Shared *shared);

/* trial.c */
extern void trial_init(void);
extern ClockRate trial_clock_rate(void);

/* session.c */
typedef struct Session
{
	bool		joined;
	bool		restored;		/* settings are the session's own just now */
	uint64		generation;
	TrialDef   *def;			/* private copy */
	Shared	   *shared;
	Ring	   *ring;
	Observation *records;
	uint32		mask;
	uint32		backend;
	uint64		negative;		/* clock differences below zero */
} Session;

extern Session session;
extern bool pgtare_enabled;		/* setting: the kill switch */
extern void session_init(void);
extern bool session_trial_over(int64 now_ticks);

/* The clock of the session's trial */
static inline int64
session_ticks(void)
{
	return clock_ticks(session.def->rate.counter);
}

static inline int64
session_ns(int64 ticks)
{
	return clock_ns(&session.def->rate, ticks, &session.negative);
}

/* joining.c */
extern void joining_consider(void);
extern void joining_leave(void);

/* transaction_bounds.c */
extern void bounds_install(void);
extern int	bounds_slots_installed(void);
extern int	bounds_slots_intact(void);

/* unit.c */
typedef enum Phase
{
	IDLE,						/* between units, or between requests of one */
	BUSY						/* a request has arrived */
} Phase;

typedef struct Unit
{
	Phase		phase;
	bool		begun;			/* its first request has arrived */
	int64		ready_ticks;	/* when we were ready for the next request */
	int64		request_ticks;	/* when the current request arrived */
	int64		blocked_ticks;	/* waiting for more of a request, or 0 */
	TimestampTz last_statement; /* statement timestamp when we became ready */
	TimestampTz reload_time;	/* of the configuration when we became ready */
	int64		cpu_ns;			/* thread CPU at the beginning of the cycle */
	uint32		events;			/* UNIT_... from the protocol */
	bool		undrawn;		/* the session has no arm yet */
	bool		reset;			/* it gave settings their defaults, as poolers do */
	bool		worked;			/* and did something else */
	int64		service_ticks;
	int64		client_ticks;
	int64		first_ticks;
	uint32		requests;
	uint32		switch_ns;
	uint32		switch_flags;	/* UNIT_... of the switch before */
	uint16		arm;
} Unit;

extern Unit unit;				/* the one under way */
extern void unit_switch_arm(void);
extern void unit_again(void);
extern void unit_request_begins(int64 ticks, uint32 flags);
extern void unit_publish(void);
extern void unit_record(int64 ticks, int64 cpu_ns);
extern void unit_left_open(void);

/* run.c */
extern void run_join(void);
extern bool run_awaits_request(void);
extern void run_draw_first(void);
extern uint16 run_arm(void);
extern void run_advance(void);
extern void run_describe(Observation *o);

/* draw_arms.c */
extern void assign_block(const TrialDef *def, uint32 backend, uint32 block, uint16 *order);
extern uint16 assign_first(const TrialDef *def, uint32 session);
extern uint16 assign_length(const TrialDef *def, uint32 backend, uint32 block);
extern uint16 assign_mixed(const TrialDef *def, uint32 backend, uint32 slice);
extern void assign_slices(const TrialDef *def, uint32 block, int16 *order);
extern int64 assign_slice_ns(const TrialDef *def, uint32 slice);

/* slice.c */
extern void slice_begin(void);
extern void slice_follow(int64 now_ticks);
extern bool slice_over(int64 now_ticks);
extern uint32 slice_number(void);
extern int	slice_kind(void);

/* settings.c */
extern bool settings_bind(const TrialDef *def);
extern void settings_release(void);
extern bool settings_apply(const TrialDef *def, int arm);
extern bool settings_changed_by_application(bool reloaded);
extern void settings_restore(void);
extern bool settings_shape_plans(void);
extern struct config_generic *settings_check(const char *name);
extern void settings_try(const char *name, const char *value);
extern struct config_generic *settings_find(const char *name);

/* rights.c */
extern void rights_check_setting(const struct config_generic *conf);
extern void rights_check_delay(int64 delay_ns);
extern void rights_limit_population(TrialDef *def);
extern bool rights_session_may_join(const TrialDef *def);
extern bool rights_lock_as_owner(Shared *shared, uint64 trial, bool only_running);

/* setting_watch.c */
extern bool watch_setting(struct config_generic *conf);
extern void watch_end(void);
extern void watch_reset(void);
extern bool watch_changed(void);

/* evidence.c */
extern void evidence_install(void);
extern void evidence_reset(void);
extern void evidence_error_sent(void);
extern uint32 evidence_flags(void);

/* ring.c */
extern OpenUnit *open_begin(void);
extern void open_end(const OpenUnit *unit);
extern bool open_close(Ring *ring);
extern void open_clear(Ring *ring);
extern uint64 open_take(Shared *shared, char *to, uint64 room);

extern void ring_put(const Observation *observation);
extern Ring *ring_take(Shared *shared, int *number);

#pragma GCC visibility pop

#endif							/* PGTARE_H */
