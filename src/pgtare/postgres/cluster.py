"""Throwaway servers: a private PostgreSQL that is gone, with all its files, when its block ends."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from pgtare.errors import MeasurementError
from pgtare.postgres import processes, registry, shared_memory, signals
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.os_account import environment, server_account
from pgtare.postgres.programs import start_program
from pgtare.postgres.settings import Value, checked, library_list, render, replace_file

SUPERUSER = "postgres"
SOCKET_PORT = 5432
INITDB_SECONDS = 120.0
START_SECONDS = 60.0
STOP_SECONDS = 30.0
CONNECT_SECONDS = "10"
LOG_TAIL_LINES = 15

# As PostgreSQL comes, fsync and all, since that is what people run; only the log goes to a file
# that we can show. shared_buffers is initdb's usual value, fixed so that runs compare.
DEFAULTS: dict[str, Value] = {
    "shared_buffers": "128MB",
    "logging_collector": False,
    "log_line_prefix": "%m [%p] %q%u@%d ",
}


class Cluster:
    """A server of one's own, for `with`: made, started, and in the end stopped and removed.

    `settings` go into the configuration, `preload` into shared_preload_libraries. The server is
    reached by a Unix socket in a directory which only its account (and root) may enter; with `tcp`
    also on 127.0.0.1, by password. Under root it runs as an unprivileged account.

    If the owner is killed, the next `Cluster` of the same user stops and removes what it left.
    """

    def __init__(
        self,
        binaries: Binaries,
        settings: Mapping[str, Value] | None = None,
        preload: Sequence[str] = (),
        *,
        tcp: bool = False,
        start_seconds: float = START_SECONDS,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.binaries = binaries
        self.start_seconds = start_seconds
        self.stop_seconds = stop_seconds
        self._settings: dict[str, Value] = dict(DEFAULTS)
        if preload:
            self._settings["shared_preload_libraries"] = library_list(preload)
        self._settings |= checked(settings or {})
        self._account = server_account()
        self._password = secrets.token_urlsafe(24) if tcp else None
        self._port = _free_port() if tcp else SOCKET_PORT
        self._home: registry.Home | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._handlers = contextlib.ExitStack()

    # Life

    def __enter__(self) -> Self:
        self._handlers = signals.unwind_at_exit_signals()
        try:
            registry.sweep()
            with signals.deferred():
                self._home = registry.claim(self._account)
            self._initdb()
            self._write_configuration()
            self.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        try:
            with signals.deferred():
                home, self._home = self._home, None
                if home is None:
                    return
                try:
                    self._stop(home, "fast")
                    registry.stop_leftovers(home)
                finally:
                    registry.release(home)
        finally:
            self._handlers.close()

    # What others need to know

    @property
    def directory(self) -> Path:
        """The server's private directory."""
        return self._live_home().path

    @property
    def data_directory(self) -> Path:
        return self._live_home().data

    @property
    def socket_directory(self) -> Path:
        return self._live_home().socket_directory

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self._live_home().log

    @property
    def port(self) -> int:
        return self._port

    @property
    def postmaster_pid(self) -> int:
        """The postmaster's pid; MeasurementError if the server does not run."""
        if self._popen is None or self._popen.poll() is not None:
            raise MeasurementError(f"the server is not running{self._log_tail()}")
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def answers(self) -> bool:
        """Whether it runs and lets somebody in: not while it recovers, nor if it is stuck."""
        try:
            with self.connect():
                return self.running
        except psycopg.OperationalError:
            return False

    @property
    def run_as(self) -> dict[str, Any]:
        """Arguments for `subprocess` that run a client program under the server's account."""
        return {**self._account.run_as, "env": environment()}

    def dsn(self, dbname: str = "postgres", *, tcp: bool = False, **parameters: str) -> str:
        """A connection string for the superuser, by socket or by 127.0.0.1."""
        host = "127.0.0.1" if tcp else str(self.socket_directory)
        if tcp:
            if self._password is None:
                raise MeasurementError("the server does not listen on TCP: use Cluster(tcp=True)")
            parameters = {"password": self._password, **parameters}
        # libpq fills in from the environment what is not said; these would reach another server or
        # change settings unseen.
        for variable, parameter in (("PGHOSTADDR", "hostaddr"), ("PGOPTIONS", "options")):
            if variable in os.environ:
                parameters = {parameter: "", **parameters}
        # A server that is there and does not answer would be waited for without end.
        parameters = {"user": SUPERUSER, "connect_timeout": CONNECT_SECONDS, **parameters}
        return make_conninfo(host=host, port=self._port, dbname=dbname, **parameters)

    def connect(
        self, dbname: str = "postgres", *, autocommit: bool = True
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """A psycopg connection of the superuser by socket."""
        return psycopg.connect(self.dsn(dbname), autocommit=autocommit)

    # Control

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        home = self._live_home()
        if self.running:
            return
        arguments = ["-D", str(home.data), "-c", f"config_file={home.path / 'pgtare.conf'}"]
        with signals.deferred(), open(home.log, "ab", opener=_private) as log:
            self._popen = start_program(self.binaries.postgres, arguments, self._account, log)
        self._wait_until_ready(home, self._popen)

    def stop(self, mode: processes.StopMode = "fast") -> str:
        """Stop the server and return how it ended: as asked, or "immediate" or "killed".

        A server that does not obey in time is stopped harder.
        """
        with signals.deferred():
            return self._stop(self._live_home(), mode)

    def kill(self) -> None:
        """End the server at once, wherever it is stuck; it recovers when it is started again."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.kill()
        processes.kill_leftovers(self.data_directory)

    def restart(self, settings: Mapping[str, Value] | None = None) -> None:
        """Stop and start the server, with changed settings if given."""
        if settings:
            self.configure(settings)
        self.stop()
        self.start()

    def configure(self, settings: Mapping[str, Value]) -> None:
        """Change the configuration file; `reload` or `restart` puts it into force.

        A value of None takes a setting back to its default.
        """
        self._settings |= checked(settings)
        self._write_configuration()

    def reload(self) -> None:
        """Let the server read its configuration again, and wait until new connections see it.

        Sessions already open follow when they next become idle. MeasurementError says which
        settings the server would not take.
        """
        before = self._load_time()
        os.kill(self.postmaster_pid, signal.SIGHUP)
        deadline = time.monotonic() + self.start_seconds
        while self._load_time() == before:
            if time.monotonic() > deadline:
                raise MeasurementError(
                    f"the server did not reload its configuration within "
                    f"{self.start_seconds:.0f} s{self._log_tail()}"
                )
            time.sleep(0.01)
        with self.connect() as connection:
            refused = connection.execute(
                "SELECT name, error FROM pg_file_settings WHERE error IS NOT NULL ORDER BY seqno"
            ).fetchall()
        if refused:
            errors = "; ".join(f"{name}: {error}" for name, error in refused)
            raise MeasurementError(f"the server did not take its new settings ({errors})")

    # Steps

    def _initdb(self) -> None:
        home = self._live_home()
        arguments = [
            *("-D", str(home.data), "-U", SUPERUSER, "-E", "UTF8", "--locale=C.UTF-8"),
            # Our own pg_hba.conf is the one in force.
            *("-A", "trust", "--no-sync", "--no-instructions"),
        ]
        if self._password is not None:
            password_file = home.path / "password"
            replace_file(password_file, self._password + "\n", 0o640, self._group())
            arguments.append(f"--pwfile={password_file}")
        initdb = start_program(
            self.binaries.initdb, arguments, self._account, subprocess.PIPE, home.data
        )
        try:
            output, _ = initdb.communicate(timeout=INITDB_SECONDS)
        except BaseException as ex:
            # The whole session: initdb starts servers of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(initdb.pid, signal.SIGKILL)
            initdb.communicate()
            if isinstance(ex, subprocess.TimeoutExpired):
                raise MeasurementError(
                    f"initdb did not end within {INITDB_SECONDS:.0f} s: is the disk overloaded?"
                ) from ex
            raise
        if initdb.returncode != 0:
            lines = output.decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            raise MeasurementError(
                f"initdb could not make a new server in {home.data}:\n" + "\n".join(lines)
            )
        if self._password is not None:
            (home.path / "password").unlink()

    def _write_configuration(self) -> None:
        home = self._live_home()
        group = self._group()
        hba = "local all all trust\nlocal replication all trust\n"
        if self._password is not None:
            hba += "host all all 127.0.0.1/32 scram-sha-256\n"
        replace_file(home.path / "pg_hba.conf", hba, 0o640, group)
        fixed: dict[str, Value] = {
            "hba_file": str(home.path / "pg_hba.conf"),
            "listen_addresses": "127.0.0.1" if self._password is not None else "",
            "port": self._port,
            "unix_socket_directories": str(home.socket_directory),
            "unix_socket_permissions": "0700",
        }
        # initdb's own file holds what it found out about this machine, such as the time zone.
        text = "include 'data/postgresql.conf'\n" + render(fixed) + render(self._settings)
        replace_file(home.path / "pgtare.conf", text, 0o640, group)

    def _wait_until_ready(self, home: registry.Home, popen: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.start_seconds
        while True:
            if popen.poll() is not None:
                raise MeasurementError(f"the server did not start{self._log_tail()}")
            lines = processes.read_pid_file(home.data)
            # The eighth line is the postmaster's state, as pg_ctl reads it.
            ours = len(lines) >= 8 and lines[0].strip() == str(popen.pid)
            if ours and lines[7].strip() == "ready":
                shared_memory.note(popen.pid, home.data, home.shared_memory)
                return
            if time.monotonic() > deadline:
                tail = self._log_tail()
                self._stop(home, "immediate")
                raise MeasurementError(
                    f"the server did not become ready within {self.start_seconds:.0f} s{tail}"
                )
            time.sleep(0.01)

    def _stop(self, home: registry.Home, mode: processes.StopMode) -> str:
        popen, self._popen = self._popen, None
        if popen is None:
            return mode
        how: str = mode
        # Our own child is not reaped before poll(), so the pid cannot be another process's.
        if popen.poll() is None:
            postmaster = processes.Process.hold(popen.pid)
            if postmaster is not None:
                how = processes.stop_postmaster(postmaster, home.data, mode, self.stop_seconds)
                postmaster.close()
            popen.wait()
        return how

    def _live_home(self) -> registry.Home:
        if self._home is None:
            raise RuntimeError("the cluster lives only inside its with block")
        return self._home

    def _group(self) -> int | None:
        return self._account.gid if self._account.switch else None

    def _load_time(self) -> object:
        with self.connect() as connection:
            row = connection.execute("SELECT pg_conf_load_time()").fetchone()
        return row[0] if row else None

    def _log_tail(self) -> str:
        if self._home is None:
            return ""
        try:
            with open(self._home.log, errors="replace") as log:
                lines = deque(log, maxlen=LOG_TAIL_LINES)
        except FileNotFoundError:
            return ""
        return "; its log ends:\n" + "".join(lines).rstrip() if lines else "; its log is empty"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # the log may hold statements, with their data
