"""`pgtare trace record` where sessions were traced before, or are traced by others, too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.profile import Scope, profile
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.cluster import Cluster
from tests.sessions import Connection, eventually, executed_s, session
from tests.trace_recorder import (
    call_bytes,
    given_back,
    recording,
    slowly_on_15,
    wait_until_traced,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(180), slowly_on_15]

#: Overwrites a ring of 256 kB.
MANY = b"DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM i + 1; END LOOP; END $$"
SMALL = "-c sql_trace.ring_size=256kB"


@pytest.fixture
def shop(tracer: Cluster) -> Iterator[Connection]:
    """Traced at times."""
    with session(tracer, application_name="shop-web", options=SMALL) as client:
        yield client


@pytest.fixture
def billing(tracer: Cluster) -> Iterator[Connection]:
    with session(tracer, application_name="billing") as client:
        yield client


def pid_of(client: Connection) -> int:
    return client.info.backend_pid


def traced_once(
    tracer: Cluster, onlooker: Connection, client: Connection, path: Path, *statements: str
) -> None:
    """Have a session traced for a moment."""
    with recording(tracer, path, "--pid", str(pid_of(client))):
        wait_until_traced(onlooker, client)
        for statement in statements:
            client.execute(statement.encode())
    eventually(lambda: given_back(onlooker, client), 30)


def pids(path: Path) -> set[int]:
    return {ring.pid for ring in load(path).rings.values()}


def marked(of: str) -> str:
    return f"SELECT 'mark of {of}'"


@pytest.mark.parametrize("armed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_session_recorded_for_the_third_time(
    tracer: Cluster, onlooker: Connection, shop: Connection, tmp_path: Path, armed: bool
) -> None:
    """No report goes back to what was before the recording, nor counts its losses."""
    for i in range(2):
        statements = (MANY.decode(), marked(str(i)), "SELECT pg_sleep(1)")
        traced_once(tracer, onlooker, shop, tmp_path / f"{i}", *statements)
    if armed:
        shop.execute("SET sql_trace.level = 12")
        shop.execute("SELECT 1")
    options = ("--armed",) if armed else ("--pid", str(pid_of(shop)))
    began = time.monotonic()
    with recording(tracer, tmp_path / "rec", *options):
        if armed:
            eventually(lambda: bool((tmp_path / "rec").exists()), 30)
            time.sleep(0.5)
        wait_until_traced(onlooker, shop)
        shop.execute(marked("the last"))
        asleep_s = executed_s(shop, "SELECT pg_sleep(0.3)")
    took = time.monotonic() - began
    shop.execute("RESET sql_trace.level")
    book = ledgers.ledger(load(tmp_path / "rec"))
    (process,) = [p for p in book.processes if p.ring.pid == pid_of(shop)]
    found = profile(book, "event", Scope(frozenset([pid_of(shop)])))
    assert found.total_ns < took * 1e9
    by_event = {line.name: line.total_ns for line in found.lines}
    assert 0.3 * 0.8 <= by_event["Timeout/PgSleep"] / 1e9 <= asleep_s + 0.01
    assert ledgers.NAMES[ledgers.MISSING] not in by_event
    assert not [note for note in book.notes if "overwritten" in note or "missing" in note]
    assert process.end - process.begin < took * 1e9
    assert b"mark of the last" in call_bytes(tmp_path / "rec")
    assert b"mark of 1" not in call_bytes(tmp_path / "rec")


@pytest.mark.slow
def test_texts_of_before_that_are_used_again(
    tracer: Cluster, onlooker: Connection, shop: Connection, tmp_path: Path
) -> None:
    """They are in the ring once; those that nothing names any more stay out of the recording."""
    statements = ("SELECT 'used again' FROM pg_am LIMIT 1", marked("before"))
    traced_once(tracer, onlooker, shop, tmp_path / "first", *statements)
    traced_once(tracer, onlooker, shop, tmp_path / "second", statements[0])
    size = call_bytes(tmp_path / "second")
    assert size.count(statements[0].encode()) == 1
    assert b"mark of" not in size
    (process,) = ledgers.ledger(load(tmp_path / "second")).processes
    texts = [t.text for t in process.stream.texts.values()]
    assert statements[0] in texts
    assert {process.stream.texts[int(c["text"])].text for c in process.calls if c["text"]} <= {
        statements[0],
        "SELECT 1",
    }


@pytest.mark.parametrize(
    "how",
    [
        "all ended",
        *(
            pytest.param(option, marks=pytest.mark.slow)
            for option in ("--application", "--pid", "--armed")
        ),
    ],
)
def test_only_sessions_that_are_asked_for(
    tracer: Cluster, onlooker: Connection, shop: Connection, tmp_path: Path, how: str
) -> None:
    """Neither the ring of a session that was traced before, nor of one that has ended meanwhile."""
    traced_once(tracer, onlooker, shop, tmp_path / "s1", marked("shop"))
    wanted = "SELECT 'wanted' FROM pg_am LIMIT 1"
    with contextlib.ExitStack() as stack:
        passing = stack.enter_context(session(tracer, application_name="passing"))
        traced_once(tracer, onlooker, passing, tmp_path / "s0", marked("passing"))
        asked = stack.enter_context(session(tracer, application_name="billing"))
        own = pid_of(asked)
        value = {"--application": "billing", "--pid": str(pid_of(asked))}.get(how)
        options = [f"{how}={value}"] if value else []
        if how == "--armed":
            asked.execute("SET sql_trace.level = 12")
            options = ["--armed"]
        if how == "all ended":
            options = ["--application", "bill*"]
        with recording(tracer, tmp_path / "b1", *options):
            if how == "--armed":
                eventually(lambda: (tmp_path / "b1").exists(), 30)
                time.sleep(0.3)
            else:
                wait_until_traced(onlooker, asked)
            asked.execute(wanted)
            shop.execute(marked("shop, later"))
            if how == "all ended":
                shop.close()
            passing.execute(marked("passing, later"))
            passing.close()
            time.sleep(0.5)
    size = call_bytes(tmp_path / "b1")
    assert wanted.encode() in size
    assert b"mark of" not in size
    assert pids(tmp_path / "b1") == {own}
