/*-------------------------------------------------------------------------
 * plain.c
 *		Most requests: one prepared statement (plain.h).
 *-------------------------------------------------------------------------
 */
#include "plain.h"
#include "items.h"
#include "request.h"
#include "statement.h"
#include "../core/level.h"

#include "access/xact.h"

Plain		plain;

/* What is kept back is to be written: that of a plain request, too. */
static void
spill(void)
{
	plain_else();
	fused_spill();
}

/*
 * The executor starts a plan that may be of a plain request, whose names have been noted.  False:
 * it is not, as statements ran within it; "call" has the counters from before it.
 */
bool
plain_begins(QueryDesc *queryDesc, int eflags, Call *call)
{
	PlainRequest *notes = plain_notes();
	uint64		number = trace.calls + 1;

	call_usage(&notes->usage);
	execute_start(queryDesc, eflags);
	if (unlikely(trace.calls + 1 != number))
	{
		call->usage = notes->usage;
		return false;
	}
	if (transaction_is_new())
		transaction_begins(call->start, call->start);
	trace.calls = number;
	request_statement(notes->text, false);
	if (LEVEL_BINDS(trace.now_level))
		binds_write(number, queryDesc->params, false, call->start);
	notes->bound = 0;
	notes->number = number;
	notes->query_id = (int64) queryDesc->plannedstmt->queryId;
	notes->start = notes->busy = call->start;
	notes->rows = 0;
	plain.nest_level = GetCurrentTransactionNestLevel();
	plain.plan = queryDesc;
	plain.stage = PLAIN_STARTED;
	if (likely(fused.open && fused_plain_begins(notes->text)))
		record_kept_back = spill;
	else
		plain_hand_over();
	return true;
}

/* The end of its execution: the time goes on until then, but for that since its answer. */
void
plain_ends(QueryDesc *queryDesc)
{
	PlainRequest *notes = plain_notes();
	bool		answered = plain.stage == PLAIN_ANSWERED;
	int64		before = answered ? timeline_now() : 0;
	int64		now;
	Execution  *e;

	execute_end(queryDesc);
	now = timeline_now();
	if (likely(plain.plan == queryDesc))
	{
		notes->end = now;
		/* the clock may have stepped back */
		notes->busy = Max(now - (answered ? before - notes->busy : notes->busy), 0);
		if (!answered)
			call_usage_turn(&notes->usage);
		plain.plan = NULL;
		plain_shows(notes, PLAIN_ENDED);
		return;
	}
	e = execution_of(queryDesc);
	if (e == NULL)
		return;
	if (answered && !e->open)
		e->call.busy += now - before;
	execution_finish(e, now);
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
	span = e->open && stage != PLAIN_RUNNING ? e : NULL;
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

/* The request has been answered. */
void
plain_answered(void)
{
	PlainRequest *notes = plain_notes();
	bool		committed = plain.stage == PLAIN_COMMITTED;
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
	if (committed)
	{
		/* others who see the flag see the call */
		pg_write_barrier();
		open_request()->record.flags |= FUSED_COMMITTED;
	}
	record_kept_back = fused_spill;
}
