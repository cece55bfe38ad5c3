/*-------------------------------------------------------------------------
 * sql_rows.h
 *		What functions for SQL of several modules share: access, and rows.
 *
 * Rows about a process or statement of another role need the privileges of
 * pg_read_all_stats, as in PostgreSQL's own views; sums over all are open.
 *-------------------------------------------------------------------------
 */
#ifndef PGTARE_SQL_ROWS_H
#define PGTARE_SQL_ROWS_H

#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

static inline bool
sql_may_see(Oid role)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(GetUserId(), role);
}

/* The only row that a function returns */
static inline Datum
sql_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	columns;

	if (get_call_result_type(fcinfo, NULL, &columns) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(columns, values, nulls));
}

/*
 * One of many.  Values beyond the columns of the row are left out.  Those with memory of
 * their own were made for this row, and go: there may be millions of rows.
 */
static inline void
sql_put_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TupleDesc	columns = result->setDesc;

	tuplestore_putvalues(result->setResult, columns, values, nulls);
	for (int i = 0; i < columns->natts; i++)
		if (!nulls[i] && !TupleDescAttr(columns, i)->attbyval)
			pfree(DatumGetPointer(values[i]));
}

#endif							/* PGTARE_SQL_ROWS_H */
