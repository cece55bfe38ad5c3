"""Runs a trial and collects its observations, whatever ends it."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import psycopg

from pgtare.errors import MeasurementError, PgtareError
from pgtare.estimate.trial import observations
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations
from pgtare.kit.option_values import LONGEST_S
from pgtare.postgres import signals
from pgtare.postgres.load import PgbenchLoad
from pgtare.postgres.own_session import first_line
from pgtare.weighing.trials import Population, Status, Trials
from pgtare.weighing.weigh.schema import StoppedBy

_ENDINGS = {
    "stopped": "it was stopped by pgtare stop or pgtare.trial_stop()",
    "deadline": "the server's deadline for it had come",
    "kill switch": "pgtare.enabled was switched off",
    "lease expired": "its lease was not renewed in time",
}

_DRAIN_S = 0.1
_POLL_S = 0.1
_STATUS_S = 1.0
#: How much longer than asked the server lets the trial run, should we not stop it. Both together
#: are at most a week, the server's limit.
_GRACE_S = 10.0
#: Looking at the data competes with the load for the processor: at most this share of the time.
_LOOK_SHARE = 0.05


@dataclass(frozen=True)
class TrialRecording:
    """What a trial gave: observations, and how it ended."""

    observations: Observations
    duration_s: float
    stopped_by: StoppedBy
    status: Status | None
    trouble: str = ""


@dataclass
class _Drained:
    """Filled by the draining thread."""

    parts: list[Observations] = field(default_factory=list)
    rows: int = 0
    error: BaseException | None = None
    ended: str = ""  # why the server ended the trial, if it did


#: Called about once a second with seconds run and what there is; why the trial ends now, or None.
Look = Callable[[float, Observations], StoppedBy | None]
#: Called by the draining thread with what has just been read.
Arrived = Callable[[Observations], None]


class Halt:
    """Ends trials from another thread. of: ends when that one does, too."""

    def __init__(self, of: Halt | None = None) -> None:
        self._of = of
        self._wanted = threading.Event()

    def set(self) -> None:
        """End them."""
        self._wanted.set()

    @property
    def wanted(self) -> bool:
        """Whether trials are to end."""
        return self._wanted.is_set() or (self._of is not None and self._of.wanted)

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until trials are to end; whether they are."""
        outer = self._of._wanted if self._of is not None else self._wanted
        outer.wait(seconds)
        return self.wanted


@dataclass(frozen=True)
class Lease:
    """How long a trial outlives its client, and how often the draining thread renews that, in s."""

    seconds: float
    every_s: float


def record(
    trials: Trials,
    design: Design,
    population: Population,
    seconds: float,
    *,
    cpu: bool,
    load: PgbenchLoad | None,
    look: Look | None,
    tick: Callable[[float, int], None],
    halt: Halt | None = None,
    lease: Lease | None = None,
    arrived: Arrived = lambda part: None,
) -> TrialRecording:
    """Run a trial for `seconds`, or until `look` or `halt` says so, Ctrl-C, or the server's end.

    tick: called ten times a second with seconds run and rows so far. Raises UsageError if the
    trial cannot start, MeasurementError if the load fails.
    """
    halt = halt or Halt()
    seconds = min(seconds, LONGEST_S - _GRACE_S)
    trials.start(design, population, seconds + _GRACE_S, cpu=cpu)
    began = time.monotonic()
    drained, stop = _Drained(), threading.Event()
    work = (trials, drained, stop, lease, arrived)
    thread = threading.Thread(target=_drain, args=work, daemon=True)
    thread.start()
    stopped_by: StoppedBy = "time"
    failure: MeasurementError | None = None
    try:
        stopped_by = _wait(began, seconds, drained, load, look, tick, halt)
    except KeyboardInterrupt:
        stopped_by = "interrupt"
    except MeasurementError as ex:
        failure = ex
    signals.let_finish()
    taking_part = _taking_part(trials) if failure is None else 0
    duration = time.monotonic() - began
    stop.set()
    thread.join()
    status = None
    trouble = first_line(drained.error) if drained.error else drained.ended
    try:
        if drained.error is None:
            trials.stop()
            while len(part := trials.drain()):
                drained.parts.append(part)
                arrived(part)  # what is still open comes only now
            status = dataclasses.replace(trials.status(), sessions_now=taking_part)
    except psycopg.Error as ex:
        trouble = first_line(ex)
    if trouble:
        stopped_by = "server"
    elif failure is not None:
        raise failure
    data = np.concatenate(drained.parts) if drained.parts else observations.empty()
    return TrialRecording(data, duration, stopped_by, status, trouble)


def _taking_part(trials: Trials) -> int:
    """How many sessions take part now; 0 if the server does not answer."""
    try:
        return trials.status().sessions_now
    except (psycopg.Error, PgtareError):  # the draining thread meets it too, and tells
        return 0


def _drain(
    trials: Trials,
    drained: _Drained,
    stop: threading.Event,
    lease: Lease | None,
    arrived: Arrived,
) -> None:
    next_status = time.monotonic() + _STATUS_S
    next_renewal = time.monotonic() if lease else math.inf
    try:
        while True:
            if lease is not None and time.monotonic() >= next_renewal:
                next_renewal = time.monotonic() + lease.every_s
                trials.renew(lease.seconds)
            if stop.wait(_DRAIN_S):
                return
            part = trials.drain()
            if len(part):
                drained.parts.append(part)
                drained.rows += len(part)
                arrived(part)
            if time.monotonic() >= next_status:
                status = trials.status()
                if not status.running:
                    drained.ended = _ENDINGS.get(status.end_reason or "", "the server ended it")
                    return
                next_status = time.monotonic() + _STATUS_S
    except BaseException as ex:
        drained.error = ex


def _wait(
    began: float,
    seconds: float,
    drained: _Drained,
    load: PgbenchLoad | None,
    look: Look | None,
    tick: Callable[[float, int], None],
    halt: Halt,
) -> StoppedBy:
    next_look = began + 1.0
    while True:
        now = time.monotonic()
        if drained.error is not None or drained.ended:
            return "server"
        if halt.wanted:
            return "interrupt"
        if now - began >= seconds:
            return "time"
        if load is not None:
            load.check()
        tick(now - began, drained.rows)
        if look is not None and now >= next_look and drained.parts:
            merged = np.concatenate(drained.parts)
            if (reason := look(now - began, merged)) is not None:
                return reason
            cost = time.monotonic() - now
            next_look = time.monotonic() + max(1.0, cost / _LOOK_SHARE)
        halt.wait(min(_POLL_S, max(0.0, seconds - (now - began))))
