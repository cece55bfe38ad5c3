"""Secrets where something else is unusual: a clock that stands still, another module's planner."""

import struct
import time

import pytest
from psycopg.pq import ExecStatus

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached
from tests.module_sources import write_module
from tests.preloaded import preloaded
from tests.servers import tracing
from tests.sessions import Connection, rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: A planner that does not call those that were installed before it.
_PLANNER = r"""
#include "postgres.h"
#include "fmgr.h"
#include "optimizer/planner.h"
PG_MODULE_MAGIC;
void		_PG_init(void);

#if PG_VERSION_NUM >= 190000
static PlannedStmt *
plan(Query *query, const char *text, int options, ParamListInfo parameters, ExplainState *state)
{
	return standard_planner(query, text, options, parameters, state);
}
#else
static PlannedStmt *
plan(Query *query, const char *text, int options, ParamListInfo parameters)
{
	return standard_planner(query, text, options, parameters);
}
#endif

void
_PG_init(void)
{
	planner_hook = plan;
}
"""


def trace_of(onlooker: Connection, client: Connection) -> bytes:
    """All bytes of a session's trace."""
    query = "SELECT data FROM sql_trace_drain(%s, 0)"
    ((data,),) = rows(onlooker, query, client.info.backend_pid)
    return bytes(data)


def test_planner_that_calls_no_other(
    each_server: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A plan that lies where another statement's lay is not taken for that."""
    source = write_module(tmp_path_factory.mktemp("planner") / "server", "planner", _PLANNER)
    library = build_cached(each_server, "planner", source).library
    with (
        tracing(each_server) as cluster,
        session(cluster) as client,
        session(cluster) as onlooker,
    ):
        client.execute(f"LOAD '{library}'".encode())
        client.execute("SET sql_trace.level = 12")
        wire = client.pgconn
        for name in ("city", "password"):
            wire.prepare(name.encode(), f"SELECT $1::text AS {name}".encode())
        for name, value in (("city", b"Lisbon"), ("password", b"hush1"), ("city", b"Porto")):
            assert wire.exec_prepared(name.encode(), [value]).status == ExecStatus.TUPLES_OK
        # one made where another was, as that is gone
        for name in ("city", "password"):
            wire.exec_params(f"SELECT $1::text AS {name}, 2".encode(), [f"hush of {name}".encode()])
        found = trace_of(onlooker, client)
    for shown in (b"Lisbon", b"Porto", b"hush of city"):
        assert shown in found
    for hidden in (b"hush1", b"hush of password"):
        assert hidden not in found


@pytest.mark.parametrize(
    ("length", "name", "shown"),
    [
        pytest.param(100, "passages", True, marks=pytest.mark.slow),
        (100_000, "password2", False),
    ],
)
def test_clock_that_stands_still(
    each_server: Binaries, length: int, name: str, shown: bool
) -> None:
    """Each message of a pipeline is looked at, although all have one timestamp."""
    texts = [
        f"SELECT 'hush {n}', '{length * 'x'}' AS {alias};".encode()
        for n, alias in enumerate(("passages", name))
    ]
    # a long message has its place once there has been one
    texts[:0] = 3 * texts[:1]
    with (
        preloaded(each_server, "still_clock.c", "PGTARE_CLOCK_STILL", 8) as (binaries, still),
        tracing(each_server, run=binaries) as cluster,
        session(cluster) as client,
        session(cluster) as onlooker,
    ):
        client.execute("SET sql_trace.level = 12")
        wire = client.pgconn
        still[:] = struct.pack("q", time.time_ns() // 1000)
        wire.enter_pipeline_mode()
        for text in texts:
            wire.send_prepare(b"", text)
        wire.pipeline_sync()
        while (done := wire.get_result()) is None or done.status != ExecStatus.PIPELINE_SYNC:
            pass
        wire.exit_pipeline_mode()
        still[:] = bytes(8)
        found = trace_of(onlooker, client)
    assert b"hush 0" in found
    assert (b"hush 1" in found) == shown
