"""Sources of server modules that tests make up."""

from pathlib import Path

_MAKEFILE = """
MODULE_big = {name}
OBJS = {name}.o
EXTENSION = {name}
DATA = {name}--1.0.sql
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
override CFLAGS := $(filter-out -Wmissing-variable-declarations,$(CFLAGS))
"""
_CONTROL = "default_version = '1.0'\nmodule_pathname = '$libdir/{name}'\n"
_WAITER = r"""
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


def write_module(
    root: Path, name: str, code: str, control: str = "", script: str = "SELECT 1;\n"
) -> Path:
    """Version 1.0 of a module of one C file, laid out below root as the project's own sources are.

    control: lines of its control file beyond the version and the library. script: what CREATE
    EXTENSION runs.
    """
    (root / "common").mkdir(parents=True)
    (root / name).mkdir()
    for file, text in {
        "Makefile": _MAKEFILE.format(name=name),
        f"{name}.c": code,
        f"{name}.control": _CONTROL.format(name=name) + control,
        f"{name}--1.0.sql": script,
    }.items():
        (root / name / file).write_text(text)
    return root


def write_waiter(root: Path) -> Path:
    """A module whose functions wait in any event, named or not."""
    return write_module(root, "waiter", _WAITER)
