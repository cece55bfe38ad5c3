/*-------------------------------------------------------------------------
 * module.c
 *		Loading the module.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/guc.h"

#include "rows.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

void
_PG_init(void)
{
	row_sources_init();
	MarkGUCPrefixReserved("sql_trace");
}
