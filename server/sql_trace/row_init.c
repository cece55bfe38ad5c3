/*-------------------------------------------------------------------------
 * row_init.c
 *		Row sources: what the nodes of a plan do.
 *-------------------------------------------------------------------------
 */
#include "sqltrace.h"

void
row_sources_init(void)
{
}
