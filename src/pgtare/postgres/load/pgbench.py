"""Runs pgbench against a server: until stopped as the load of a trial, or for a fixed time."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.load.connection import client_connection
from pgtare.postgres.load.process import Child
from pgtare.postgres.load.spec import LoadSpec
from pgtare.postgres.load.transactions import TransactionLog

# pgbench has no "until stopped"; this is 31 years.
_FOREVER_S = 1_000_000_000
_PROGRESS = re.compile(
    r"^progress: (?P<s>[\d.]+) s, (?P<tps>[\d.]+) tps, lat (?P<lat>[\d.]+|NaN) ms"
    r"(?:.*?, (?P<failed>\d+) failed)?"
)
_ABORTED = re.compile(r"client \d+ (?:script \d+ )?aborted|Run was aborted", re.IGNORECASE)
_TPS = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)
_FAILED = re.compile(r"^number of failed transactions: (\d+)", re.MULTILINE)
_LATENCY = re.compile(r"^latency average = ([\d.]+) ms", re.MULTILINE)
_TRANSACTIONS = re.compile(r"^number of transactions actually processed: (\d+)", re.MULTILINE)
_READY_S = 30.0


@dataclass(frozen=True)
class Progress:
    """One of pgbench's reports: of the last second, `at_s` after its start."""

    at_s: float
    tps: float
    latency_ms: float
    failed: int = 0


@dataclass(frozen=True)
class RunResult:
    """A run of fixed length: transactions a second, and how many there were.

    latency_ms: their mean, from the scheduled start if the load has a rate.
    """

    tps: float
    transactions: int
    failed: int = 0
    latency_ms: float = float("nan")


def parse_progress(line: str) -> Progress | None:
    """A line of pgbench's --progress, None for any other."""
    found = _PROGRESS.match(line)
    if found is None:
        return None
    return Progress(
        float(found["s"]), float(found["tps"]), float(found["lat"]), int(found["failed"] or 0)
    )


def find_pgbench(binaries: Binaries | None = None) -> Path:
    """pgbench of this installation, or the one on PATH.

    Raises UsageError naming the package if there is none.
    """
    if binaries is not None:
        return binaries.pgbench
    found = shutil.which("pgbench")
    if found is None:
        raise UsageError(
            "there is no pgbench on the PATH: install it (Debian: the package postgresql-NN; RPM:"
            " postgresqlNN-contrib), or name its installation with --pg-config"
        )
    return Path(found)


