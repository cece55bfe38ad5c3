/*-------------------------------------------------------------------------
 * execution.h
 *		What is known of executions, from the executor's start to its end.
 *-------------------------------------------------------------------------
 */
#ifndef EXECUTION_H
#define EXECUTION_H

#include "call.h"

#include "../core/records.h"
#include "../core/timeline.h"
#include "../core/trace.h"

#include "executor/execdesc.h"

#pragma GCC visibility push(hidden)

typedef struct Execution
{
	struct Execution *next;
	const QueryDesc *plan;		/* only compared */
	Call		call;
	int			depth;
	int			nest_level;		/* of the subtransaction it began in */
	bool		ran;
	bool		bound;			/* by a Bind message that has been answered */
	bool		secret;
	bool		whole;			/* the only statement of its source */
	int64		since;			/* its time is taken since then ... */
	Usage		before;			/* ... and its usage */
} Execution;

/* The execution whose time is being taken, at the depth under way, or NULL */
typedef struct Span
{
	Execution  *of;
} Span;

extern Span span;
extern Execution *executions;	/* all that are known */
extern Execution *execution_found;	/* the one that was looked for last */

extern void execute_bound(int64 now);
extern void execute_inherit(int nest_level);
extern Execution *execution_search(const QueryDesc *queryDesc);
extern Execution *execution_take(void);
extern const Execution *execution_bound(int64 arrived);
extern void execution_finish(Execution *e, int64 now);
extern void execution_left(Execution *e, int64 now);
extern void execution_fail(Execution *e, int sqlstate);
extern void execution_replaced(const QueryDesc *queryDesc);
extern void span_open(Execution *e, int64 now);
extern void span_end(int64 now);

/*
 * For row sources.  Their hooks are installed last, and so run outside ours: when
 * their ExecutorStart hook has called the one before, the execution is known;
 * until their ExecutorEnd hook calls the one before, it can be written about.
 */
extern bool execute_is_traced(const QueryDesc *queryDesc);
extern bool execute_is_written(const QueryDesc *queryDesc);
extern bool execute_row_sources(const QueryDesc *queryDesc, uint32 sampling,
								const RowSource *nodes, uint32 n);

/* What happens next is not the open execution's. */
static inline void
span_close(int64 now)
{
	if (span.of != NULL)
		span_end(now);
}

static inline Execution *
execution_of(const QueryDesc *queryDesc)
{
	return execution_found->plan == queryDesc ? execution_found : execution_search(queryDesc);
}

#pragma GCC visibility pop

#endif							/* EXECUTION_H */
