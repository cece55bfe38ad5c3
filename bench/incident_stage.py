"""What happens to the server of `bench.incidents`: five incidents, and what is named of each."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

from pgtare import cli
from pgtare.postgres.binaries import Binaries, from_wheel
from pgtare.postgres.build import build_cached, source_dir
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, PgbenchLoad, Script, find_pgbench
from pgtare.postgres.load.spec import Protocol
from pgtare.postgres.modules import loadable
from pgtare.postgres.os_account import server_account
from pgtare.postgres.settings import Value

#: What a user would set once, for all incidents alike.
SETTINGS: dict[str, Value] = {
    "compute_query_id": True,
    "deadlock_timeout": "200ms",
    "max_connections": 60,
    "pg_stat_statements.max": 100,
    "pg_stat_statements.track": "none",
    "shared_buffers": "64MB",
    "sql_trace.keep_interval": "1s",
    "sql_trace.keep_most": 32,
    "sql_trace.recorder": True,
    "sql_trace.recorder_memory": "16MB",
}
TRIGGERS = {
    "keep_slower_than": "200ms",
    "keep_lock_wait": "250ms",
    "keep_sqlstates": "40P01",
}
#: Lines of a profile that are no wait.
_OTHERS = {
    "CPU outside waits",
    "waiting for a processor",
    "client",
    "unaccounted",
    "pgtare itself (estimated)",
    "not recorded",
}
_TABLES = """
CREATE ROLE shop LOGIN; CREATE ROLE janitor LOGIN;
CREATE TABLE stock AS SELECT n AS item, 0 AS left_over FROM generate_series(1, 1000) n;
CREATE INDEX ON stock (item);
CREATE TABLE wide ({columns});
CREATE SEQUENCE pipelines CACHE 1;
GRANT ALL ON stock, wide, pipelines TO shop, janitor;
CREATE EXTENSION pg_stat_statements;
"""
_COLUMNS = 300
#: How long a busy machine may take for what an idle one does in a second.
_PATIENCE_S = 120.0
#: Statements of one pipeline: what a client waits for once.
_PIPELINE = 100
#: Bytes of a report's text: 200 of them are written anew in some 300 ms.
_TEXT = 1_200_000
_SALE = (
    "\\set item random(101, 1000)\nUPDATE stock SET left_over = left_over + 1 WHERE item = :item;\n"
)
_LOOK = "\\set item random(101, 1000)\nSELECT left_over FROM stock WHERE item = :item;\n"


@dataclass(frozen=True)
class Named:
    """Of one incident: what was named, by `kept` and by `grab`, and what of it was wrong.

    blocker: None, if there was none to name.
    """

    incident: str
    cause: bool
    victim: bool
    blocker: bool | None
    grabbed: bool
    seen: str = ""

    @property
    def all(self) -> bool:
        return self.cause and self.victim and self.blocker is not False and self.grabbed


@dataclass(frozen=True)
class Stage:
    """A server on which incidents happen, and a place for files."""

    cluster: Cluster
    work: Path
    one_in: int

    @contextlib.contextmanager
    def load(
        self,
        script: str,
        clients: int,
        rate: float | None = None,
        protocol: Protocol = "simple",
    ) -> Iterator[PgbenchLoad]:
        """Sessions of role shop that run a script, of the newest pgbench that there is."""
        path = self.work / "load.sql"
        path.write_text(script)
        spec = LoadSpec(scripts=(Script(path),), clients=clients, rate=rate, protocol=protocol)
        with PgbenchLoad(
            find_pgbench(from_wheel()), self.cluster.dsn(user="shop"), spec
        ) as running:
            running.wait_ready(_PATIENCE_S)
            yield running

    @contextlib.contextmanager
    def session(self, role: str, **parameters: str) -> Iterator[psycopg.Connection[Any]]:
        """A session of a person or program."""
        with psycopg.connect(
            self.cluster.dsn(user=role, **parameters), autocommit=True, prepare_threshold=None
        ) as connection:
            yield connection

    def kept_since(self, since: datetime) -> list[dict[str, Any]]:
        """What has been kept since then."""
        found = self.pgtare("trace", "kept", "--dsn", self.cluster.dsn())["traces"]
        return [one for one in found if datetime.fromisoformat(one["at"]) >= since]

    def shown(self, number: int) -> dict[str, Any]:
        """What `kept` shows of one."""
        return self.pgtare("trace", "kept", str(number), "--dsn", self.cluster.dsn())

    def grab(self) -> Path:
        """What all rings hold."""
        path = self.work / "grabbed"
        path.unlink(missing_ok=True)
        where = ("--dsn", self.cluster.dsn(), "--reserve", "0")
        self._run("trace", "grab", str(path), *where)
        return path

    def waits(self, trace: Path, *options: str) -> dict[str, float]:
        """The waits of a profile by their time in ns, the longest first, without the client's."""
        found = self.pgtare("trace", "profile", str(trace), "--busy", *options)
        return {
            line["name"]: line["total_ns"]
            for line in found["lines"]
            if line["name"] not in _OTHERS and not line["name"].startswith("Client/")
        }

    def pgtare(self, *arguments: str) -> dict[str, Any]:
        """What a command prints as JSON."""
        found: dict[str, Any] = json.loads(self._run(*arguments, "--json"))
        return found

    def _run(self, *arguments: str) -> str:
        """What a command prints; in this process, as one of its own takes a second more."""
        printed, before = io.StringIO(), sys.argv
        # a process registers its commands once; here it would be once for each call
        registered = cli.app.registered_commands, cli.app.registered_groups
        cli.app.registered_commands, cli.app.registered_groups = [], []
        sys.argv = ["pgtare", *arguments]
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                cli.main()
        except SystemExit as ended:
            if ended.code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
                raise KeyboardInterrupt from ended
            if ended.code:
                raise RuntimeError(
                    f"pgtare {' '.join(arguments)} ended with {ended.code}"
                ) from ended
        finally:
            sys.argv = before
            cli.app.registered_commands, cli.app.registered_groups = registered
        return printed.getvalue()

    def now(self) -> datetime:
        with self.cluster.connect() as connection:
            ((found,),) = connection.execute("SELECT clock_timestamp()").fetchall()
        return datetime.fromisoformat(str(found))

    def wait_for(self, what: Callable[[list[dict[str, Any]]], Any], since: datetime) -> Any:
        """What it finds among the kept traces, as soon as it finds anything; else None."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if found := what(self.kept_since(since)):
                return found
            time.sleep(0.3)
        return None

    def forget(self) -> None:
        """What was kept, and the rings of sessions that have ended."""
        with self.cluster.connect() as connection:
            connection.execute(
                "SET search_path = public, sql_trace; "
                "SELECT sql_trace_kept_forget(id) FROM sql_trace_kept(); "
                "SELECT sql_trace_reset()"
            )
        for path in (self.work / "kept").glob("kept-*"):
            path.unlink()


def main_wait(session: dict[str, Any]) -> str:
    """The component that took most of the time of a session's last request."""
    return str(session["time"][0]["name"]) if session["time"] else "nothing"


