/*-------------------------------------------------------------------------
 * plan.c
 *		Plan trees: each is written once, as texts are.
 *
 * A plan is known by a hash of all that is written of it.  Statements that differ
 * in a literal have texts of their own, and mostly one plan.  In the dictionary the
 * hash is that of its text, too: other databases have other relations of the same number,
 * and relations may be renamed.
 *-------------------------------------------------------------------------
 */
#include "text_known.h"
#include "../core/record.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/memnodes.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/portal.h"

typedef struct Walk
{
	const PlannedStmt *plan;
	PlanState  *parent;
	uint64		hash;
	uint32		nodes;
	StringInfo	json;			/* NULL: only the hash is wanted */
	int			limit;
	bool		cut;
	bool		varies;			/* each execution may leave out other parts of it */
} Walk;

/* Bytes of a node with its names, and of what tells that the plan is cut */
#define LAST_NODE 1024

/*
 * Plans that the server keeps and uses again, by their address: to walk one again
 * would give what is known already.  Each plan comes from the planner, so that an
 * address means the same plan until the planner runs, and with it the same text.  A
 * planner's hook in front of ours may not call it, so the memory of a plan tells as
 * well that it goes: what is known of it is forgotten then.
 */
#define KEPT 64					/* power of two */

typedef struct Kept
{
	const PlannedStmt *plan;
	uint64		made;			/* plans, when it was walked */
	uint64		hash;
	uint64		id;				/* in the trace */
	uint64		position;		/* of its record */
	uint64		text;			/* of its statement, all of a source that is not secret; 0: not known */
	uint64		text_position;
	uint32		rings;			/* the number of the ring, if it is there and not in the dictionary */
} Kept;

StaticAssertDecl(sizeof(Kept) == 64, "a place in an array is found by a shift");

static Kept kept[KEPT];
static uint64 plans_made = 1;

static const struct
{
	NodeTag		tag;
	const char *name;
}			kinds[] = {
	{T_Result, "Result"},
	{T_ProjectSet, "ProjectSet"},
	{T_ModifyTable, "ModifyTable"},
	{T_Append, "Append"},
	{T_MergeAppend, "Merge Append"},
	{T_RecursiveUnion, "Recursive Union"},
	{T_BitmapAnd, "BitmapAnd"},
	{T_BitmapOr, "BitmapOr"},
	{T_NestLoop, "Nested Loop"},
	{T_MergeJoin, "Merge Join"},
	{T_HashJoin, "Hash Join"},
	{T_SeqScan, "Seq Scan"},
	{T_SampleScan, "Sample Scan"},
	{T_Gather, "Gather"},
	{T_GatherMerge, "Gather Merge"},
	{T_IndexScan, "Index Scan"},
	{T_IndexOnlyScan, "Index Only Scan"},
	{T_BitmapIndexScan, "Bitmap Index Scan"},
	{T_BitmapHeapScan, "Bitmap Heap Scan"},
	{T_TidScan, "Tid Scan"},
	{T_TidRangeScan, "Tid Range Scan"},
	{T_SubqueryScan, "Subquery Scan"},
	{T_FunctionScan, "Function Scan"},
	{T_TableFuncScan, "Table Function Scan"},
	{T_ValuesScan, "Values Scan"},
	{T_CteScan, "CTE Scan"},
	{T_NamedTuplestoreScan, "Named Tuplestore Scan"},
	{T_WorkTableScan, "WorkTable Scan"},
	{T_ForeignScan, "Foreign Scan"},
	{T_CustomScan, "Custom Scan"},
	{T_Material, "Materialize"},
	{T_Memoize, "Memoize"},
	{T_Sort, "Sort"},
	{T_IncrementalSort, "Incremental Sort"},
	{T_Group, "Group"},
	{T_Agg, "Aggregate"},
	{T_WindowAgg, "WindowAgg"},
	{T_Unique, "Unique"},
	{T_SetOp, "SetOp"},
	{T_LockRows, "LockRows"},
	{T_Limit, "Limit"},
	{T_Hash, "Hash"},
};

/* What EXPLAIN calls a node */
const char *
plan_kind(NodeTag tag)
{
	for (int i = 0; i < (int) lengthof(kinds); i++)
		if (kinds[i].tag == tag)
			return kinds[i].name;
	return "?";
}

/* The relation that a node reads, or changes */
static Oid
relation_of(const Walk *walk, const Plan *plan)
{
	Index		number = 0;

	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
		case T_ForeignScan:
		case T_CustomScan:
			number = ((const Scan *) plan)->scanrelid;
			break;
		case T_ModifyTable:
			number = ((const ModifyTable *) plan)->nominalRelation;
			break;
		default:
			break;
	}
	return number > 0 ? rt_fetch(number, walk->plan->rtable)->relid : InvalidOid;
}

