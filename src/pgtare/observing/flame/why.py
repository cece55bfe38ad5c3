"""Samples during a trial, and what each costing arm spends its time in (`pgtare weigh --why`)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import psycopg
from rich.console import Console

from pgtare.errors import PgtareError, UsageError
from pgtare.estimate.trial.observations import Observations, UnitFlag, finished
from pgtare.kit import numbers
from pgtare.observing.flame import arm_difference as reasons
from pgtare.observing.flame import perf, processes, show
from pgtare.observing.flame.arm_difference import Growth, Reasons
from pgtare.observing.flame.processes import FlameTarget
from pgtare.observing.flame.record import FlameRecorder
from pgtare.observing.flame.recording import BLOCKED, FlameRecording, Mode, Numbers
from pgtare.postgres.wait_ring import epoch_ns

#: Samples a second: a round number would beat with timers of the server.
RATE = 1999
_ROWS = 8


@dataclass(frozen=True)
class TrialArms:
    """What is needed of a trial. names: of its arms. started: ISO 8601, None if it is not known."""

    names: Sequence[str]
    observations: Observations
    started: str | None


class Why:
    """Records during a trial; `reasons` explains it afterwards."""

    def __init__(self) -> None:
        perf.find_perf()
        self._done: dict[str, FlameRecording] = {}
        #: the machine's number of each process by the server's, if they differ
        self._pids: dict[int, int] | None = None
        self.notes: list[str] = []

    @contextlib.contextmanager
    def during(self, conn: psycopg.Connection[Any]) -> Iterator[None]:
        """Record the server of this connection while the block runs; UsageError if it cannot."""
        target = processes.of_connection(conn)
        recorders: list[tuple[Mode, FlameRecorder]] = [("on", _recorder("on", target))]
        try:
            recorders.append(("off", _recorder("off", target)))
        except UsageError as ex:
            self.notes.append(f"Waits are not explained: {ex}.")
        ended = threading.Event()
        threads = [
            threading.Thread(target=self._run, args=(mode, recorder, ended), daemon=True)
            for mode, recorder in recorders
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()
            if target.foreign:  # by now those of sessions that connected during the trial are known
                self._pids = target.by_server_pid()

    def _run(self, mode: str, recorder: FlameRecorder, ended: threading.Event) -> None:
        try:
            self._done[mode] = recorder.run(ended.is_set)
        except PgtareError as ex:
            self.notes.append(f"Nothing was sampled ({mode}): {ex}")

    def explain(self, trial: TrialArms) -> dict[str, list[Reasons]]:
        """What each arm spends more time in than the base: computing ("on") and blocked ("off")."""
        if trial.started is None:
            return {}
        began = epoch_ns(datetime.fromisoformat(trial.started))
        data = finished(trial.observations)
        data = self._renumbered(data[(data["flags"] & UnitFlag.UNDRAWN) == 0])
        arms = list(trial.names)
        found = {}
        for mode, recording in self._done.items():
            zero = began - recording.realtime_ns
            samples = recording.samples
            if mode == "off":
                samples = samples.of(BLOCKED)
            which = samples.within(_spans(data, zero))
            found[mode] = reasons.explain(
                samples,
                which,
                zero + data["start_ns"].astype(np.int64),
                data["arm"].astype(np.int64),
                arms,
                recorded=(
                    recording.begin_ns,
                    recording.begin_ns + round(1e9 * recording.duration_s),
                ),
                names=reasons.wait_names if mode == "off" else reasons.function_names,
            )
            self.notes += recording.notes
        return found

    def _renumbered(self, data: Observations) -> Observations:
        """By the machine's numbers of processes, without those whose number is not known."""
        if self._pids is None:
            return data
        known = data[np.isin(data["pid"], list(self._pids))]
        if len(known) < len(data):
            self.notes.append(
                f"{len(data) - len(known):,} of {len(data):,} transactions do not count in the "
                "reasons: their sessions ended before the machine's number of them was looked up."
            )
        known["pid"] = [self._pids[pid] for pid in known["pid"].tolist()]
        return known


def _spans(data: Observations, began_ns: int) -> Numbers:
    """When each transaction ran, and under which arm. began_ns: of the trial, CLOCK_MONOTONIC."""
    start = began_ns + data["start_ns"]
    end = start + data["service_ns"] + data["client_ns"]
    return np.stack(
        [data["pid"].astype(np.int64), start, end, data["arm"].astype(np.int64)], axis=1
    )


def _recorder(mode: Mode, target: FlameTarget) -> FlameRecorder:
    # Of waits the system call is shown, which the kernel's part of a stack has: no copies of the
    # rest, tens of thousands a second.
    walk = perf.FRAME_POINTERS if mode == "off" else None
    return FlameRecorder(mode, target, RATE, walk)


def render(
    found: dict[str, list[Reasons]], costing: Mapping[str, bool], notes: list[str], to: Console
) -> None:
    """Print the reasons of some arms. costing: whether each of these is known to cost something."""
    for mode, title in (("on", "computes more"), ("off", "is blocked longer")):
        for reason in found.get(mode, []):
            if reason.arm not in costing:
                continue
            if mode == "off" and not reason.functions:
                continue
            headline = _headline(reason, title, known=costing[reason.arm])
            to.print(headline, highlight=False, markup=False)
            rows = [_row(growth) for growth in reason.functions[:_ROWS]]
            head = ["with callees", "base", "arm", "growth", "95 % interval"]
            if rows:
                to.print(show.table(head, rows), highlight=False)
            else:
                to.print("No single function's growth is significant.", highlight=False)
    for note in notes:
        to.print(f"note: {note}", highlight=False, markup=False)


def _headline(reason: Reasons, title: str, *, known: bool) -> str:
    """known: whether the weighing found a cost."""
    total, unit = reason.total, numbers.duration
    name = reason.arm
    asked = f"Why {name} costs what it does" if known else f"What {name} does, cost inconclusive"
    return (
        f"{asked}: a transaction {title} by {unit(total.growth_us)} "
        f"[{unit(total.lo_us)}, {unit(total.hi_us)}], by {reason.samples:,} samples of it"
    )


def _row(growth: Growth) -> list[str]:
    unit = numbers.duration
    interval = f"[{unit(growth.lo_us)}, {unit(growth.hi_us)}]"
    return [
        f"{growth.name} (around {growth.around})" if growth.around else growth.name,
        unit(growth.base_us),
        unit(growth.arm_us),
        unit(growth.growth_us),
        interval,
    ]
