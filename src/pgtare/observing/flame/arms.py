"""Joins samples to the arms of a trial: which one ran in the transaction that each was taken in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from pgtare.errors import UsageError
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.observing.flame import frames
from pgtare.observing.flame.recording import FlameRecording, Numbers
from pgtare.postgres.wait_ring import epoch_ns


@dataclass(frozen=True)
class TrialArms:
    """What is needed of a trial. names: of its arms. started: ISO 8601, None if it is not known."""

    names: Sequence[str]
    observations: Observations
    started: str | None

    def began_ns(self) -> int | None:
        """When it began, in ns since 1970."""
        return None if self.started is None else epoch_ns(datetime.fromisoformat(self.started))


def arm_spans(observations: Observations, began_ns: int, pids: dict[int, int]) -> Numbers:
    """When each transaction ran, and under which arm.

    began_ns: of the trial, CLOCK_MONOTONIC. pids: the machine's number by the server's.
    """
    data = observations[(observations["flags"] & (UnitFlag.UNDRAWN | UnitFlag.OPEN)) == 0]
    machine = np.array([pids.get(int(p), int(p)) for p in data["pid"].tolist()], np.int64)
    start = began_ns + data["start_ns"]
    end = start + data["service_ns"] + data["client_ns"]
    return np.stack([machine, start, end, data["arm"].astype(np.int64)], axis=1)


def by_arm(recording: FlameRecording, trial: TrialArms) -> FlameRecording:
    """The samples under the arm of the transaction in which each was taken; others are left out.

    Raises UsageError if the trial and the recording have no time in common.
    """
    began = trial.began_ns()
    if began is None:
        raise UsageError("the trial does not tell when it began")
    spans = arm_spans(trial.observations, began - recording.realtime_ns, {})
    arms = recording.samples.within(spans)
    if not (arms >= 0).any():
        raise UsageError("no sample was taken in a transaction of the trial")
    names = [frames.ARM + name.replace(";", ",") for name in trial.names]
    inside = recording.samples.where(arms >= 0).framed(names, arms[arms >= 0])
    outside = int((arms < 0).sum())
    return dataclasses.replace(recording, samples=inside).noted(
        f"{outside:,} samples fell between transactions, or into other sessions, and are left out."
    )
