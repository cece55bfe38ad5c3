/*-------------------------------------------------------------------------
 * fetches.h
 *		What each fetch passes through, inlined into the executor's hook.
 *
 * A fetch of one row takes a third of a microsecond: here instructions count, and
 * a test counts them.  So times stay readings of the clock until a record is
 * written, and no error is caught: fetches.c finds out later that one has left a
 * fetch.
 *-------------------------------------------------------------------------
 */
#ifndef FETCHES_H
#define FETCHES_H

#include "plain.h"
#include "statement.h"

#pragma GCC visibility push(hidden)

/* Fetches of an execution that make one record */
typedef struct Series
{
	Call		call;
	int			depth;
	uint64		fetches;		/* that have ended; 0: there is nothing to write */
	int64		started;		/* readings of the clock */
	int64		until;			/* a fetch that begins later begins another */
	int64		ended;
	int64		busy;			/* ticks */
	Usage		first;			/* counters before the first */
	Usage		last;			/* and after the last */
	bool		running;		/* one is under way ... */
	int64		since;			/* ... since then */
	uint64		waits;			/* of the process, before it */
	Execution  *of;				/* what it fetches from */
	const ErrorContextCallback *context;	/* in its frame */
} Series;

extern Series series;

extern void call_interrupts(int64 now);
extern void execute_forget(int nest_level, uint16 flags);
extern void series_nested(void);
extern void series_close(void);
extern void series_forget(void);
extern void series_look_for_error(void);
extern void series_begin(const Execution *e, int64 reading);
extern void series_stands_alone(void);
extern void series_note_error(void *arg);
extern void series_interrupted(int64 now);

/* Another call begins, or ends, or a statement has been answered. */
static inline void
execute_interrupted_by(int64 now)
{
	if (unlikely(span != NULL || series.fetches > 0 || series.running))
		series_interrupted(now);
}

/* The same, if it is not known yet what time it is. */
static inline void
execute_interrupted(void)
{
	if (unlikely(span != NULL || series.fetches > 0 || series.running))
		series_interrupted(timeline_now());
}

/* A call begins, as is noticed "now": its number. */
static inline uint64
call_begins(int64 start, int64 now)
{
	if (unlikely(plain.stage != PLAIN_NONE || span != NULL || series.fetches > 0 ||
				 series.running))
		call_interrupts(now);
	if (transaction_is_new())
		transaction_begins(start, now);
	return ++trace.calls;
}

/* An execution is fetched from, at the depth and in the call under way. */
static inline void
series_fetch(Execution *e, int64 reading, ErrorContextCallback *context)
{
	if (unlikely(series.fetches == 0 ||
				 series.call.execution != e->call.number ||
				 series.call.parent != trace.current ||
				 series.call.number != trace.calls ||
				 reading >= series.until))
		series_begin(e, reading);
	series.of = e;
	series.since = reading;
	series.waits = *timeline_waits;
	context->callback = series_note_error;
	context->previous = error_context_stack;
	error_context_stack = context;
	series.context = context;
	series.running = true;
}

/*
 * May what starts be plain: a plan that is kept, outside any call, in a request that is kept
 * back?  Then its names are noted.  To hand over must not fail, nor allocate.
 */
static inline bool
plain_may_begin(const QueryDesc *queryDesc)
{
	return fused.open && !fused.plain && trace.depth == 0 && executions == NULL &&
		executions_unused != NULL && series.fetches == 0 && !series.running &&
		plan_statement(queryDesc->plannedstmt, &plain_notes()->text, &plain_notes()->plan);
}

/* The fetch has ended. */
static inline void
series_fetched(int64 reading, uint64 rows)
{
	bool		alone = series.waits != *timeline_waits || series.call.number != trace.calls;

	series.running = false;
	if (unlikely(alone))
		series_stands_alone();
	series.fetches++;
	series.busy += reading - series.since;
	series.ended = reading;
	series.call.rows += rows;
	call_usage(&series.last);
	if (unlikely(alone))
		series_close();
}

#pragma GCC visibility pop

#endif							/* FETCHES_H */
