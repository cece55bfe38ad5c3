/*-------------------------------------------------------------------------
 * rows.h
 *		Row sources: what each node of a plan did, its time estimated from a
 *		sample of its calls.
 *
 * A query whose row sources are measured has a RowQuery, which is given back
 * when the memory of its execution goes; each node that PostgreSQL calls row by
 * row has a Row in it, and a RowHot that the call itself needs.
 *
 * The way of a measurement: row_sources.c decides whether a query is measured;
 * row_wrap.c comes before the calls of its nodes, by functions of row_wrappers.c;
 * row_time.c times some of the calls, and row_kept.c keeps what they took;
 * row_result.c makes estimates of it (row_estimate.c, row_usual.c);
 * it also puts these into the trace; they go to EXPLAIN
 * (row_explain.c), or on request in SQL (row_last.c).
 *-------------------------------------------------------------------------
 */
#ifndef ROWS_H
#define ROWS_H

#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "common/pg_prng.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"

#include "../../common/clock_trust.h"
#include "../../common/pg_compat.h"
#include "../core/records.h"
#include "row_estimate.h"

#pragma GCC visibility push(hidden)

#define ROW_MAX_EVERY 65536

/*
 * Of each node this many calls are timed before sampling sets in, and the first
 * call of this many scans, and the end of as many.
 */
#define ROW_EXACT_CALLS 64
#define ROW_EXACT_SCANS 64

/* Sampled gaps that are kept apart; when there are more, neighbours are joined */
#define ROW_GAPS 1024

/* Gaps and ends for which each row has room itself */
#define ROW_FIRST_GAPS 16
#define ROW_FIRST_ENDS 2

struct Row;

/* What each call of a node needs: one cache line */
typedef struct RowHot
{
	uint64		countdown;		/* calls until one is due to be looked at */
	PlanState  *node;
	ExecProcNodeMtd real;		/* what we come before */
	uint64		nothing;		/* calls that returned no row */
	bool	   *running;		/* of PostgreSQL's instrumentation: a scan has begun */
	struct Row *row;
	char		padding[16];
} RowHot;

/* What the next call that is looked at is for */
typedef enum RowDue
{
	ROW_DUE_TIMED,				/* it is timed, whatever comes of it */
	ROW_DUE_SAMPLED,			/* it is timed, and speaks for those before it */
	ROW_DUE_AFTER				/* it ends what followed a sampled call */
} RowDue;

/* How a node is measured */
typedef enum RowWay
{
	ROW_CALLED,					/* its calls pass us */
	ROW_BY_CHILD,				/* Hash: takes as long as the scan of its child */
	ROW_BY_PARENT,				/* bitmaps: within the first calls of the node above */
	ROW_HIDDEN					/* another module has taken over its calls */
} RowWay;

typedef struct Row
{
	RowHot	   *hot;
	struct RowQuery *query;

	RowDue		due;
	bool		fresh;			/* the next call starts a scan */
	bool		missed;			/* a call went past us */
	uint32		alike;			/* calls to come that are timed, and no more */
	uint32		gap_calls;
	uint64		drawn;			/* calls up to the one that is due */
	uint64		timed;
	int64		known;			/* ticks of all timed calls */
	int64		returned;		/* when the last timed call ended */
	int64		gap_from;		/* the sample under way */
	RowGap		sample;
	RowGap		joined;			/* several samples, not yet all */
	uint32		join;			/* how many make one gap */
	uint64		calls_at_end;	/* when the last scan ended */
	int64		missed_from;

	/* time that a scan took from its first call to its end, and its first calls */
	int64		scan_from;
	int64		spans;
	uint64		nspans;
	int64		firsts;
	uint64		nfirsts;

	PlanState  *node;
	ExecProcNodeMtd ours;		/* the function that we put before the node */
	int			place;			/* of it in the pool; -1: the pool had no more */
	int			parent;			/* index, or -1 */
	int			depth;
	bool		below_subplan;	/* hangs on its parent as an init plan or sub plan */
	bool		leaders;		/* in a plan that parallel workers run as well */
	RowWay		way;

	RowGap	   *gaps;
	int			ngaps;
	int			gaps_room;
	RowEnd	   *ends;
	int			nends;
	int			ends_room;
	uint64		lost;			/* untimed calls for which there was no room */
	int64		lost_ticks;

	/* not zero at first */
	RowGap		first_gaps[ROW_FIRST_GAPS];
	RowEnd		first_ends[ROW_FIRST_ENDS];
} Row;

