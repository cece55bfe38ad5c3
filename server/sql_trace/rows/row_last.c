/*-------------------------------------------------------------------------
 * row_last.c
 *		The row sources of the session's last statement, by SQL.
 *
 * Kept in the session alone, for the role with whose rights it ran.  A statement that reads them
 * does not replace them.
 *-------------------------------------------------------------------------
 */
#include "rows.h"
#include "../calls/statement.h"

#include "utils/memutils.h"

#include "../../common/sql_rows.h"

typedef struct LastRow
{
	RowResult	result;			/* its pointer to the node is of no use any more */
	NodeTag		tag;			/* of the plan's node */
	char		relation[NAMEDATALEN];
} LastRow;

static MemoryContext memory = NULL;
static LastRow *last = NULL;
static int	nlast = 0;
static int	room = 0;
static int	last_every = 0;
static Oid	last_role = InvalidOid;

/* As the statement calls the relation that a node reads, or nothing */
static const char *
relation_name(const PlanState *node)
{
	Index		relid = 0;

	switch (nodeTag(node->plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
		case T_SubqueryScan:
		case T_FunctionScan:
		case T_CteScan:
		case T_ForeignScan:
			relid = ((Scan *) node->plan)->scanrelid;
			break;
		default:
			break;
	}
	if (relid == 0 || relid > list_length(node->state->es_range_table))
		return "";
	return exec_rt_fetch(relid, node->state)->eref->aliasname;
}

/* An outermost execution ends. */
void
row_last_keep(RowQuery *query)
{
	if (query->reads_last)
		return;
	if (memory == NULL)
		memory = AllocSetContextCreate(TopMemoryContext, "row sources of the last statement",
									   ALLOCSET_DEFAULT_SIZES);
	nlast = 0;
	if (query->nresults > room)
	{
		MemoryContextReset(memory);
		last = MemoryContextAllocExtended(memory, sizeof(LastRow) * query->nresults,
										  MCXT_ALLOC_NO_OOM);
		room = last ? query->nresults : 0;
		if (last == NULL)
			return;
	}
	for (int i = 0; i < query->nresults; i++)
	{
		const char *relation = relation_name(query->results[i].node);
		Size		length = strnlen(relation, NAMEDATALEN - 1);

		last[i].result = query->results[i];
		last[i].tag = nodeTag(query->results[i].node->plan);
		memcpy(last[i].relation, relation, length);
		last[i].relation[length] = '\0';
	}
	nlast = query->nresults;
	last_every = query->every;
	last_role = query->role;
}

static const char *
way_name(RowWay way)
{
	static const char *const names[] = {
		[ROW_CALLED] = "calls",[ROW_BY_CHILD] = "child",[ROW_BY_PARENT] = "parent",
		[ROW_HIDDEN] = "none"
	};

	return names[way];
}

PG_FUNCTION_INFO_V1(sql_trace_row_sources);

Datum
sql_trace_row_sources(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	for (RowQuery *each = row_queries; each; each = each->outer)
		each->reads_last |= row_query_runs(each);
	if (nlast == 0 || !sql_may_see(last_role))
		return (Datum) 0;
	for (int i = 0; i < nlast; i++)
	{
		RowResult  *result = &last[i].result;
		Datum		values[15];
		bool		nulls[15] = {false};
		int			n = 0;

		values[n++] = Int32GetDatum(result->node_id);
		nulls[n] = result->parent_id < 0;
		values[n++] = Int32GetDatum(result->parent_id);
		values[n++] = Int32GetDatum(result->depth);
		values[n++] = CStringGetTextDatum(plan_kind(last[i].tag));
		nulls[n] = last[i].relation[0] == '\0';
		values[n++] = CStringGetTextDatum(last[i].relation);
		values[n++] = Int64GetDatum((int64) result->total.calls);
		nulls[n] = result->way == ROW_BY_PARENT || result->way == ROW_HIDDEN;
		values[n++] = Int64GetDatum((int64) result->total.rows);
		values[n++] = Int64GetDatum((int64) result->total.loops);
		values[n++] = Int64GetDatum((int64) result->total.timed);
		values[n++] = Float8GetDatum(result->total.ns / 1e6);
		values[n++] = Float8GetDatum(result->ns_low / 1e6);
		values[n++] = Float8GetDatum(result->ns_high / 1e6);
		values[n++] = Int32GetDatum(result->workers);
		values[n++] = CStringGetTextDatum(way_name(result->way));
		values[n++] = Int32GetDatum(last_every);
		sql_put_row(fcinfo, values, nulls);
	}
	return (Datum) 0;
}