def of(session: dict[str, Any], words: str) -> bool:
    return words.lower() in str(session["statement"]).lower()


def lock_queue(stage: Stage) -> Named:
    """Somebody locks a table, and does nothing for two seconds."""
    since = stage.now()
    with (
        stage.load(_SALE, 4, rate=40) as load,
        stage.session("janitor", application_name="clean-up") as janitor,
    ):
        janitor.execute("BEGIN")
        janitor.execute("LOCK TABLE stock IN SHARE ROW EXCLUSIVE MODE")
        time.sleep(2)
        janitor.execute("COMMIT")
        holder = janitor.info.backend_pid
        waited = stage.wait_for(
            lambda all_: [k for k in all_ if k["cause"] == "lock_wait" and k["incident"]], since
        )
        trace = stage.grab()
        name = load.application_name
    if not waited:
        return Named("lock queue", False, False, False, False, str(stage.kept_since(since)))
    found = stage.shown(waited[0]["id"])
    mine, others = found["session"], found["others"]
    blockers = [o for o in others if o["cause"] == "blocker"]
    statements = [
        one["text"] for one in stage.pgtare("trace", "statements", str(trace))["statements"]
    ]
    return Named(
        "lock queue",
        main_wait(mine) == "Lock/relation",
        mine["application"] == name and of(mine, "update stock"),
        [b["pid"] for b in blockers] == [holder]
        and of(blockers[0], "lock table stock")
        and blockers[0]["transaction_ns"] is not None,
        next(iter(stage.waits(trace)), "") == "Lock/relation"
        and any("lock table stock" in text.lower() for text in statements),
        f"{found}\n{stage.waits(trace)}\n{statements}",
    )


