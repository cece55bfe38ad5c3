/*-------------------------------------------------------------------------
 * plain.h
 *		Most requests: one prepared statement, which is executed once and wholly, calls
 *		no other and does not fail.
 *
 * Of these each hook only notes when it was called, and what has been used; calls are made of
 * that when the request has been answered.  If anything else happens, or a note is not enough,
 * plain_hand_over() makes the calls, and the execution, that there would be without this:
 * from there on the request is one like any other.
 *
 * The notes are in the ring's memory, so that readers see how far the request is.
 *-------------------------------------------------------------------------
 */
#ifndef PLAIN_H
#define PLAIN_H

#include "execution.h"
#include "../core/ring.h"

#include "utils/backend_status.h"

#pragma GCC visibility push(hidden)

/* The plain request under way */
typedef struct Plain
{
	PlainStage	stage;
	int			nest_level;		/* of the subtransaction that it began in */
	const QueryDesc *plan;		/* until it has ended; only compared */
} Plain;

extern Plain plain;

extern bool plain_begins(QueryDesc *queryDesc, int eflags, Call *call);
extern void plain_ends(QueryDesc *queryDesc);
extern void plain_hand_over(void);
extern void plain_answered(void);

/* Something happens that is not plain. */
static inline void
plain_else(void)
{
	if (unlikely(plain.stage != PLAIN_NONE))
		plain_hand_over();
}

static inline PlainRequest *
plain_notes(void)
{
	return &trace.ring->open.plain;
}

/* A stage of which readers make items: what belongs to it is noted. */
static inline void
plain_shows(PlainRequest *notes, PlainStage stage)
{
	plain.stage = stage;
	pg_write_barrier();
	notes->stage = stage;
}

static inline bool
plain_is_at(const QueryDesc *queryDesc, PlainStage from, PlainStage to)
{
	return plain.plan == queryDesc && plain.stage >= from && plain.stage <= to;
}

/* The calls of it */
static inline Call
plain_bind(const PlainRequest *notes)
{
	return (Call) {
		.kind = CALL_BIND,.flags = CALL_ESTIMATED,.number = notes->number + 1,
		.text = notes->text,.query_id = notes->bind_query_id,
		.start = notes->bind_start,.busy = notes->bind_busy
	};
}

static inline Call
plain_execution(const PlainRequest *notes)
{
	return (Call) {
		.kind = CALL_EXECUTE,.number = notes->number,.text = notes->text,
		.query_id = notes->query_id,.plan = notes->plan,.start = notes->start,
		.busy = notes->busy,.rows = notes->rows
	};
}

static inline Call
plain_commit(const PlainRequest *notes)
{
	return (Call) {
		.kind = CALL_COMMIT,.number = notes->number + notes->bound + 1,
		.text = notes->text,.start = notes->commit_start,
		.busy = notes->commit_end - notes->commit_start
	};
}

/* The Bind message that arrived then has been answered.  False: what is plain did not start in it. */
static inline bool
plain_bound(int64 arrived)
{
	PlainRequest *notes = plain_notes();
	int64		now;

	if (plain.stage != PLAIN_STARTED || notes->start < arrived)
		return false;
	notes->bind_query_id = (int64) pgstat_get_my_query_id();
	trace.calls++;
	now = timeline_now();
	notes->bind_start = arrived;
	notes->bind_busy = Max(now - arrived - trace.covered, 0);
	notes->start = now;
	notes->bound = 1;
	plain_shows(notes, PLAIN_BOUND);
	return true;
}

/* It is about to be run. */
static inline void
plain_runs(void)
{
	PlainRequest *notes = plain_notes();

	/* what was before is the bind's */
	if (notes->bound)
	{
		notes->busy = timeline_now();
		call_usage(&notes->usage);
	}
	plain.stage = PLAIN_RUNNING;
}

/* The statement has been answered; it may end only with the Sync. */
static inline void
plain_replied(int64 now)
{
	PlainRequest *notes = plain_notes();

	notes->busy = now - notes->busy;
	call_usage_turn(&notes->usage);
	plain.stage = PLAIN_ANSWERED;
}

/* Its commit is over, and used nothing. */
static inline void
plain_committed(const Call *commit, int64 end, uint64 xid)
{
	PlainRequest *notes = plain_notes();

	notes->commit_start = commit->start;
	notes->commit_end = end;
	notes->xid = xid;
	notes->transaction = transaction_start;
	plain_shows(notes, PLAIN_COMMITTED);
}

#pragma GCC visibility pop

#endif							/* PLAIN_H */
