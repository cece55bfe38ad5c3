/*-------------------------------------------------------------------------
 * namesakes.c
 *		Waits for locks whose tranches have one name, as a neighbour in tests.
 *
 * Tranches that a session has not registered are all "extension" there, and
 * careless modules give two of theirs one name.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "storage/lwlock.h"
#include "utils/wait_event.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(namesakes_wait);

#define FIRST_TRANCHE (LWTRANCHE_FIRST_USER_DEFINED + 1000)	/* nobody has registered it */

/* Wait for the lock with this number, for so long. */
Datum
namesakes_wait(PG_FUNCTION_ARGS)
{
	pgstat_report_wait_start(PG_WAIT_LWLOCK | (uint32) (FIRST_TRANCHE + PG_GETARG_INT32(0)));
	pg_usleep(PG_GETARG_INT32(1));
	pgstat_report_wait_end();
	PG_RETURN_VOID();
}
