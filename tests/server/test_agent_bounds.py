"""An agent among servers that answer without end: a gap, bounded memory, and others go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pgtare.keeping.agent import bounded_connection, queries, server_session, server_watch
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.postgres.cluster import Cluster
from tests.agent_rows import Watching, load, look, new_looks, rows_of
from tests.hostile_server import HostileServer
from tests.sessions import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

# what the log and the gap give as the reason
LONG, SLOW, MANY = "is longer than 8 MiB", "took longer than 1.5 s", "has too many results"


@pytest.fixture
def most_memory() -> Iterator[list[int]]:
    """How much this process has grown at most, in bytes."""
    process, ended = psutil.Process(), threading.Event()
    before = process.memory_info().rss
    most = [0]

    def watch() -> None:
        while not ended.wait(0.01):
            most[0] = max(most[0], process.memory_info().rss - before)

    thread = threading.Thread(target=watch)
    thread.start()
    yield most
    ended.set()
    thread.join()


@pytest.mark.parametrize(
    ("flood", "login", "unix", "why"),
    [
        ("results", False, False, [MANY]),
        ("trickle", False, False, [SLOW]),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                ("large row", False, True, [LONG]),
                ("notices", True, True, [LONG, SLOW]),
                ("large row", False, False, [LONG]),
                ("rows", False, True, [LONG]),
                ("notices", False, False, [LONG, SLOW]),
                ("notifications", False, False, [LONG]),
                ("parameters", True, False, [LONG, SLOW]),
                ("trickle", True, True, [SLOW]),
            )
        ),
    ],
)
@pytest.mark.slow
def test_an_answer_without_end_is_a_gap(
    waits18: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    most_memory: list[int],
    flood: str,
    login: bool,
    unix: bool,
    why: list[str],
) -> None:
    monkeypatch.setattr(bounded_connection, "ANSWER_S", 1.5)
    directory = tmp_path if unix else None
    with (
        HostileServer(flood, login=login, directory=directory) as hostile,
        Watching(hostile.dsn) as bad,
        Watching(waits18.dsn()) as good,
    ):
        eventually(lambda: hostile.floods >= 2 and bad.found("gaps") and good.found("activity"))
    gaps = rows_of(bad.batches, "gaps")
    assert gaps[0]["kind"] == "lost"
    # on a busy machine a reading may come late; it covers that time, and nothing is lost
    assert {gap["kind"] for gap in rows_of(good.batches, "gaps")} <= {"absence"}
    assert most_memory[0] < 100 << 20
    lines = capsys.readouterr().err.splitlines()
    logged = [line for line in lines if "level=error" in line]
    assert 1 <= len(logged) <= len(why)  # each reason once
    assert any(each in gaps[0]["detail"] and each in logged[0] for each in why)


@pytest.mark.slow
def test_a_look_with_too_long_an_answer_is_left_out_and_the_others_go_on(
    waits18: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Statements, as with a table of more than 100,000; and again once their answer is shorter."""
    monkeypatch.setattr(server_watch, "_FIRST_LEFT_OUT_S", 2.0)
    with monkeypatch.context() as patch, Watching(waits18.dsn()) as watching:
        patch.setitem(server_session._MOST_BYTES, queries.STATEMENTS, 1000)
        eventually(lambda: gaps_of(watching) >= 2)
        watching.wait_for_reading(2)
        assert {"waits", "sessions"} <= sources(watching)
        assert "statements" not in sources(watching)
        patch.undo()
        eventually(lambda: "statements" in sources(watching))
        ended = gaps_of(watching)
        watching.wait_for_reading(3)
        assert gaps_of(watching) == ended
    assert capsys.readouterr().err.count("event=beyond_bounds") == 1


def sources(watching: Watching) -> set[str]:
    return {row["source"] for row in rows_of(watching.batches, "ticks")}


def gaps_of(watching: Watching) -> int:
    found = [row for row in rows_of(watching.batches, "gaps") if row["kind"] == "lost"]
    words = "statements are left out for a while: an answer is longer than 1000 bytes"
    assert all(words in row["detail"] for row in found), found
    return len(found)


@pytest.mark.slow
def test_names_of_roles_are_read_however_many_roles_there_are(
    waits18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = new_looks()
    with waits18.connect() as busy, ServerSession(waits18.dsn()) as session:
        user = busy.info.user
        ((roles,),) = busy.execute("SELECT count(*) FROM pg_roles").fetchall()
        monkeypatch.setattr(bounded_connection, "MOST_ROWS", roles - 1)
        look(looks, session, minute=True)
        load(busy)
        found = look(looks, session, minute=True)
    names = {row["role"] for row in rows_of([found], "statements") if row["kind"] == "statement"}
    assert user in names
