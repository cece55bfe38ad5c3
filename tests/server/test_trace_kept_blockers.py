"""What the trace of a session says that holds up another: whether it ran a statement then."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.analysis.moment import IncidentMoment, moment
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process
from tests.sessions import eventually, rows, session, until_it_waits
from tests.trace_keeper import server_that_keeps, traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

CHANGE = "UPDATE hot SET n = n"


@pytest.fixture(scope="module")
def filing(each_server: Binaries) -> Iterator[tuple[Cluster, Path]]:
    """A server that writes what it keeps, and where."""
    with server_that_keeps(each_server, "CREATE TABLE hot AS SELECT 1 AS n") as found:
        yield found


def kept(cluster: Cluster, *words: str) -> dict[str, Any]:
    done = in_process("trace", "kept", *words, "--dsn", cluster.dsn(), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def held_up(
    filing: tuple[Cluster, Path], before: Sequence[str], statement: str
) -> tuple[IncidentMoment, dict[str, Any], str]:
    """What the trace says of a session that runs a statement while another waits for its row."""
    cluster, directory = filing
    with (
        session(cluster) as admin,
        traced(cluster) as blocker,
        traced(cluster, keep_lock_wait=100) as victim,
    ):
        query_of = (
            "SELECT id, file FROM sql_trace_kept()"
            " WHERE cause = 'blocker' AND pid = %s AND file IS NOT NULL"
        )
        pid = blocker.info.backend_pid
        for query in before:
            blocker.execute(query.encode())

        def work() -> None:
            with contextlib.suppress(psycopg.errors.QueryCanceled):
                blocker.execute(statement.encode())

        works = threading.Thread(target=work)
        works.start()
        if "pg_sleep" in statement:
            until_it_waits(admin, blocker, "Timeout")
        time.sleep(0.5)
        waits = threading.Thread(target=victim.execute, args=(CHANGE.encode(),))
        waits.start()
        try:
            ((number, file),) = eventually(lambda: rows(admin, query_of, pid))
        finally:
            if "pg_sleep" in statement:  # so long that a busy machine finds it asleep
                blocker.cancel_safe()
            works.join()
            blocker.execute("ROLLBACK")
            waits.join()
    found = moment(ledger(load(directory / file)))
    assert found is not None
    number = str(number)
    shown = in_process("trace", "kept", number, "--dsn", cluster.dsn()).stdout
    return found, kept(cluster, number)["session"], shown


@pytest.mark.parametrize(
    ("before", "statement", "named"),
    [
        pytest.param(
            (), f"{CHANGE}; SELECT pg_sleep(60)", "SELECT pg_sleep(?)", marks=pytest.mark.slow
        ),
        (
            (),
            f"DO $$ BEGIN {CHANGE}; PERFORM pg_sleep(60); END $$",
            f"DO $$BEGIN {CHANGE}; PERFORM pg_sleep(?); END$$",
        ),
        pytest.param(
            ("BEGIN", CHANGE, "SET sql_trace.statement_rate = 0"),
            "SELECT pg_sleep(60)",
            None,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["of several", "around others", "not traced"],
)
def test_it_runs_a_statement(
    filing: tuple[Cluster, Path], before: Sequence[str], statement: str, named: str | None
) -> None:
    found, document, shown = held_up(filing, before, statement)
    assert (found.goes_on, found.idle_ns) == (True, 0)
    assert "idle" not in shown
    assert found.statement == named
    state = document["state"]
    assert (state["state"], state["running"]) == ("active", True)
    assert state["event"] == "Timeout/PgSleep"
    assert 0.4e9 <= state["for_ns"] < 60e9
    # all of it is in the trace, not only what was over by then
    if named:
        assert sum(ns for _, ns in found.lines) > 0.4e9
        assert "it was running this for" in shown
    else:
        assert "it was running a statement that is not traced for" in shown


def test_it_is_idle(filing: tuple[Cluster, Path]) -> None:
    found, document, shown = held_up(filing, ("BEGIN", CHANGE), "SELECT 1")
    assert not found.goes_on
    assert found.statement == "SELECT ?"
    assert document["state"]["state"] == "idle in transaction"
    assert document["state"]["event"] == "Client/ClientRead"
    assert found.idle_ns >= 0.4e9
    assert "then idle for" in shown
    assert "running" not in shown
