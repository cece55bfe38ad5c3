"""Every command that takes --dsn, through a pooler: what it leaves in the pooled sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
from psycopg.conninfo import make_conninfo

from pgtare import cli
from pgtare.cli import commands
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import failed, in_process, read, start_pgtare
from tests.loads import traffic
from tests.pgbouncer import PGBOUNCER, pooler
from tests.servers import SLOWLY_ON_15, with_everything
from tests.sessions import eventually, one, session

pytestmark = [
    pytest.mark.server,
    pytest.mark.pooler,
    pytest.mark.timeout(400),
    pytest.mark.skipif(PGBOUNCER is None, reason="needs pgbouncer (apt-get install pgbouncer)"),
]

#: Exit statuses of the doctor: nothing, a warning, something critical.
SEEN = (0, 10, 11)

#: How each command is run; {new}: a path where nothing is, {pg_config}: of the server.
COMMANDS: dict[str, list[str]] = {
    "weigh": ["track_io_timing", "--duration", "2"],
    "instruments": [],
    "doctor": ["--interval", "1s"],
    "status": [],
    "stop": [],
    "waits top": ["--interval", "0.3s"],
    "waits histogram": ["ClientRead"],
    "waits sessions": [],
    "waits statements": [],
    "waits snapshot": ["{new}"],
    "flame on": ["--duration", "0.5s"],
    "flame off": ["--duration", "0.5s"],
    "flame wake": ["--duration", "0.5s"],
    "trace record": ["{new}", "--duration", "1s", "--reserve", "0"],
    "trace grab": ["{new}", "--reserve", "0"],
    "trace kept": [],
    "trace status": [],
    "trace stop": [],
    "agent": ["--spool", "{new}", "--duration", "3s"],
    "agent check": [],
    "live": ["--listen", "127.0.0.1:0", "--duration", "3s"],
    "module list": [],
    "support": [],
    "module uninstall": ["--pg-config", "{pg_config}"],
    "uninstall": [],
}
#: Commands that need one session of the server throughout.
ONE_SESSION = {"weigh", "trace record", "agent", "agent check", "live"}
#: Commands that end with another status here whoever serves them.
STATUS = {
    "trace grab": (0, 1),  # in session mode a recording before it has left rings
    "module uninstall": 2,
    "doctor": SEEN,
    "flame off": (0, 2),  # the kernel's events may not be there
    "flame wake": (0, 2),
}


def commands_with_dsn() -> set[str]:
    """As the command line itself lists them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.app, "registered_commands", [])
        patch.setattr(cli.app, "registered_groups", [])
        commands.load_all(cli.app)
        return set(_with_dsn(typer.main.get_command(cli.app), ()))


def _with_dsn(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    for name, below in getattr(command, "commands", {}).items():
        yield from _with_dsn(below, (*path, name))
    if any("--dsn" in parameter.opts for parameter in command.params):
        yield " ".join(path)


def test_no_command_is_forgotten() -> None:
    assert set(COMMANDS) == commands_with_dsn()


@pytest.fixture(scope="module", params=SLOWLY_ON_15)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, Binaries]]:
    """A server with all modules, which its users' sessions reach through a pool."""
    binaries: Binaries = request.getfixturevalue(request.param)
    settings = {"wait_event_timing.capture": "stats", "compute_query_id": True}
    with with_everything(binaries, settings) as cluster:
        yield cluster, binaries


def run(name: str, dsn: str, binaries: Binaries, folder: Path) -> Any:
    words = [
        word.format(new=folder / name.replace(" ", "-"), pg_config=binaries.pg_config)
        for word in COMMANDS[name]
    ]
    return in_process(*name.split(), *words, "--dsn", dsn)


