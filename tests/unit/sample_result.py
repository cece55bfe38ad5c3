"""A synthetic weighing for tests: pgbench select-only at about 70 µs, six arms and an injected one.

The observations follow a known truth (log-normal service time, slow drift, a heavy tail, an effect
of each arm that is larger in its first transactions); the result is what the estimators say of
them.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.answer import ReasonKind, Verdict
from pgtare.estimate.trial.design import Arm, Design, block_layout, transactions_of_block
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.kit.interval import Interval
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.result import estimated, estimated_design
from pgtare.weighing.weigh.schema import (
    Answer,
    ArmResult,
    DesignInfo,
    Effect,
    Reason,
    WeighResult,
)
from tests.unit import simulated_trial

ARMS = (
    Arm("base", "base"),
    Arm("control", "control"),
    Arm("pg_stat_statements", "instrument", {"pg_stat_statements.track": "top"}),
    Arm("track_io_timing", "instrument", {"track_io_timing": "on"}),
    Arm(
        "auto_explain",
        "instrument",
        {"auto_explain.log_analyze": "on", "auto_explain.log_min_duration": "10s"},
    ),
    Arm("log_min_duration_statement", "instrument", {"log_min_duration_statement": "0"}),
    Arm("inject 5 µs", "injected", {}, inject_ns=5000),
)
#: What each costs when left on, and besides in its first transaction after it was switched on.
COST_US = (0.0, 0.0, 2.6, 0.02, 2.0, 13.0, 5.0)
COLD_US = (0.0, 0.0, 9.0, 0.0, 4.0, 8.0, 0.0)
EVIDENCE = {
    "pg_stat_statements": "pg_stat_statements counted every call of the arm's statements",
    "track_io_timing": "time was accounted in 211 of the units that read a block",
    "auto_explain": "plans ran with per-node instrumentation in every unit",
    "log_min_duration_statement": "every unit sent a line to the server log",
}
SECONDS = 60.0


class Sample(NamedTuple):
    """A design, observations drawn from it, and the result computed from those."""

    design: Design
    observations: Observations
    result: WeighResult


@lru_cache(maxsize=4)
def _sample(blocks: int, sessions: int, seed: int) -> Sample:
    design = Design(ARMS, block_layout(len(ARMS)), seed)
    observations = make_observations(design, blocks, sessions)
    return Sample(design, observations, make_result(design, observations))


def sample(blocks: int = 500, sessions: int = 2, seed: int = 20_250_817) -> Sample:
    """A fresh copy of a sample; equal arguments give equal samples."""
    design, observations, result = _sample(blocks, sessions, seed)
    return Sample(design, observations.copy(), result.model_copy(deep=True))


def save(directory: Path, blocks: int = 500) -> None:
    """A sample as `pgtare weigh --out` leaves it."""
    drawn = sample(blocks)
    store.save(directory, drawn.design, drawn.observations, drawn.result)


def answer(arm: ArmResult) -> Answer:
    """What it costs; of any arm but the base."""
    assert arm.answer is not None
    return arm.answer


def effect(arm: ArmResult) -> Effect:
    """What else is known of it; likewise."""
    assert arm.effect is not None
    return arm.effect


def make_observations(design: Design, blocks: int, sessions: int) -> Observations:
    """About `blocks` blocks of runs in each of `sessions` backends, spread over a minute."""
    rng = np.random.default_rng(design.seed % 2**32)
    n = round(blocks * transactions_of_block(design))
    arrays = [_service_us(n, backend, rng) for backend in range(sessions)]
    effects = {
        arm: simulated_trial.Effect(
            partial(np.add, cost), cold_us=tuple(cold * 0.4**k for k in range(8))
        )
        for arm, (cost, cold) in enumerate(zip(COST_US, COLD_US, strict=True))
        if arm
    }
    rows = simulated_trial.simulate(simulated_trial.old(arrays), design, effects).observations
    rows["start_ns"] = (rows["start_ns"] * (SECONDS * 1e9 / rows["start_ns"].max())).astype(int)
    rows["client_ns"] = -1
    rows["cpu_ns"] = rows["service_ns"] * 8 // 10 + 6_000
    rows["flags"] |= int(UnitFlag.EXECUTED)
    rows["pid"] = 4_100 + rows["backend"]
    return rows


def _service_us(n: int, backend: int, rng: np.random.Generator) -> simulated_trial.Floats:
    drift = 1 + 0.03 * np.sin(9 * np.arange(n) / n + backend)
    slow = rng.random(n) < 0.005
    tail = slow * rng.pareto(2.2, n) * 45
    return np.asarray(64.0 * drift * rng.lognormal(0.0, 0.07, n) + tail)


def make_result(design: Design, rows: Observations, margin: float = 0.005) -> WeighResult:
    """What `pgtare weigh` would say of the observations, with every instrument seen at work."""
    proofs = [
        Proof(state="active", evidence=EVIDENCE[arm.name]) if arm.role == "instrument" else None
        for arm in design.arms
    ]
    proven = {arm.name: True for arm in design.arms if arm.role == "instrument"}
    found = analyse(rows, design, margin=margin, proven=proven)
    sessions = len(np.unique(rows["backend"]))
    return WeighResult(
        created="2025-08-17T09:30:00+00:00",
        pgtare_version="0.1.0",
        command=["pgtare", "weigh", "pg_stat_statements", "track_io_timing", "--time", "60s"],
        load={"kind": "pgbench", "script": "select-only", "clients": sessions},
        design=DesignInfo(
            seed=design.seed,
            unit=design.unit,
            block=list(design.block),
            duration_s=SECONDS,
            planned_s=SECONDS,
            **estimated_design(found, design),
            sessions=sessions,
            sessions_outside=1,
            participation=0.5,
            transactions_took_part_pct=22.3,
            lost=0,
            stopped_by="time",
            partial=False,
        ),
        server={
            "version": "18.1",
            "version_text": "PostgreSQL 18.1 on x86_64-pc-linux-gnu, compiled by gcc",
            "settings": {
                "shared_buffers": "128MB",
                "track_activities": "on",
                "log_min_messages": "",
            },
        },
        machine={"cpu": "2 × x86-64 virtual", "clocksource": "tsc", "kernel": "Linux 6.1"},
        **estimated(found, design, proofs),
        warnings=[
            "2 processors for 2 clients, pgbench and the server: expect waits for a processor.",
        ],
    )


def arm_of(result: WeighResult, name: str) -> ArmResult:
    """One of its arms."""
    return next(arm for arm in result.arms if arm.name == name)


def judged(arm: ArmResult, verdict: Verdict, *reasons: ReasonKind, **fields: Any) -> Answer:
    """Give an arm another verdict for these reasons; fields: of the answer, to be changed too."""
    found = answer(arm)
    found.verdict, found.reasons = verdict, [Reason(kind=kind) for kind in reasons]
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def between(estimate: float, lo: float | None, hi: float | None) -> Interval:
    return Interval(estimate=estimate, lo=lo, hi=hi)
