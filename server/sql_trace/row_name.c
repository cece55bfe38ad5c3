/*-------------------------------------------------------------------------
 * row_name.c
 *		What EXPLAIN calls a node.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "rows.h"

#define NODE_NAMES(X) \
	X(Result, "Result") X(ProjectSet, "ProjectSet") X(ModifyTable, "ModifyTable") \
	X(Append, "Append") X(MergeAppend, "Merge Append") X(RecursiveUnion, "Recursive Union") \
	X(BitmapAnd, "BitmapAnd") X(BitmapOr, "BitmapOr") X(SeqScan, "Seq Scan") \
	X(SampleScan, "Sample Scan") X(IndexScan, "Index Scan") \
	X(IndexOnlyScan, "Index Only Scan") X(BitmapIndexScan, "Bitmap Index Scan") \
	X(BitmapHeapScan, "Bitmap Heap Scan") X(TidScan, "Tid Scan") \
	X(TidRangeScan, "Tid Range Scan") X(SubqueryScan, "Subquery Scan") \
	X(FunctionScan, "Function Scan") X(TableFuncScan, "Table Function Scan") \
	X(ValuesScan, "Values Scan") X(CteScan, "CTE Scan") \
	X(NamedTuplestoreScan, "Named Tuplestore Scan") X(WorkTableScan, "WorkTable Scan") \
	X(ForeignScan, "Foreign Scan") X(CustomScan, "Custom Scan") X(NestLoop, "Nested Loop") \
	X(MergeJoin, "Merge Join") X(HashJoin, "Hash Join") X(Material, "Materialize") \
	X(Memoize, "Memoize") X(Sort, "Sort") X(IncrementalSort, "Incremental Sort") \
	X(Group, "Group") X(Agg, "Aggregate") X(WindowAgg, "WindowAgg") X(Unique, "Unique") \
	X(Gather, "Gather") X(GatherMerge, "Gather Merge") X(Hash, "Hash") X(SetOp, "SetOp") \
	X(LockRows, "LockRows") X(Limit, "Limit")

const char *
row_node_name(const PlanState *node)
{
	switch (nodeTag(node->plan))
	{
#define NAME(tag, name) case T_##tag: return name;
			NODE_NAMES(NAME)
		default:
			return "???";
	}
}

/* As the statement calls the relation that a node reads, or NULL */
const char *
row_relation_name(const PlanState *node)
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
		case T_FunctionScan:
		case T_CteScan:
		case T_ForeignScan:
			relid = ((Scan *) node->plan)->scanrelid;
			break;
		default:
			break;
	}
	if (relid == 0 || relid > list_length(node->state->es_range_table))
		return NULL;
	return exec_rt_fetch(relid, node->state)->eref->aliasname;
}
