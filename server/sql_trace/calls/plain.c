/*-------------------------------------------------------------------------
 * plain.c
 *		Most requests: one prepared statement (plain.h).
 *-------------------------------------------------------------------------
 */
#include "plain.h"
#include "items.h"

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
	plain.stage = PLAIN_STARTED;
	return true;
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