class PgbenchLoad:
    """pgbench as the load of a trial, for `with`: runs until the block ends.

    Its sessions carry a unique application_name (`pgtare-load-…`), by which the trial finds them.
    Raises UsageError for a pgbench that is not there, MeasurementError with pgbench's own words
    if it fails. Start it from a thread that lives as long as the load.
    """

    def __init__(self, pgbench: Path, dsn: str, spec: LoadSpec) -> None:
        self.pgbench = pgbench
        self.spec = spec
        self.application_name = f"pgtare-load-{secrets.token_hex(6)}"
        self._dsn = dsn
        self._child: Child | None = None
        self._news = threading.Condition()
        self._progress: list[Progress] = []
        self._aborted = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def progress(self) -> list[Progress]:
        """pgbench's reports so far, one a second."""
        with self._news:
            return list(self._progress)

    @property
    def pid(self) -> int | None:
        """pgbench's process id, None before the start and after the end."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start pgbench and return at once; `wait_ready` waits for its sessions."""
        if self._child is not None:
            raise RuntimeError("the load has already been started")
        self._progress, self._aborted = [], False
        self._child = _spawn(
            self.pgbench,
            self._dsn,
            self.application_name,
            [*self.spec.arguments(), "-P", "1", "-T", str(_FOREVER_S)],
            self._on_line,
        )

    def wait_ready(self, timeout_s: float = _READY_S) -> None:
        """Wait until transactions are being done (pgbench's first report, after a second or more).

        Raises MeasurementError if pgbench fails or reports none in `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.check()
            with self._news:
                if any(report.tps > 0 for report in self._progress):
                    return
                self._news.wait(0.05)
            if time.monotonic() > deadline:
                raise MeasurementError(
                    f"pgbench has done no transaction in {timeout_s:g} s: are the load's"
                    " transactions longer than that, or do they wait for a lock?"
                )

    def check(self) -> None:
        """Make sure that the load runs with all of its clients.

        Raises MeasurementError, with what pgbench said, if it has ended or a client gave up.
        """
        if self._child is None:
            raise MeasurementError("the load is not running")
        status = self._child.status
        if status is not None:
            self._child.wait()
            raise MeasurementError(failure(self._child, status))
        if self._aborted:
            raise MeasurementError(failure(self._child, None))

    def stop(self) -> None:
        """End pgbench; does nothing if it has ended. Never raises for what pgbench did."""
        child = self._child
        if child is not None:
            try:
                child.stop()
            finally:
                self._child = None

    def describe(self) -> dict[str, Any]:
        """For the record of a trial; holds no password."""
        reports = self.progress
        tps = [r.tps for r in reports]
        return {
            **self.spec.describe(),
            "pgbench": version(self.pgbench),
            "application_name": self.application_name,
            "median_tps": statistics.median(tps) if tps else None,
            "failed": sum(r.failed for r in reports),
        }

    def _on_line(self, line: str) -> None:
        report = parse_progress(line)
        with self._news:
            if report is not None:
                self._progress.append(report)
            elif _ABORTED.search(line):
                self._aborted = True
            self._news.notify_all()


def run(
    pgbench: Path,
    dsn: str,
    spec: LoadSpec,
    seconds: int,
    *,
    log: TransactionLog | None = None,
    halfway: Callable[[], None] | None = None,
) -> RunResult:
    """Run pgbench for whole seconds and return its rate.

    log: where single transactions are to be written. halfway: called once while it runs.
    Raises UsageError and MeasurementError as PgbenchLoad does.
    """
    if seconds < 1:
        raise UsageError("a run of pgbench takes at least one second")
    child = _spawn(
        pgbench,
        dsn,
        f"pgtare-load-{secrets.token_hex(6)}",
        [*spec.arguments(), *(log.arguments() if log else ()), "-T", str(seconds)],
    )
    try:
        if halfway is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds / 2)
            if child.status is None:
                halfway()
        status = child.wait(seconds + _READY_S)
    except subprocess.TimeoutExpired as ex:
        raise MeasurementError(
            f"pgbench did not end {_READY_S:g} s after its {seconds} s were over: does a"
            " transaction wait for a lock?"
        ) from ex
    finally:
        child.stop()
    output = "\n".join(child.stdout)
    tps, transactions = _TPS.search(output), _TRANSACTIONS.search(output)
    if status != 0 or tps is None or transactions is None:
        raise MeasurementError(failure(child, status))
    failed, latency = _FAILED.search(output), _LATENCY.search(output)
    return RunResult(
        tps=float(tps[1]),
        transactions=int(transactions[1]),
        failed=int(failed[1]) if failed else 0,
        latency_ms=float(latency[1]) if latency else float("nan"),
    )


def create_tables(pgbench: Path, dsn: str, scale: int) -> None:
    """pgbench -i. It drops tables named pgbench_*: only for a database that is ours.

    Raises UsageError and MeasurementError as PgbenchLoad does.
    """
    child = _spawn(pgbench, dsn, "pgtare-init", ["-i", "-q", "-s", str(scale)])
    try:
        status = child.wait()
    finally:
        child.stop()
    if status != 0:
        raise MeasurementError(failure(child, status))


def failure(child: Child, status: int | None) -> str:
    """One sentence on why pgbench failed, in its own words. status: None if it still runs."""
    said = [line.strip() for line in child.stderr if parse_progress(line) is None and line.strip()]
    wrong = [n for n, line in enumerate(said) if "error:" in line or _ABORTED.search(line)]
    # From the first error on: what follows is mostly its consequence.
    errors = said[wrong[0] :][:4] if wrong else said[-3:]
    text = "; ".join(re.sub(r"^pgbench: (?:error|fatal): ", "", line) for line in errors)
    if status is None:
        how = "gave up a client"
    elif status < 0:
        how = f"was ended by signal {-status}"
    else:
        how = f"ended with status {status}" if status else "ended by itself"
    hint = ""
    if re.search(r'relation "pgbench_\w+" does not exist', text):
        hint = " (the database has no pgbench tables: make them with pgbench -i)"
    elif re.search(r'relation "[^"]+" does not exist', text):
        hint = " (a server of pgtare's own holds only pgbench's tables; --dsn takes one of yours)"
    return f"pgbench {how}: {text or 'it said nothing'}{hint}"


def version(pgbench: Path) -> str:
    """What pgbench --version prints, or an empty string if it does not run."""
    try:
        done = subprocess.run([pgbench, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _spawn(
    pgbench: Path,
    dsn: str,
    application_name: str,
    arguments: list[str],
    on_line: Callable[[str], None] | None = None,
) -> Child:
    connection, env = client_connection(dsn, application_name)
    try:
        return Child([os.fspath(pgbench), *arguments, connection], env, on_line)
    except FileNotFoundError as ex:
        raise UsageError(
            f"there is no pgbench at {pgbench}: install it (Debian: the package postgresql-NN; RPM:"
            " postgresqlNN-contrib)"
        ) from ex
    except OSError as ex:
        raise UsageError(f"cannot run {pgbench}: {ex.strerror}") from ex