/* Ticks that readings of the clock add: to a timed call, to the time after it, to a gap */
typedef struct RowCosts
{
	int64		inside;
	int64		outside;
	int64		gap;
} RowCosts;

/* What became of a node in all processes together */
typedef struct RowTotal
{
	uint64		calls;
	uint64		rows;
	uint64		loops;			/* scans */
	uint64		timed;			/* calls */
	double		ns;				/* of all calls, nodes below included */
	double		variance;
	double		ns_least;		/* known for certain */
	double		ns_most;
	double		quantile;
} RowTotal;

/* Parts of several processes together */
static inline void
row_add(RowTotal *sum, const RowTotal *part)
{
	sum->calls += part->calls;
	sum->rows += part->rows;
	sum->loops += part->loops;
	sum->timed += part->timed;
	sum->ns += part->ns;
	sum->variance += part->variance;
	sum->ns_least += part->ns_least;
	sum->ns_most += part->ns_most;
	sum->quantile = Max(sum->quantile, part->quantile);
}

typedef struct RowResult
{
	PlanState  *node;
	int			node_id;
	int			parent_id;		/* -1 at the root */
	int			depth;
	RowWay		way;
	bool		exact;			/* each call was timed */
	bool		unfinished;		/* its last call returned a row */
	int			workers;		/* parallel workers whose part is in it */
	RowTotal	total;
	double		ns_low;			/* 95 % interval */
	double		ns_high;
} RowResult;

typedef struct RowQuery
{
	struct RowQuery *outer;
	QueryDesc  *desc;
	EState	   *estate;
	Oid			role;			/* with whose rights it runs */
	int			every;
	ClockSource clock;			/* until its end, whatever the setting becomes */
	bool		explained;		/* for EXPLAIN (SAMPLING) */
	bool		counts;			/* we count rows in PostgreSQL's stead */
	bool		begun;
	bool		wrapped;
	bool		collected;
	bool		reads_last;		/* the row sources of the statement before, which it does not replace */
	const char *refused;		/* why nothing was measured, or NULL */
	Row		   *rows;			/* in the order of a walk from the root */
	int			nrows;
	int			room;			/* for rows, results, and what is made of each for a moment */
	Row		  **by_id;			/* NULL: they are few */
	int			nids;
	bool		running;		/* an executor's call is under way ... */
	SubTransactionId within;	/* ... unless an error has left it, and this */
	int64		paused;			/* ticks during which it was not run */
	int64		began;
	int64		stopped_at;
	struct SharedRows *shared;	/* for parallel workers, or NULL */
	RowResult  *results;
	int			nresults;
	MemoryContextCallback gone;
} RowQuery;

/* row_memory.c: measured queries */
extern int	row_every;			/* setting: one call in so many is timed; 0: none is measured */
extern RowQuery *row_queries;	/* those that are known */
extern RowQuery *row_query_take(void);
extern void row_query_give_back(RowQuery *query);
extern Row *row_query_add(RowQuery *query);

/* What is made of each node, one thing after the other */
#define ROW_SCRATCH Max(sizeof(RowShare), sizeof(RowSource))

static inline void *
row_query_scratch(const RowQuery *query)
{
	return query->results + query->room;
}

/* row_sources.c: what the executor's hooks call */
extern void row_query_starts(QueryDesc *desc, int eflags);
extern void row_query_begins(RowQuery *query);
extern void row_query_finishes(QueryDesc *desc, void (*finish) (QueryDesc *desc));
extern void row_query_ends(QueryDesc *desc);

static inline RowQuery *
row_query_of(const QueryDesc *desc)
{
	RowQuery   *query = row_queries;

	while (query && query->desc != desc)
		query = query->outer;
	return query;
}

