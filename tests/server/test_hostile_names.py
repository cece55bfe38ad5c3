"""Names and texts that a server's users chose reach the terminal without what would steer it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pgtare.kit.terminal_text import plain
from pgtare.observing.trace.analysis.merge import WAYS
from pgtare.observing.trace.analysis.profile import GROUPINGS
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process
from tests.module_sources import write_waiter
from tests.servers import tracing
from tests.sessions import Connection, session
from tests.trace_recorder import recording, wait_until_traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Turns red what follows, begins another line, and turns it red again by a single character.
HOSTILE = "ev\x1b[31m\nil\x9b31m"
TAME = plain(HOSTILE)
STEERS = "\x1b\x9b"


@dataclass(frozen=True)
class Place:
    """A server with a role and a database of that name, a session of them, and its trace."""

    cluster: Cluster
    app: Connection
    recorded: Path

    def names_events(self) -> bool:
        """Modules give wait events names of their own."""
        return self.cluster.binaries.major >= 17

    def work(self) -> None:
        """Row sources of a table and an index, a statement, an error and a wait of that name."""
        for _ in range(3):
            self.app.execute(named("SELECT a AS {name} FROM {name} WHERE a = 1 AND {text} <> ''"))
        with pytest.raises(psycopg.errors.UndefinedColumn):
            self.app.execute(named("SELECT {name}"))
        if self.names_events():
            self.app.execute(named("SELECT wait_in_named({text})"))


def named(statement: str) -> bytes:
    """A statement with the name at {name}, as a text at {text}, with more at {other}."""
    composed = sql.SQL(statement).format(  # type: ignore[arg-type]
        name=sql.Identifier(HOSTILE), other=sql.Identifier(HOSTILE + "s"), text=sql.Literal(HOSTILE)
    )
    return composed.as_bytes(None)


@pytest.fixture(scope="module")
def place(each_server: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    source = write_waiter(tmp_path_factory.mktemp("waiter"))
    library = build_cached(each_server, "waiter", source).library
    recorded = tmp_path_factory.mktemp("hostile") / "rec"
    settings = {"wait_event_timing.capture": "stats"}
    with tracing(each_server, settings, ["pg_stat_statements"]) as cluster:
        whose = {"dbname": HOSTILE, "user": HOSTILE, "application_name": HOSTILE}
        with session(cluster) as admin:
            admin.execute("CREATE EXTENSION pg_stat_statements")
            admin.execute(named("CREATE ROLE {name} LOGIN SUPERUSER"))
            admin.execute(named("CREATE DATABASE {name}"))
            with session(cluster, **whose) as app:
                app.execute(
                    "CREATE FUNCTION wait_in_named(cstring) RETURNS void LANGUAGE c "
                    f"AS '{library}'".encode()
                )
                app.execute(named("CREATE TABLE {name} AS SELECT generate_series(1, 1000) AS a"))
                app.execute(named("CREATE INDEX {other} ON {name} (a)"))
                app.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
                app.execute("SET sql_trace.rowsource_sampling = 1")
                found = Place(cluster, app, recorded)
                with recording(cluster, recorded, "--role", HOSTILE):
                    wait_until_traced(admin, app)
                    found.work()
                yield found


def printed(*arguments: str | Path) -> str:
    """What a command prints; nothing of it steers the terminal."""
    done = in_process(*arguments)
    output = done.stdout + done.stderr
    assert done.returncode in (0, 10, 11), output  # the last two: of doctor's findings
    assert not set(output) & set(STEERS), ascii(output)
    return output


@pytest.mark.parametrize("by", GROUPINGS)
def test_profiles(place: Place, by: str) -> None:
    output = printed("trace", "profile", place.recorded, "--by", by)
    names = by in ("statement", "node", "relation", "session")
    assert (TAME in output) == (names or (by == "event" and place.names_events()))


@pytest.mark.parametrize("way", WAYS)
def test_clients(place: Place, way: str) -> None:
    output = printed("trace", "clients", place.recorded, "--merge-by", way)
    assert (TAME in output) == (way == "user")  # the server makes names of applications harmless


def test_statements_with_their_row_sources_and_waits(place: Place) -> None:
    output = printed("trace", "statements", place.recorded)
    (node,) = [line for line in output.splitlines() if line.startswith("Index ")]
    assert f" using {TAME}s on " in node
    assert TAME in node.partition(" on ")[2]
    assert "failed: 42703 × 1" in output
    assert (f"Extension/{TAME}" in output) == place.names_events()


def test_export_and_page_name_their_files_only(place: Place, tmp_path: Path) -> None:
    assert TAME not in printed("trace", "export", place.recorded, tmp_path / "tables")
    assert TAME not in printed("trace", "report", place.recorded)


def test_counters_of_waits(place: Place, tmp_path: Path) -> None:
    dsn = ("--dsn", place.cluster.dsn())
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    printed("waits", "snapshot", before, *dsn)
    place.work()
    place.app.execute(named("SELECT pg_sleep(0.1) AS {name}"))
    printed("waits", "snapshot", after, *dsn)
    assert TAME in printed("waits", "diff", before, after)
    assert f"{TAME}@{TAME}" in printed("waits", "sessions", *dsn)
    assert TAME in printed("waits", "statements", *dsn)
    printed("waits", "top", "--interval", "1s", *dsn)
    if place.names_events():
        assert f"Extension/{TAME}: " in printed("waits", "histogram", HOSTILE, *dsn)


def test_doctor(place: Place) -> None:
    dsn = place.cluster.dsn(dbname=HOSTILE, user=HOSTILE)
    assert TAME in printed("doctor", "--interval", "1s", "--dsn", dsn)
