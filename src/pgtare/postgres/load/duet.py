"""Runs the duet driver: one load on several clusters at once, alternating between them."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pgtare.errors import MeasurementError
from pgtare.postgres.load.duet_plan import Length, render_plan
from pgtare.postgres.load.duet_records import HEADER, Records, read_records
from pgtare.postgres.load.process import Child
from pgtare.postgres.load.spec import LoadSpec

Ending = Literal["time", "signal", "failure"]

_PROGRESS = re.compile(r"^progress: (?P<s>[\d.]+) s, (?P<transactions>\d+) transactions$")
_LOOK_S = 0.1
_PATIENCE_S = 30.0
_END_S = 5.0  # for the driver to write what it has


@dataclass(frozen=True)
class DuetRun:
    """A run that began, with all that it recorded.

    ended: by time as planned, by a signal, or by a failure, which `failure` tells in a sentence.
    Only a run that ended by time is a whole one.
    """

    records: Records
    ended: Ending
    failure: str | None

    @property
    def whole(self) -> bool:
        """Whether the run went as planned."""
        return self.ended == "time"


def run_duet(
    driver: Path,
    targets: Sequence[str],
    spec: LoadSpec,
    length: Length,
    output: Path,
    *,
    variables: Mapping[str, int] | None = None,
    on_progress: Callable[[float, int], None] | None = None,
) -> DuetRun:
    """Run a load on all targets at once; its records go to `output`, in place of older ones.

    targets: a connection string for each cluster, by Unix socket. spec: `clients` threads, each
    with one connection to every target, which shares one processor with its backends, so that no
    cluster's backend is nearer to its client than another's; `rate`, if given, is what each target
    gets (open loop: latency counts from the time a transaction was due), else every thread sends as
    soon as it has an answer (closed loop). variables: values for scripts, such as {"scale": 10}.
    on_progress: called once a second with the seconds and transactions so far, from another thread.

    A run that fails half-way is returned with its failure and all that was measured. Raises
    UsageError for what a duet cannot run, MeasurementError if it could not begin.
    """
    name = f"pgtare-load-{secrets.token_hex(6)}"
    output = output.absolute()
    plan = render_plan(targets, spec, length, output, variables or {"scale": 1}, name)
    plan_path = output.with_name(output.name + ".plan")
    try:
        output.unlink(missing_ok=True)  # else a run that never began would return the last one's
        _write_private(plan_path, plan)  # it may hold passwords
        child = Child(
            [os.fspath(driver), os.fspath(plan_path)],
            {**os.environ, "LC_ALL": "C"},
            _progress_reader(on_progress),
        )
        try:
            status = _await(child, length)
        finally:
            child.stop(length.drain_s + _END_S)
    except OSError as ex:
        raise MeasurementError(f"cannot run the duet driver {driver}: {ex.strerror}") from ex
    finally:
        plan_path.unlink(missing_ok=True)
    return _conclude(child, status, output)


def _await(child: Child, length: Length) -> int | None:
    """Wait for the driver's end.

    By looking rather than by waiting: a wait that Ctrl-C interrupts kills the child, and with it
    the records that it has not written yet.
    """
    deadline = time.monotonic() + length.total_s + _PATIENCE_S
    while child.status is None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return child.wait() if child.status is not None else None


def _conclude(child: Child, status: int | None, output: Path) -> DuetRun:
    failure = _failure(child, status)
    # without a header, as on a disk that was full
    if not output.exists() or output.stat().st_size < HEADER.size:
        raise MeasurementError(f"the duet did not begin: {failure or 'it was interrupted'}")
    facts = dict(line.split(" ", 1) for line in child.stdout if " " in line)
    ended: Ending = "failure"
    if failure is None:
        ended = "signal" if facts.get("ended") == "signal" else "time"
    return DuetRun(read_records(output), ended, failure)


def _failure(child: Child, status: int | None) -> str | None:
    """Why the run failed in one sentence, None if it did not."""
    if status == 0:
        return None
    if status is None:
        return "the duet driver did not end in time"
    if status < 0:
        return f"the duet driver was ended by signal {-status}"
    said = [line.removeprefix("error: ") for line in child.stderr if not _PROGRESS.match(line)]
    return said[-1] if said else f"the duet driver ended with status {status}"


def _progress_reader(
    on_progress: Callable[[float, int], None] | None,
) -> Callable[[str], None] | None:
    if on_progress is None:
        return None

    def tell(line: str) -> None:
        found = _PROGRESS.match(line)
        if found is not None:
            on_progress(float(found["s"]), int(found["transactions"]))

    return tell


def _write_private(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
