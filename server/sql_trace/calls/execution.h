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

#include "executor/executor.h"
#include "nodes/execnodes.h"

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
	bool		open;			/* its call has the time and the counters from which on its own are taken */
} Execution;

extern Execution *span;			/* whose time is being taken, at the depth under way, or NULL */
extern Execution *executions;	/* all that are known */
extern Execution *executions_unused;	/* to be taken */
extern Execution *execution_found;	/* the one that was looked for last */

/* What we stand before */
extern ExecutorStart_hook_type execute_start;
extern ExecutorEnd_hook_type execute_end;

extern void execute_bound(int64 now);
extern void execute_inherit(int nest_level);
extern Execution *execution_search(const QueryDesc *queryDesc);
extern Execution *execution_take(void);
extern void execution_started(const QueryDesc *queryDesc, Call *call, bool secret, bool whole);
extern const Execution *execution_bound(int64 arrived);
extern void execution_finish(Execution *e, int64 now);
extern void execution_left(Execution *e, int64 now);
extern void execution_fail(Execution *e, int sqlstate);
extern void execution_replaced(const QueryDesc *queryDesc);

/* For row sources */
extern bool execute_is_traced(const QueryDesc *queryDesc);
extern bool execute_is_written(const QueryDesc *queryDesc);
extern bool execute_row_sources(const QueryDesc *queryDesc, uint32 sampling,
								const RowSource *nodes, uint32 n);

/* From here on its time and usage are taken, or no longer. */
static inline void
span_turn(Execution *e, int64 now)
{
	e->open = !e->open;
	e->call.busy = now - e->call.busy;
	call_usage_turn(&e->call.usage);
}

/* What happens next is not the open execution's. */
static inline void
span_close(int64 now)
{
	if (span != NULL)
		span_turn(span, now);
	span = NULL;
}

static inline uint64
rows_of(const QueryDesc *queryDesc)
{
	return queryDesc->estate ? queryDesc->estate->es_processed : 0;
}

static inline Execution *
execution_of(const QueryDesc *queryDesc)
{
	return execution_found->plan == queryDesc ? execution_found : execution_search(queryDesc);
}

#pragma GCC visibility pop

#endif							/* EXECUTION_H */
