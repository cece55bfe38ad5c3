/*-------------------------------------------------------------------------
 * statement.h
 *		What is told of a statement, next to its calls: its text, values and plan.
 *
 * A text or a plan is written once into a ring, before the first record that names
 * it, and again when it has been overwritten and is needed.  Both are known by
 * hashes, and their places by one small table (text.c).
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TRACE_STATEMENT_H
#define SQL_TRACE_STATEMENT_H

#include "../core/dictionary.h"
#include "../core/ring.h"

#include "executor/execdesc.h"
#include "nodes/execnodes.h"
#include "nodes/params.h"
#include "nodes/plannodes.h"

#pragma GCC visibility push(hidden)

/* text.c */
extern uint32 text_rings;		/* that have begun */
extern bool text_in_dictionary; /* the recorder's are, if they are needed again */
extern uint64 text_request_began;	/* position in the ring, if that is in the area */
extern void text_begin(void);
extern void text_begin_as(bool recorder);
extern void text_forget(void);
extern uint64 text_of(const char *source_text, int location, int length, int64 *query_id,
					  const Node *utility, bool *secret);
extern uint64 text_of_message(const char *message, int64 *query_id, bool *secret);
extern bool text_is_whole(const char *source_text, int location, int length);
extern bool text_is_secret(const char *text);
extern uint64 text_known(uint64 id, uint64 *position);
extern void text_remember(uint64 id, uint64 position, uint64 shown);
extern uint64 text_put_again(uint64 id, RecordKind kind, NameRecord *record, Size head,
							 const char *data, Size size, bool may_wait);
extern uint64 text_hash(const char *text, Size length);

/* binds.c */
extern void binds_write(uint64 call, ParamListInfo parameters, bool secret, int64 time);

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

/* Bytes of a text, or of a plan, that are kept at most; many texts are so long */
#define USUAL_TEXT (4 * 1024)

static inline int
text_most(void)
{
	uint64		most = Min(Max(trace.ring->size / 8, USUAL_TEXT), 1024 * 1024 * 1024);

	return (int) (text_in_dictionary ? Min(most, dictionary_largest() - sizeof(TextRecord)) : most);
}

#pragma GCC visibility pop

#endif							/* SQL_TRACE_STATEMENT_H */
