/*-------------------------------------------------------------------------
 * plain.c
 *		Most requests: one prepared statement (plain.h).
 *-------------------------------------------------------------------------
 */
#include "plain.h"
#include "items.h"

#include "access/xact.h"
#include "utils/backend_status.h"

Plain		plain;

/* What is kept back is to be written: that of a plain request, too. */
static void
spill(void)
{
	plain_else();
	fused_spill();
}

/*
 * The executor has started a plan that is kept, in a request that is kept back, outside any
 * call.  "call": its number, times, usage and names.  False: it is not plain.
 */
bool
plain_begins(const QueryDesc *queryDesc, const Call *call)
{
	PlainRequest *notes = plain_notes();

	/* to hand over must not fail, nor allocate */
	if (executions != NULL || executions_unused == NULL || !fused_plain_begins(call->text))
		return false;
	record_kept_back = spill;
	notes->bound = 0;
	notes->number = call->number;
	notes->text = call->text;
	notes->query_id = call->query_id;
	notes->plan = call->plan;
	notes->start = call->start;
	notes->busy = call->start;
	notes->usage = call->usage;
	notes->rows = 0;
	plain.nest_level = GetCurrentTransactionNestLevel();
	plain.plan = queryDesc;
	plain_reaches(PLAIN_STARTED);
	return true;
}

/* The Bind message that arrived then has been answered.  False: what is plain did not start in it. */
bool
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
	plain_reaches(PLAIN_BOUND);
	return true;
}

/* It is about to be run. */
void
plain_runs(void)
{
	PlainRequest *notes = plain_notes();

	/* what was before is the bind's */
	if (notes->bound)
	{
		notes->busy = timeline_now();
		call_usage(&notes->usage);
	}
	plain_reaches(PLAIN_RUNNING);
}

/* The statement has been answered; it may end only with the Sync. */
void
plain_replied(int64 now)
{
	PlainRequest *notes = plain_notes();

	notes->busy = now - notes->busy;
	call_usage_turn(&notes->usage);
	plain_reaches(PLAIN_ANSWERED);
}

/* Its execution is over, the time of which is that since then. */
void
plain_ends(int64 now, int64 since)
{
	PlainRequest *notes = plain_notes();

	notes->end = now;
	/* the clock may have stepped back */
	notes->busy = Max(now - since, 0);
	if (plain.stage == PLAIN_RAN)
		call_usage_turn(&notes->usage);
	plain.plan = NULL;
	plain_reaches(PLAIN_ENDED);
}

/* Its execution as others have one */
static void
make_execution(const PlainRequest *notes, PlainStage stage)
{
	Execution  *e = execution_take();

	e->plan = plain.plan;
	e->depth = 0;
	e->nest_level = plain.nest_level;
	e->call = plain_execution(notes);
	e->secret = false;
	e->whole = true;
	e->bound = notes->bound;
	e->ran = stage >= PLAIN_RAN;
	e->open = stage != PLAIN_BOUND && stage != PLAIN_ANSWERED;
	if (stage == PLAIN_BOUND)
		e->call.busy = 0;
	else
		e->call.usage = notes->usage;
	span.of = e->open && stage != PLAIN_RUNNING ? e : NULL;
}

/* From here on the request is one like any other. */
void
plain_hand_over(void)
{
	PlainStage	stage = plain.stage;
	PlainRequest *notes;
	int			depth = trace.depth;
	int64		last_end = trace.last_end;
	Call		call;

	plain.stage = PLAIN_NONE;
	if (trace.ring == NULL)
		return;
	record_kept_back = fused_spill;
	notes = plain_notes();
	/* before readers see the items of it */
	notes->stage = PLAIN_NONE;
	trace.depth = 0;
	if (notes->bound)
	{
		call = plain_bind(notes);
		call_write(&call, notes->start);
	}
	if (stage < PLAIN_ENDED)
		make_execution(notes, stage);
	else
	{
		call = plain_execution(notes);
		call.usage = notes->usage;
		call_write(&call, notes->end);
	}
	if (stage == PLAIN_COMMITTED)
	{
		call = plain_commit(notes);
		call_write(&call, notes->commit_end);
		transaction_write(TRANSACTION_COMMIT, notes->xid, notes->commit_end);
	}
	trace.depth = depth;
	trace.last_end = Max(trace.last_end, last_end);
	plain.plan = NULL;
}

/* Its commit is over, and used nothing. */
void
plain_committed(const Call *commit, int64 end, uint64 xid)
{
	PlainRequest *notes = plain_notes();

	notes->commit_start = commit->start;
	notes->commit_end = end;
	notes->xid = xid;
	notes->transaction = transaction_start;
	plain_reaches(PLAIN_COMMITTED);
}

/* The request has been answered. */
void
plain_answered(void)
{
	PlainRequest *notes = plain_notes();
	uint32		size = 0;

	if (likely(plain.stage >= PLAIN_ENDED && fused.size + PLAIN_ROOM <= FUSED_ROOM))
		size = plain_add(&open_request()->record, fused.size, notes, plain.stage);
	if (unlikely(size == 0))
	{
		plain_hand_over();
		return;
	}
	plain.stage = PLAIN_NONE;
	notes->stage = PLAIN_NONE;
	fused_show(size);
	record_kept_back = fused_spill;
}
