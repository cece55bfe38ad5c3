"""Studies of a simulated server: known effects on a speed that drifts, jumps and has bad runs."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgtare.weighing.ladder import analysis, page
from pgtare.weighing.ladder.planning import all_steps
from pgtare.weighing.ladder.records import Rate, Run, StudyFacts, Wait
from pgtare.weighing.ladder.result import LadderResult
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_file import parse

Floats = npt.NDArray[np.float64]


def speeds(runs: int, rng: np.random.Generator, scale: float = 0.006) -> Floats:
    """Log speed (runs,) of a machine shared with others, run by run.

    A slow wave, a level that wanders, jumps when a neighbour comes or goes, and heavy tails.
    """
    when = np.arange(runs)
    wave = 2 * scale * np.sin(2 * np.pi * (when / rng.uniform(30, 90) + rng.random()))
    wander = np.cumsum(rng.normal(0, 0.3 * scale, runs))
    jumps = np.cumsum((rng.random(runs) < 0.02) * rng.normal(0, 4 * scale, runs))
    tails = scale * rng.standard_t(3, runs) / math.sqrt(3)
    return np.asarray(wave + wander + jumps + tails)


def rounds(effects: Mapping[str, float], n: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Log metric by variant (n,), each round in an order of its own; effects are shares."""
    names = list(effects)
    speed = speeds(n * len(names), rng).reshape(n, len(names))
    order = rng.permuted(np.tile(np.arange(len(names)), (n, 1)), axis=1)
    placed = np.take_along_axis(speed, np.argsort(order, axis=1), axis=1)
    return {name: placed[:, i] + math.log1p(effects[name]) for i, name in enumerate(names)}


STUDY = """
title = "A simulated server"
[protocol]
rounds = 10
run = "1s"
[analysis]
floor = "off"
[[variant]]
name = "off"
[[variant]]
name = "stats"
[[variant]]
name = "trace"
[[comparison]]
arm = "stats"
base = "off"
[[comparison]]
arm = "trace"
base = "off"
[[workload]]
name = "W1"
title = "cached look-ups"
also = ["latency_mean_us", "latency_p50_us", "latency_p95_us", "latency_p99_us"]
[[workload.profile]]
event = "IO/DataFileRead"
at_least = "80%"
"""

WAITS = (
    Wait(
        event="IO/DataFileRead",
        idle=False,
        waits=9_000,
        total_ms=900.0,
        mean_ms=0.1,
        of_sessions=0.9,
        of_waits=0.95,
        per_transaction=1.9,
    ),
    Wait(
        event="Client/ClientRead",
        idle=True,
        waits=9_000,
        total_ms=90.0,
        mean_ms=0.01,
        of_sessions=0.09,
        of_waits=0.0,
        per_transaction=1.0,
    ),
)


def study(text: str = STUDY) -> Study:
    return parse(text, "simulated.toml")


def facts(found: Study, seed: int = 7) -> StudyFacts:
    return StudyFacts(
        created="2026-01-01T00:00:00+00:00",
        pgtare_version="0",
        seed=seed,
        quick=False,
        workloads=tuple(w.name for w in found.workload),
        study_file="simulated.toml",
        study_directory="/",
        source=STUDY,
        command=("pgtare", "ladder", "simulated.toml"),
        machine={"cpus": 2},
        planned_s=60.0,
    )


def runs(found: Study, effects: Mapping[str, float], seed: int = 7) -> dict[str, Run]:
    """All runs of a study; an effect is a share of every metric."""
    rng = np.random.default_rng(seed)
    made = {}
    for workload in found.workload:
        logs = rounds(
            {name: effects.get(name.split()[0], 0.0) for name in found.members},
            found.protocol.rounds,
            rng,
        )
        for step in all_steps(found, seed):
            if step.workload != workload.name:
                continue
            log = 0.0 if step.kind == "proof" else float(logs[step.variant][step.round - 1])
            speed = math.exp(log)
            made[step.id] = Run(
                step=step,
                started="2026-01-01T00:00:00+00:00",
                duration_s=3.0,
                transactions=20_000,
                metrics={
                    "tps": 20_000 * speed,
                    "cpu_us": 60 / speed,
                    "latency_mean_us": 100 / speed,
                    "latency_p50_us": 90 / speed,
                    "latency_p95_us": 200 / speed,
                    "latency_p99_us": 400 / speed,
                },
                waits=WAITS,
                machine={"idle": 0.1, "steal": 0.0, "other": 0.0},
                evidence=("capture is as it should be",),
                latency_samples=2_000,
            )
    return made


def analysed(
    found: Study,
    made: dict[str, Run],
    *,
    closed: bool = False,
    rates_tps: Mapping[str, float] | None = None,
) -> LadderResult:
    """The result of these runs."""
    rates = {
        name: Rate(workload=name, saturation={}, rate_tps=tps)
        for name, tps in (rates_tps or {}).items()
    }
    steps_ = all_steps(found, 7)
    return analysis.analyse(
        found, facts(found), steps_, made, rates, directory=Path("d"), closed=closed, skipped={}
    )


def page_text(result: LadderResult) -> str:
    """What a reader of the page sees, without the charts."""
    shown = page.page(result).partition("<main")[2].partition("<script")[0]
    return html.unescape(re.sub(r"<[^>]+>", "", shown)).replace("\N{NO-BREAK SPACE}", " ")