static inline void
row_query_enters(RowQuery *query)
{
	query->within = GetCurrentSubTransactionId();
	query->running = true;
}

/* Code that caught an error may go on after the query, and its memory stay as long as a portal. */
static inline bool
row_query_runs(const RowQuery *query)
{
	return query->running && SubTransactionIsActive(query->within);
}

/* The query runs: its time goes on where it stopped. */
static inline void
row_query_resumes(RowQuery *query, int64 reading)
{
	query->paused = reading - query->stopped_at;
	row_query_enters(query);
}

static inline void
row_query_pauses(RowQuery *query, int64 reading)
{
	query->running = false;
	query->stopped_at = reading - query->paused;
}

/* row_wrap.c: coming before the calls of a plan's nodes */
extern void row_wrap(RowQuery *query);
extern void row_unwrap(RowQuery *query);

/* row_wrap_node.c: before those of one node */
extern bool row_is_original(const PlanState *node);
extern void row_wrap_node(Row *row);
extern bool row_wrap_node_again(Row *row);

/* row_wrappers.c: the functions that are there */
extern void row_take_place(Row *row);
extern void row_give_place(Row *row);

static inline uint64
row_calls(const Row *row)
{
	return row->hot ? row->drawn - row->hot->countdown : 0;
}

/* Untimed calls of the gap under way */
static inline uint32
row_untimed_calls(const Row *row)
{
	return row->gap_calls - (uint32) row->hot->countdown + 1;
}

/* row_clock.c: rates of clocks, and what readings cost */
extern RowCosts row_costs;
extern pg_prng_state row_random;
extern void row_clock_init(void);
extern void row_clock_know(ClockSource clock, const RowCosts *costs);
extern bool row_clock_use(ClockSource clock);
extern double row_ns_per_tick(ClockSource clock);

/* row_calibrate.c: finds out what they cost */
extern void row_calibrate_start(ClockSource clock);

/* row_time.c: which calls are timed */
extern void row_start(Row *row);
extern TupleTableSlot *row_due(Row *row, PlanState *node);
extern void row_scan_ended(Row *row);

/* row_kept.c: gaps, ends of scans, and what there was no room for */
extern void row_keep_gap(Row *row, const RowGap *gap);
extern void row_keep_end(Row *row, int64 gap, uint32 untimed);
extern void row_close(Row *row);
extern void row_times(const Row *row, RowTimes *times);

/* Time that passed while the query ran */
static inline int64
row_now(const RowQuery *query)
{
	return clock_source_read(query->clock) - query->paused;
}

/* row_result.c: results from what was kept, and into the trace */
extern void row_collect(RowQuery *query);
extern void row_record(RowQuery *query);

/* row_shared.c: the part of parallel workers */
extern void row_shared_init(void);
extern void row_shared_offer(RowQuery *query);
extern void row_shared_called(Row *row);
extern int	row_shared_wanted(QueryDesc *desc, bool *counts);
extern void row_shared_publish(RowQuery *query);
extern int	row_shared_workers(RowQuery *query, int node_id, RowTotal *total);
extern void row_shared_withdraw(RowQuery *query);

/* row_explain.c: EXPLAIN (ANALYZE, SAMPLING) */
#if HAVE_EXPLAIN_OPTIONS
extern void row_explain_init(void);
extern int	row_explain_armed;	/* not 0: an EXPLAIN waits for its plan to start */
extern int	row_explain_wanted(QueryDesc *desc, bool *counts);
#else
#define row_explain_init() ((void) 0)
#define row_explain_armed 0
#define row_explain_wanted(desc, counts) 0
#endif

/* Is what starts now to be measured, as far as settings tell? */
static inline bool
row_query_may_start(void)
{
	return unlikely(row_every > 0 || row_explain_armed > 0 || IsParallelWorker());
}

/* row_last.c: the row sources of the session's last statement, by SQL */
extern void row_last_keep(RowQuery *query);

#pragma GCC visibility pop

#endif							/* ROWS_H */