def deadlock(stage: Stage) -> Named:
    """Two sessions update two rows, each in its own order."""
    since = stage.now()
    outcome: dict[int, bool] = {}

    def cross(client: psycopg.Connection[Any], item: int) -> None:
        try:
            client.execute(f"UPDATE stock SET left_over = 0 WHERE item = {item}")
            outcome[client.info.backend_pid] = False
            time.sleep(1)  # it is shown with its last request when the server's worker looks
        except psycopg.errors.DeadlockDetected:
            outcome[client.info.backend_pid] = True
        finally:
            client.execute("ROLLBACK")

    with (
        stage.load(_SALE, 2, rate=40),
        stage.session("shop", application_name="one") as one,
        stage.session("shop", application_name="two") as two,
    ):
        for client, item in ((one, 1), (two, 2)):
            client.execute("BEGIN")
            client.execute(f"UPDATE stock SET left_over = 1 WHERE item = {item}")
        thread = threading.Thread(target=cross, args=(two, 1))
        thread.start()
        cross(one, 2)
        thread.join()
        kept = stage.wait_for(lambda all_: [k for k in all_ if k["cause"] == "sqlstate"], since)
        # the other's trace is kept by the server's worker, as long as its session goes on
        stage.wait_for(lambda all_: [k for k in all_ if k["cause"] == "deadlock"], since)
        trace = stage.grab()
    if not kept:
        return Named("deadlock", False, False, False, False, str(stage.kept_since(since)))
    found = stage.shown(kept[0]["id"])
    mine, others = found["session"], found["others"]
    (victim,) = [pid for pid, failed in outcome.items() if failed]
    (other,) = [pid for pid, failed in outcome.items() if not failed]
    statements = stage.pgtare("trace", "statements", str(trace))["statements"]
    return Named(
        "deadlock",
        mine["detail"] == "40P01" and main_wait(mine) == "Lock/transactionid",
        mine["pid"] == victim and of(mine, "update stock"),
        [o["pid"] for o in others if o["cause"] == "deadlock"] == [other]
        and of(others[0], "update stock"),
        "Lock/transactionid" in stage.waits(trace, "--pid", str(victim))
        and any(one["errors"].get("40P01") for one in statements),
        f"{found}\n{stage.waits(trace)}\n{[one['errors'] for one in statements]}",
    )


def eviction_storm(stage: Stage) -> Named:
    """Reports with long texts, of which pg_stat_statements has room for few."""
    since = stage.now()
    text = (
        f"\\set a random(1, {_COLUMNS})\n\\set b random(1, {_COLUMNS})\n"
        f"SELECT c:a, c:b{' ' * _TEXT} FROM wide;\n"
    )
    path = stage.work / "reports.sql"
    path.write_text(text)
    with stage.cluster.connect() as admin:
        admin.execute("ALTER SYSTEM SET pg_stat_statements.track = 'top'")
        admin.execute("SELECT pg_reload_conf()")
    try:
        with stage.load(_LOOK, 2, rate=200) as load:
            spec = LoadSpec(scripts=(Script(path),), clients=4)
            reports = stage.cluster.dsn(user="janitor")
            with PgbenchLoad(find_pgbench(stage.cluster.binaries), reports, spec) as storm:
                storm.wait_ready()
                kept = stage.wait_for(
                    lambda all_: [k for k in all_ if k["application"] == load.application_name],
                    since,
                )
                trace = stage.grab()
            name = load.application_name
    finally:
        with stage.cluster.connect() as admin:
            admin.execute("ALTER SYSTEM RESET pg_stat_statements.track")
            admin.execute("SELECT pg_reload_conf(), pg_stat_statements_reset()")
    if not kept:
        return Named("eviction storm", False, False, None, False, str(stage.kept_since(since)))
    found = stage.shown(max(kept, key=lambda k: float(k["detail"].split()[0]))["id"])
    mine = found["session"]
    return Named(
        "eviction storm",
        main_wait(mine) == "LWLock/pg_stat_statements",
        mine["application"] == name and of(mine, "select left_over"),
        None,
        next(iter(stage.waits(trace)), "") == "LWLock/pg_stat_statements",
        f"{found}\n{stage.waits(trace)}",
    )


