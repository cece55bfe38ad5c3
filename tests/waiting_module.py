"""A module whose functions wait in any event, named or not."""

from pathlib import Path

from tests.module_sources import write_module

WAITER = r"""
#include "postgres.h"
#include "fmgr.h"
#include "utils/wait_event.h"
PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(wait_in_numbers);
PG_FUNCTION_INFO_V1(wait_in_named);

/* One wait each in the events from number "first" on */
Datum
wait_in_numbers(PG_FUNCTION_ARGS)
{
	for (int i = 0; i < PG_GETARG_INT32(1); i++)
	{
		pgstat_report_wait_start((uint32) (PG_GETARG_INT32(0) + i));
		pg_usleep(1);
		pgstat_report_wait_end();
	}
	PG_RETURN_VOID();
}

/* One wait in an event with a name of its own, where the server knows such */
Datum
wait_in_named(PG_FUNCTION_ARGS)
{
	uint32		event = PG_WAIT_EXTENSION;

#if PG_VERSION_NUM >= 170000
	event = WaitEventExtensionNew(PG_GETARG_CSTRING(0));
#endif
	pgstat_report_wait_start(event);
	pg_usleep(1);
	pgstat_report_wait_end();
	PG_RETURN_VOID();
}
"""


def write_source(root: Path) -> Path:
    """Its source, as the modules' sources are laid out."""
    return write_module(root, "waiter", WAITER)