static Oid
index_of(const Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_IndexScan:
			return ((const IndexScan *) plan)->indexid;
		case T_IndexOnlyScan:
			return ((const IndexOnlyScan *) plan)->indexid;
		case T_BitmapIndexScan:
			return ((const BitmapIndexScan *) plan)->indexid;
		default:
			return InvalidOid;
	}
}

static void
put_relation(StringInfo json, const char *key, Oid relation)
{
	char	   *name = OidIsValid(relation) ? get_rel_name(relation) : NULL;
	char	   *schema = name ? get_namespace_name(get_rel_namespace(relation)) : NULL;

	if (name == NULL)
		return;
	appendStringInfo(json, ", \"%s\": ", key);
	escape_json(json, strcmp(key, "relation") == 0 && schema ?
				quote_qualified_identifier(schema, name) : name);
}

static void
put_node(Walk *walk, const PlanState *state)
{
	const Plan *plan = state->plan;
	StringInfo	json = walk->json;

	if (json->len > walk->limit)
	{
		walk->cut = true;
		return;
	}
	appendStringInfo(json, "%s{\"id\": %d, \"parent\": %d, \"kind\": \"%s\"",
					 walk->nodes > 0 ? ", " : "", plan->plan_node_id,
					 walk->parent ? walk->parent->plan->plan_node_id : -1, plan_kind(nodeTag(plan)));
	put_relation(json, "relation", relation_of(walk, plan));
	put_relation(json, "index", index_of(plan));
	if (askers_subplan(walk->parent, state))
	{
		appendStringInfoString(json, ", \"subplan\": true");
		askers_put(json, walk->parent, state);
	}
	appendStringInfo(json, ", \"rows\": %.0f, \"cost\": %.2f}", plan->plan_rows, plan->total_cost);
	walk->nodes++;
}

/* What put_node shows, in no more bytes; askers_hash() has the nodes that need init plans */
typedef struct NodeFacts
{
	int32		id;
	int32		parent;
	uint32		tag;
	int32		subplan;		/* its number among them, or 0 */
	Oid			relation;
	Oid			index;
	double		rows;
	double		cost;
} NodeFacts;

#define WORDS (sizeof(NodeFacts) / sizeof(uint64))

StaticAssertDecl(sizeof(NodeFacts) == 40, "nothing undefined is hashed");

/* Each node of each execution comes by: to mix words takes a quarter of what hashing bytes does. */
static inline uint64
mix(uint64 hash, uint64 word)
{
	hash = (hash ^ word) * UINT64CONST(0x9E3779B97F4A7C15);
	return hash ^ hash >> 32;
}

static void
hash_node(Walk *walk, const PlanState *state)
{
	const Plan *plan = state->plan;
	const SubPlan *subplan = askers_subplan(walk->parent, state);
	uint64		asks = askers_hash(state);
	NodeFacts	facts;
	uint64		words[WORDS];

	facts.id = plan->plan_node_id;
	facts.parent = walk->parent ? walk->parent->plan->plan_node_id : -1;
	facts.tag = nodeTag(plan);
	facts.subplan = subplan ? subplan->plan_id : 0;
	facts.relation = relation_of(walk, plan);
	facts.index = index_of(plan);
	facts.rows = plan->plan_rows;
	facts.cost = plan->total_cost;
	memcpy(words, &facts, sizeof(words));
	for (int i = 0; i < (int) WORDS; i++)
		walk->hash = mix(walk->hash, words[i]);
	if (asks != 0)
		walk->hash = mix(walk->hash, asks);
	walk->varies |= IsA(plan, Append) || IsA(plan, MergeAppend);
}

static bool
walk_node(PlanState *state, void *context)
{
	Walk	   *walk = context;
	PlanState  *parent = walk->parent;

	if (walk->json)
		put_node(walk, state);
	else
		hash_node(walk, state);
	walk->parent = state;
	(void) planstate_tree_walker(state, walk_node, walk);
	walk->parent = parent;
	return false;
}

static void
put_into_ring(uint64 hash, PlanRecord *record, const char *json, uint64 call, uint64 *position)
{
	*position = ring_head();
	text_remember(hash, *position, record->plan);
	if (record_write_ahead(RECORD_PLAN, call, record, sizeof(*record), json, record->stored) &&
		text_in_dictionary)
	{
		text_remember(hash, NEEDED_ONCE | (ring_head() - record->header.size), record->plan);
		*position = NEEDED_ONCE;
	}
}