def check_ended(name: str, done: Any) -> None:
    wanted: Any = STATUS.get(name, 0)
    statuses = wanted if isinstance(wanted, tuple) else (wanted,)
    assert done.returncode in statuses, (name, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("mode", ["transaction", pytest.param("session", marks=pytest.mark.slow)])
def test_nothing_is_left_in_pooled_sessions(
    served: tuple[Cluster, Binaries], mode: Any, tmp_path: Path
) -> None:
    cluster, binaries = served
    with (
        pooler(cluster, mode) as pool,
        traffic(cluster.dsn(), query="SELECT pg_sleep(0.01)", application_name="shop"),
    ):
        pool.held()  # from then on the name of the application is one that a session has set
        before = pool.held()
        for name in COMMANDS:
            done = run(name, pool.dsn, binaries, tmp_path)
            assert pool.held() == before, name
            if mode == "transaction" and name in ONE_SESSION:
                message = failed(done, 2)
                assert message.count("\n") == 1, message
                assert "pooler" in message
                assert "session mode" in message
            else:
                check_ended(name, done)


def test_waits_alone_are_recorded_through_a_pool(
    served: tuple[Cluster, Binaries], tmp_path: Path
) -> None:
    """As much as a recording without a pool; every session is given back."""
    cluster, _ = served
    with (
        pooler(cluster, "transaction") as pool,
        traffic(cluster.dsn(), query="SELECT pg_sleep(0.01)", application_name="shop"),
    ):
        pool.held()
        before = pool.held()
        words = ["--waits", "--duration", "3s", "--reserve", "0", "--dsn", pool.dsn]
        done = in_process("trace", "record", tmp_path / "r", *words)
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert pool.held() == before
        waits = sum(len(of.start) for of in load(tmp_path / "r").waits.values())
        assert waits > 10  # few where the machine is busy, and none of a lost session
        with session(cluster) as connection:
            traced = "SELECT count(*) FROM wait_event_timing_sessions() WHERE capture = 'trace'"
            eventually(lambda: one(connection, traced) == 0)


@pytest.mark.slow
def test_statement_mode_is_reported_in_one_sentence(
    served: tuple[Cluster, Binaries], tmp_path: Path
) -> None:
    cluster, binaries = served
    with pooler(cluster, "statement") as pool:
        for name in COMMANDS:
            if name == "module uninstall" and binaries.origin != "wheel":
                continue  # it asks no server where there is nothing to remove
            message = failed(run(name, pool.dsn, binaries, tmp_path), 2)
            assert message.count("\n") == 1, (name, message)
            assert "statement mode" in message, (name, message)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_one_session_is_distinguished_from_many_under_load(
    served: tuple[Cluster, Binaries], tmp_path: Path, servers: int
) -> None:
    """However many sessions of the pool the application keeps busy meanwhile."""
    cluster, binaries = served
    with pooler(cluster, "transaction") as pool:
        with traffic(pool.dsn, servers - 1, "SELECT pg_sleep(0.001)"):
            message = failed(run("weigh", pool.dsn, binaries, tmp_path), 2)
        assert "transaction" in message


def test_what_is_weighed_is_the_database_behind_the_pools_name_for_it(
    served: tuple[Cluster, Binaries], tmp_path: Path
) -> None:
    """The pool's name may be that of another database, whose sessions nobody asked for."""
    cluster, _ = served
    with pooler(cluster, "session") as pool, traffic(cluster.dsn()):
        dsn = make_conninfo(pool.dsn, dbname="shop")
        to = ["--dsn", dsn, "--output", tmp_path / "w.json"]
        done = in_process("weigh", "track_io_timing", "--duration", "2", *to)
    assert done.returncode == 0, done.stderr
    assert "weighing on database postgres" in done.stderr
    assert read(tmp_path / "w.json")["server"]["database"] == "postgres"


#: What the search path of a database's owner puts in front of PostgreSQL's own.
TRAPS = """
CREATE SCHEMA trap;
CREATE FUNCTION trap.sprung() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'trap'; END$$;
CREATE FUNCTION trap.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT trap.sprung()';
CREATE FUNCTION trap.set_config(text, text, boolean) RETURNS boolean
    LANGUAGE sql AS 'SELECT trap.sprung()';
CREATE FUNCTION trap.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT trap.sprung()';
CREATE OPERATOR trap.= (FUNCTION = trap.same, LEFTARG = text, RIGHTARG = text);
ALTER DATABASE postgres SET search_path = trap, pg_catalog;
"""


def test_nothing_of_the_databases_owner_runs_with_our_rights(
    served: tuple[Cluster, Binaries],
) -> None:
    """A pooled session keeps its search path: it is the application's next."""
    cluster, _ = served
    with session(cluster) as owner:
        owner.execute(TRAPS.encode())
        try:
            with pooler(cluster, "session") as pool:
                done = in_process("weigh", "track_io_timing", "--dry-run", "--dsn", pool.dsn)
        finally:
            owner.execute("ALTER DATABASE postgres RESET search_path")
            owner.execute("DROP SCHEMA trap CASCADE")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_paused_pool_is_waited_for_and_said_to_be(served: tuple[Cluster, Binaries]) -> None:
    cluster, _ = served
    with pooler(cluster, "transaction") as pool:
        admin = make_conninfo(pool.dsn, dbname="pgbouncer")
        with psycopg.connect(admin, autocommit=True) as console:
            console.pgconn.exec_(b"PAUSE")
            process = start_pgtare("status", "--dsn", pool.dsn)
            assert process.stderr
            said = process.stderr.readline()
            console.pgconn.exec_(b"RESUME")
        stdout, stderr = process.communicate(timeout=30)
    assert said.startswith("pgtare: connected, but nothing answers yet: a pooler keeps sessions")
    assert (process.returncode, stderr) == (0, "")
    assert "trial" in stdout
