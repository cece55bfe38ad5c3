"""How long a trial took, and what switching took of it."""

from __future__ import annotations

import numpy as np

from pgtare.estimate.inference import NAN
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.results import Switching


def duration_s(obs: Observations) -> float:
    """From the first unit's start to the last one's answer, in seconds; 0 without units."""
    if len(obs) == 0:
        return 0.0
    end = obs["start_ns"] + obs["service_ns"] + obs["client_ns"]
    return float(end.max() - obs["start_ns"].min()) / 1e9


def switching(obs: Observations) -> Switching:
    """What switching took, over all units but the first of each backend."""
    order = np.argsort((obs["backend"].astype(np.int64) << 32) | obs["unit"], kind="stable")
    backend, start = obs["backend"][order], obs["start_ns"][order]
    same = backend[1:] == backend[:-1]
    if not same.any():
        return Switching(switch_us=NAN, switch_throughput_pct=NAN)
    switch_us = float(obs["switch_ns"][order][1:][same].mean()) / 1e3
    cycle_us = float((start[1:] - start[:-1])[same].mean()) / 1e3
    share = 100 * switch_us / cycle_us if cycle_us > 0 else NAN
    return Switching(switch_us=switch_us, switch_throughput_pct=share)