/* Returns its identifier in the trace, and where it is. */
static uint64
write_plan(const QueryDesc *queryDesc, uint64 hash, uint64 call, uint64 text, uint64 *position)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "plan for sql_trace",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);
	PlanRecord	record = {0};
	StringInfoData json;
	Walk		walk = {queryDesc->plannedstmt};

	initStringInfo(&json);
	appendStringInfoChar(&json, '[');
	walk.json = &json;
	walk.limit = Min(text_most() - (text_in_dictionary ? LAST_NODE : 0), 1024 * 1024);
	(void) walk_node(queryDesc->planstate, &walk);
	appendStringInfoString(&json, walk.cut ? ", {\"cut\": true}]" : "]");

	record.plan = text_in_dictionary ? mix(hash ^ trace.slot->trace.role, text_hash(json.data, json.len)) | 1 : hash;
	record.stored = json.len;
	record.nodes = walk.nodes;
	/* statements of all sessions share it in the dictionary: it has no text there */
	*position = !text_in_dictionary || text_find(hash) == NULL ? 0 :
		text_put_again(hash, RECORD_PLAN, (NameRecord *) &record, sizeof(record), json.data,
					   record.stored, true);
	if (*position == 0)
	{
		record.text = text;
		put_into_ring(hash, &record, json.data, call, position);
	}
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
	return record.plan;
}

/* The planner runs: it can put a plan where another one was. */
void
plan_made(void)
{
	plans_made++;
}

static inline Kept *
place_of(const PlannedStmt *plan)
{
	return &kept[(uintptr_t) plan / 64 % KEPT];
}

/*
 * What is known of a plan that the server keeps, or NULL.  A copy of one, as a
 * cursor has, can be where another copy was, though nothing has been planned.
 */
static Kept *
kept_of(const PlannedStmt *plan)
{
	const Portal portal = ActivePortal;

	if (trace.depth > 0 || portal == NULL || portal->cplan == NULL ||
		portal->stmts != portal->cplan->stmt_list || list_length(portal->stmts) != 1 ||
		linitial(portal->stmts) != plan)
		return NULL;
	return place_of(plan);
}

static bool
is_of(const Kept *of, const PlannedStmt *plan)
{
	return of != NULL && of->plan == plan && of->made == plans_made;
}

/*
 * Are its plan and its text where they were written?  Not inline: then the caller has
 * registers to save.
 */
static pg_noinline bool
is_held(const Kept *of)
{
	uint64		one = of->position;
	uint64		other = of->text_position;

	if (((one | other) & IN_DICTIONARY) == 0)
		return ring_holds(Min(one, other));
	if (likely((one & other & IN_DICTIONARY) != 0))
		return dictionary_holds(one) && dictionary_holds(other);
	return text_is_held(one) && text_is_held(other);
}

/* The memory of a plan is given back. */
static void
plan_goes(void *plan)
{
	Kept	   *of = place_of(plan);

	if (of->plan == plan)
		of->plan = NULL;
}

/* Have that called for the plan that the portal runs, once. */
static void
watch_plan(const PlannedStmt *plan)
{
	MemoryContext context = ActivePortal->cplan->context;
	MemoryContextCallback *call;

	for (call = context->reset_cbs; call != NULL; call = call->next)
		if (call->func == plan_goes)
			return;
	call = MemoryContextAlloc(context, sizeof(*call));
	call->func = plan_goes;
	call->arg = unconstify(PlannedStmt *, plan);
	MemoryContextRegisterResetCallback(context, call);
}

/* The text and the plan of a statement, if it is one that ran before and the ring still has both */
bool
plan_statement(const PlannedStmt *plan, uint64 *text, uint64 *id)
{
	const Kept *of = kept_of(plan);

	if (!is_of(of, plan) || of->rings != text_rings || of->text == 0 ||
		trace.secret_depth != INT_MAX || trace.secret_transaction ||
		GetUserId() != trace.slot->trace.role ||
		!is_held(of))
		return false;
	*text = of->text;
	*id = of->id;
	return true;
}

/* This is the text of its statement, which is not secret. */
void
plan_keep_text(const PlannedStmt *plan, uint64 text)
{
	Kept	   *of = kept_of(plan);

	if (!is_of(of, plan) || text_known(text, &of->text_position) == 0)
		return;
	of->text = text;
}

/* The identifier of a plan that has been started, or 0; it is written if it is not known. */
uint64
plan_of(const QueryDesc *queryDesc, uint64 call, uint64 text)
{
	Walk		walk = {queryDesc->plannedstmt};
	Kept	   *of = kept_of(queryDesc->plannedstmt);
	uint64		position;
	uint64		id;

	if (queryDesc->planstate == NULL)
		return 0;
	if (is_of(of, queryDesc->plannedstmt))
	{
		if (likely(of->rings == text_rings && text_is_held(of->position)))
			return of->id;
		walk.hash = of->hash;
	}
	else
		(void) walk_node(queryDesc->planstate, &walk);
	if (walk.hash == 0)
		walk.hash = 1;
	id = text_known(walk.hash, &position);
	if (id == 0)
		id = write_plan(queryDesc, walk.hash, call, text, &position);
	if (of != NULL && !walk.varies)
	{
		watch_plan(queryDesc->plannedstmt);
		*of = (Kept) {
			.plan = queryDesc->plannedstmt,.made = plans_made,.hash = walk.hash,.id = id,
			.position = position,.rings = text_rings
		};
	}
	return id;
}
