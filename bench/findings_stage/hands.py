"""What acts on a server: sessions that hold something, statements that wait, loads, settings."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value

#: Names of the sessions that stay from case to case.
BACKGROUND, ADMIN = "background", "stage"
#: All sessions that a case may have left, but not the lookout's and what follows a primary.
_LEFT = f"""
SELECT pg_terminate_backend(a.pid)
FROM pg_stat_activity a LEFT JOIN pg_stat_replication r USING (pid)
WHERE a.backend_type IN ('client backend', 'walsender') AND a.pid <> pg_backend_pid()
    AND a.usename <> 'lookout' AND a.application_name NOT IN ('{BACKGROUND}', '{ADMIN}')
    AND r.state IS DISTINCT FROM 'streaming'
"""
_SOON_S = 15.0


@dataclass
class Stage:
    """A server on which cases are played, one after the other; `clear` ends what one has begun.

    cluster: the server that is looked at. primary: the one that takes changes, the same unless the
    cluster is a standby. pool: connection string of a pooler, if loads go through one. base: the
    settings outside cases.
    """

    cluster: Cluster
    primary: Cluster
    programs: Binaries
    work: Path
    base: Mapping[str, Value]
    pool: str | None = None
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _sessions: list[psycopg.Connection[Any]] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _undo: list[Callable[[], object]] = field(default_factory=list)
    _changed: set[str] = field(default_factory=set)
    _background: subprocess.Popen[bytes] | None = None
    _again: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def on_standby(self) -> bool:
        return self.cluster is not self.primary

    # Statements and sessions

    def sql(self, *statements: str, role: str = "postgres") -> list[tuple[Any, ...]]:
        """Run them on the primary in a session of their own, and return the last one's rows."""
        return _run(self.primary, statements, role)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query as superuser on the server that is looked at."""
        return _run(self.cluster, (query,), "postgres")

    def session(self, application: str, role: str = "office") -> psycopg.Connection[Any]:
        """A session on the server that is looked at."""
        dsn = self.cluster.dsn(user=role, application_name=application)
        made = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
        self._sessions.append(made)
        return made

    def hold(
        self, application: str, *statements: str, role: str = "office"
    ) -> psycopg.Connection[Any]:
        """A session that has run these statements and then stays as it is."""
        made = self.session(application, role)
        for statement in statements:
            made.execute(statement.encode())
        return made

    def start(self, session: psycopg.Connection[Any], *statements: str) -> None:
        """Have a session run statements that may take long; errors are part of the play."""

        def run() -> None:
            for statement in statements:
                session.execute(statement.encode())

        self.call(run)

    def call(self, function: Callable[[], object]) -> None:
        """Call it in a thread, which ends when its sessions are ended."""

        def run() -> None:
            with contextlib.suppress(psycopg.Error, OSError):
                function()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    # Programs

    def load(
        self,
        application: str,
        script: str,
        clients: int,
        *more: str,
        rate: float | None = None,
        role: str = "ferry",
    ) -> None:
        """pgbench with a script; through the pooler, unless it prepares statements or connects."""
        path = self.work / f"{application}-{len(self._processes)}.sql"
        path.write_text(script + "\n")
        pooled = self.pool is not None and not {"-C", "prepared"} & set(more)
        dsn = self._dsn(application, role, pooled)
        paced = () if rate is None else (f"--rate={rate:g}",)
        options = ("-n", "-T", "3600", "-c", str(clients), "-f", str(path), *paced, *more)
        self.program("pgbench", *options, dsn)

    def program(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A program of the installation."""
        process = self._start(name, *arguments)
        self._processes.append(process)
        return process

    def repeat(self, name: str, *arguments: str) -> None:
        """The same, again whenever it has ended."""

        def run() -> None:
            while not over.is_set():
                process = self._start(name, *arguments)
                self._processes.append(process)
                process.wait()

        over = self._over
        self.call(run)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.work / "programs.log", "ab") as log:
            return subprocess.Popen(
                [self.programs.bindir / name, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def _dsn(self, application: str, role: str, pooled: bool) -> str:
        if pooled and self.pool is not None:
            return make_conninfo(self.pool, user=role, application_name=application)
        return self.cluster.dsn(user=role, application_name=application)

    def dsn(self, application: str, role: str = "ferry") -> str:
        return self._dsn(application, role, pooled=False)

    def start_background(self) -> None:
        """A light load that is always there."""
        what = "-S" if self.on_standby else "-N"
        dsn = self._dsn(BACKGROUND, "ferry", self.pool is not None)
        options = ("-n", what, "-T", "36000", "-c", "4", "--rate=40", dsn)
        self._background = self._start("pgbench", *options)

    def stop_background(self) -> None:
        if self._background is not None:
            _end(self._background)
            self._background = None

    def without_background(self) -> None:
        """Until the case is over."""
        self.stop_background()

    # Settings

    def settings(self, values: Mapping[str, Value]) -> None:
        """Change settings of the server that is looked at, until the case is over."""
        self._changed |= set(values)
        self.cluster.configure(values)
        self.cluster.reload()

    def restart(self, values: Mapping[str, Value]) -> None:
        """The same for settings that need a restart, now and when the case is over."""
        self._changed |= set(values)
        self._again = True
        self.stop_background()
        self.cluster.restart(values)
        self.start_background()

    def later(self, undo: Callable[[], object]) -> None:
        """Call it when the case is over."""
        self._undo.append(undo)

    # The end of a case

    def clear(self) -> None:
        """End all that a case has begun, and undo what it has changed."""
        self._over.set()
        for process in self._processes:
            _end(process)
        if self.pool is not None:  # its sessions have the names of whoever used them last
            self.stop_background()
        if self._changed:
            self.cluster.configure({name: self.base.get(name) for name in self._changed})
            if not self._again:
                self.cluster.reload()
        for cluster in {id(one): one for one in (self.cluster, self.primary)}.values():
            _run(cluster, (_LEFT,), "postgres")
        for session in self._sessions:
            with contextlib.suppress(psycopg.Error):
                session.close()
        for thread in self._threads:
            thread.join(_SOON_S)
        for undo in reversed(self._undo):
            undo()
        if self._again:
            self.stop_background()
            self.cluster.restart()
            _run(self.cluster, ("SELECT 1",), "postgres")
        self._processes, self._sessions, self._threads = [], [], []
        self._undo, self._changed, self._again = [], set(), False
        self._over = threading.Event()
        if self._background is None or self._background.poll() is not None:
            self.start_background()

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(Exception):
            self.clear()
        self.stop_background()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _run(cluster: Cluster, statements: tuple[str, ...], role: str) -> list[tuple[Any, ...]]:
    # commits must not wait for a standby that a case has made up
    options = "-c synchronous_commit=local"
    dsn = cluster.dsn(user=role, application_name=ADMIN, options=options)
    rows: list[tuple[Any, ...]] = []
    deadline = time.monotonic() + _SOON_S
    while True:
        try:
            session = psycopg.connect(dsn, autocommit=True)
            break
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    with session:
        for statement in statements:
            done = session.execute(statement.encode())
            rows = done.fetchall() if done.description else []
    return rows