def slow_fsync(stage: Stage) -> Named:
    """For a second, the disk takes half a second for each fsync."""
    since = stage.now()
    with stage.load(_SALE, 2, rate=40) as load:
        stage.cluster.configure({"slow_fsync.delay": "600ms"})
        stage.cluster.reload()
        time.sleep(1.5)
        stage.cluster.configure({"slow_fsync.delay": 0})
        stage.cluster.reload()
        kept = stage.wait_for(
            lambda all_: [k for k in all_ if k["application"] == load.application_name], since
        )
        trace = stage.grab()
        name = load.application_name
    if not kept:
        return Named("slow fsync", False, False, None, False, str(stage.kept_since(since)))
    shown = [stage.shown(one["id"])["session"] for one in kept[:4]]
    return Named(
        "slow fsync",
        # who did not flush itself waited for whoever did: another client, or the WAL writer
        {main_wait(one).lower() for one in shown} <= {"io/walsync", "lwlock/walwrite"},
        all(one["application"] == name and of(one, "update stock") for one in shown),
        None,
        # so do all: those that write, and those that wait for them
        {name.lower() for name in list(stage.waits(trace))[:2]}
        == {"io/walsync", "lwlock/walwrite"},
        f"{shown}\n{stage.waits(trace)}",
    )


def one_in_many(stage: Stage) -> Named:
    """One statement in very many is slow: a sequence counts the pipelines of them all."""
    since = stage.now()
    pipelines = -(-stage.one_in // _PIPELINE)
    with stage.cluster.connect() as admin:
        admin.execute("ALTER SEQUENCE pipelines RESTART")
        # on a busy machine many of a million take longer than the others' trigger allows
        admin.execute("ALTER ROLE shop SET sql_trace.keep_slower_than = '3s'")
    script = (
        f"SELECT CASE nextval('pipelines') WHEN {pipelines} THEN 1 ELSE 0 END AS rare \\gset\n"
        "\\if :rare = 1\nSELECT 'rare', pg_sleep(4);\n\\sleep 36000 s\n\\else\n\\startpipeline\n"
        + (_LOOK + "\\syncpipeline\n") * (_PIPELINE - 1)
        + "\\endpipeline\n\\endif\n"
    )
    with stage.load(script, 2, protocol="prepared") as load, stage.cluster.connect() as admin:
        pid = 0
        while not pid:
            time.sleep(0.5)
            load.check()
            # its client does nothing after it, so however late this looks, it is there
            asked = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT ''rare'', pg_sleep%'"
            ).fetchall()
            pid = asked[0][0] if asked else 0
        kept = stage.wait_for(lambda all_: [k for k in all_ if k["pid"] == pid], since)
        trace = stage.grab()
        name = load.application_name
        admin.execute("ALTER ROLE shop RESET sql_trace.keep_slower_than")
    if not kept:
        return Named("one in many", False, False, None, False, str(stage.kept_since(since)))
    mine = stage.shown(max(kept, key=lambda k: float(k["detail"].split()[0]))["id"])["session"]
    return Named(
        "one in many",
        main_wait(mine) == "Timeout/PgSleep",
        mine["application"] == name and mine["pid"] == pid and of(mine, "pg_sleep"),
        None,
        next(iter(stage.waits(trace, "--pid", str(pid))), "") == "Timeout/PgSleep",
        f"{mine}\n{stage.waits(trace)}",
    )


INCIDENTS: tuple[Callable[[Stage], Named], ...] = (
    lock_queue,
    deadlock,
    eviction_storm,
    slow_fsync,
    one_in_many,
)


@contextlib.contextmanager
def stage(binaries: Binaries, one_in: int = 20_000) -> Iterator[Stage]:
    """A server with the recorder on and triggers set."""
    modules = [loadable(binaries, name) for name in ("wait_event_timing", "sql_trace")]
    with tempfile.TemporaryDirectory(prefix="pgtare-incidents-", dir="/var/tmp") as directory:
        work = Path(directory)
        server_account().give(work)
        triggers = {f"sql_trace.{name}": value for name, value in TRIGGERS.items()}
        settings = SETTINGS | triggers | {"sql_trace.keep_directory": str(work / "kept")}
        libraries = [
            slow_disk(binaries, work),
            "pg_stat_statements",
            *(module.library for module in modules),
        ]
        with Cluster(binaries, settings, preload=libraries) as cluster:
            with cluster.connect() as admin:
                columns = ", ".join(f"c{i} int" for i in range(1, _COLUMNS + 1))
                admin.execute(_TABLES.format(columns=columns).encode())
                for module in modules:
                    admin.execute(module.create_sql.encode())
            yield Stage(cluster, work, one_in)


def slow_disk(binaries: Binaries, work: Path) -> str:
    """The library that delays fsync."""
    sources = work / "sources"
    shutil.copytree(source_dir() / "common", sources / "common")
    shutil.copytree(Path(__file__).with_name("slow_fsync"), sources / "slow_fsync")
    return build_cached(binaries, "slow_fsync", sources).library
