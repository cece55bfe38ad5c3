"""A synthetic weighing for tests: pgbench select-only at about 70 µs, six arms and an injected one.

The observations follow a known truth (log-normal service time, slow drift, a heavy tail, an
effect and a carry-over an arm); the result is computed from them with plain block differences,
which is enough to look like the real thing and to agree with the observations.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.estimate.trial.observations import NO_SLICE, OBSERVATION, Observations, UnitFlag
from pgtare.kit.interval import Interval
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.schema import (
    ArmResult,
    Baseline,
    ByBackend,
    CarryOver,
    DesignInfo,
    Effect,
    Verdict,
    WeighResult,
)
from tests.assignment import permuted_block

FloatArray = npt.NDArray[np.float64]

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
OWN_US = (0.0, 0.0, 2.6, 0.05, 2.0, 13.0, 5.0)
CARRY_US = (0.0, 0.0, 0.35, 0.0, 0.3, 2.2, 0.1)
VERDICTS: dict[str, Verdict] = {
    "pg_stat_statements": "cost",
    "track_io_timing": "equivalent",
    "auto_explain": "cost",
    "log_min_duration_statement": "cost",
}
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


def sample(blocks: int = 2500, sessions: int = 2, seed: int = 20_250_817) -> Sample:
    """A fresh copy of a sample; equal arguments give equal samples."""
    design, observations, result = _sample(blocks, sessions, seed)
    return Sample(design, observations.copy(), result.model_copy(deep=True))


def save(directory: Path, blocks: int = 2500) -> None:
    """A sample as `pgtare weigh --out` leaves it."""
    drawn = sample(blocks)
    store.save(directory, drawn.design, drawn.observations, drawn.result)


def make_observations(design: Design, blocks: int, sessions: int) -> Observations:
    """`blocks` permuted blocks in each of `sessions` backends, spread over a minute."""
    rng = np.random.default_rng(design.seed % 2**32)
    return np.concatenate([_session(design, blocks, backend, rng) for backend in range(sessions)])


def _session(design: Design, blocks: int, backend: int, rng: np.random.Generator) -> Observations:
    arms = np.array([permuted_block(design, backend, b) for b in range(blocks)]).ravel()
    rows = np.zeros(len(arms), dtype=OBSERVATION)
    at = np.arange(len(arms)) / len(arms)
    drift = 1 + 0.03 * np.sin(9 * at + backend)
    service = 64.0 * drift * rng.lognormal(0.0, 0.07, len(arms))
    slow = rng.random(len(arms)) < 0.02
    service += slow * rng.pareto(2.2, len(arms)) * 45
    service += np.array(OWN_US)[arms] + np.roll(np.array(CARRY_US)[arms], 1)
    rows["start_ns"] = (at * SECONDS * 1e9).astype(np.int64)
    rows["service_ns"] = (service * 1000).astype(np.int64)
    rows["client_ns"] = -1
    rows["cpu_ns"] = ((service * 0.8 + 6) * 1000).astype(np.int64)
    rows["backend"] = backend
    rows["unit"] = np.arange(len(arms))
    rows["block"] = np.arange(len(arms)) // len(design.block)
    rows["position"] = np.arange(len(arms)) % len(design.block)
    rows["arm"] = arms
    rows["requests"] = 1
    rows["flags"] = int(UnitFlag.EXECUTED)
    rows["flags"][0] |= int(UnitFlag.UNBLOCKED)
    rows["switch_ns"] = 900
    rows["pid"] = 4100 + backend
    rows["slice"] = NO_SLICE
    return rows


def make_result(design: Design, rows: Observations) -> WeighResult:
    """The result of the observations, every session's first block left out."""
    k = len(design.arms)
    kept = rows[rows["block"] > 0]
    order = np.lexsort((kept["arm"], kept["block"], kept["backend"]))
    service = kept["service_ns"][order].reshape(-1, k) / 1000.0
    cpu = kept["cpu_ns"][order].reshape(-1, k) / 1000.0
    backend = kept["backend"][order].reshape(-1, k)[:, 0]
    threshold = float(np.quantile(service, 0.999))
    base_body = float(np.minimum(service, threshold)[:, 0].mean())
    p50, p99 = (float(q) for q in np.quantile(service[:, 0], (0.5, 0.99)))
    mde_us = 2.8 * float(np.std(np.minimum(service, threshold)[:, 1])) * (2 / len(service)) ** 0.5
    return WeighResult(
        created="2025-08-17T09:30:00+00:00",
        pgtare_version="0.1.0",
        command=["pgtare", "weigh", "pg_stat_statements", "track_io_timing", "--time", "60s"],
        load={"kind": "pgbench", "script": "select-only", "clients": len(set(backend))},
        design=DesignInfo(
            seed=design.seed,
            unit="transaction",
            block=list(design.block),
            duration_s=SECONDS,
            planned_s=SECONDS,
            margin_pct=0.5,
            confidence=0.95,
            blocks=len(service),
            blocks_discarded=len(set(backend)),
            sessions=len(set(backend)),
            sessions_outside=1,
            participation=0.5,
            sessions_took_part_pct=40.0,
            transactions_took_part_pct=22.3,
            lost=0,
            mde_us=mde_us,
            mde_pct=100 * mde_us / base_body,
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
        baseline=Baseline(
            n=len(service),
            mean_us=float(service[:, 0].mean()),
            body_mean_us=base_body,
            p50_us=p50,
            p99_us=p99,
            threshold_us=threshold,
            cpu_us=float(cpu[:, 0].mean()),
        ),
        carry_over=CarryOver(lags=1, switch_us=0.9, switch_throughput_pct=1.1),
        arms=[_arm(design, index, service, cpu, threshold, len(rows) // k) for index in range(k)],
        by_backend=[
            ByBackend(
                backend=int(b),
                pid=4100 + int(b),
                n=int((backend == b).sum()) * k,
                body_us={
                    arm.name: _mean(
                        np.minimum(service, threshold)[backend == b, i]
                        - np.minimum(service, threshold)[backend == b, 0]
                    )
                    for i, arm in enumerate(design.arms)
                    if arm.role == "instrument"
                },
            )
            for b in sorted(set(backend))
        ],
        warnings=[
            "2 processors for 2 clients, pgbench and the server: expect waits for a processor.",
        ],
    )


def _arm(
    design: Design,
    index: int,
    service: FloatArray,
    cpu: FloatArray,
    threshold: float,
    drawn: int,
) -> ArmResult:
    arm = design.arms[index]
    y = np.minimum(service, threshold)
    common = ArmResult(
        name=arm.name,
        role=arm.role,
        settings=arm.settings,
        inject_ns=arm.inject_ns,
        n=len(service),
        excluded=drawn - len(service),
        mean_us=float(service[:, index].mean()),
        p50_us=float(np.median(service[:, index])),
        p99_us=float(np.quantile(service[:, index], 0.99)),
    )
    if arm.role == "base":
        return common
    own = _mean(y[:, index] - y[:, 0])
    carry = Interval(estimate=CARRY_US[index], lo=CARRY_US[index] - 0.1, hi=CARRY_US[index] + 0.1)
    body = _shift(own, CARRY_US[index])
    excess = _mean((service - y)[:, index] - (service - y)[:, 0])
    raw = _mean(service[:, index] - service[:, 0])
    total = _shift(raw, CARRY_US[index])
    base_body = float(y[:, 0].mean())
    quantiles = {
        p: _shift(
            own,
            float(np.quantile(service[:, index], p) - np.quantile(service[:, 0], p))
            - (own.estimate or 0.0),
            wider,
        )
        for p, wider in ((0.5, 1.1), (0.99, 9.0))
    }
    common.effect = Effect(
        total_us=total,
        total_pct=_scale(total, 100 / base_body),
        body_us=body,
        body_pct=_scale(body, 100 / base_body),
        excess_us=excess,
        own_us=own,
        carry_over_us=carry,
        second_lag_us=_shift(carry, -CARRY_US[index]),
        mean_us=raw,
        p50_us=quantiles[0.5],
        p99_us=quantiles[0.99],
        cpu_us=_mean(cpu[:, index] - cpu[:, 0]),
    )
    common.tail_rate_ratio = Interval(estimate=1.02, lo=0.9, hi=1.14)
    common.p = common.p_randomisation = 0.0005 if OWN_US[index] > 1 else 0.41
    common.equivalence_us = _shift(body, 0.0, 1.645 / 1.96)
    common.verdict = VERDICTS.get(arm.name)
    if arm.role == "instrument":
        common.p_adjusted = min(1.0, 4 * common.p)
        common.proof = Proof(state="active", evidence=EVIDENCE[arm.name])
    return common


def _mean(differences: FloatArray) -> Interval:
    estimate = float(differences.mean())
    half = 1.96 * float(differences.std()) / len(differences) ** 0.5
    return Interval(estimate=estimate, lo=estimate - half, hi=estimate + half)


def _shift(interval: Interval, by: float, widen: float = 1.0) -> Interval:
    assert interval.estimate is not None
    assert interval.hi is not None
    half = (interval.hi - interval.estimate) * widen
    estimate = interval.estimate + by
    return Interval(estimate=estimate, lo=estimate - half, hi=estimate + half)


def _scale(interval: Interval, by: float) -> Interval:
    values = interval.model_dump()
    return Interval(**{k: None if v is None else v * by for k, v in values.items()})
