"""The same comparison by whole runs, by duet, and by transactions inside one server.

wait_event_timing with every wait traced against the same module switched off, on cached look-ups
(W1) and on the same at half of saturation (W4). Each way prints the seconds it took and the half
width of its 95 % interval, in percent of the base, and how wide that would be in the rounds' time
(widths go with the square root of time). Rounds and duet test the median latency of their units;
inside a server it is the mean below the 99.9th percentile.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy import stats

from bench import harness
from pgtare.design import Arm, Design, block_layout
from pgtare.errors import MeasurementError
from pgtare.estimate import analyse
from pgtare.ladder import run
from pgtare.load import LoadSpec, PgbenchLoad, find_pgbench
from pgtare.load.spec import cores
from pgtare.server.binaries import from_wheel
from pgtare.server.modules import loadable

CAPTURE = "wait_event_timing.capture"
STUDY = """
title = "One comparison by several protocols"
[protocol]
rounds = {rounds}
run = "{run_s}s"
warm_up = "1s"
[protocol.duet]
sets = {sets}
run = "{run_s}s"
[analysis]
floor = "OFF"
[gates]
steal_at_most = "{bound}"
other_load_at_most = "{bound}"
[[variant]]
name = "OFF"
preload = ["wait_event_timing"]
runtime = {{ "wait_event_timing.capture" = "off" }}
capture = "off"
[[variant]]
name = "TRA"
preload = ["wait_event_timing"]
runtime = {{ "wait_event_timing.capture" = "trace" }}
capture = "trace"
[[comparison]]
arm = "TRA"
base = "OFF"
[[workload]]
name = "{name}"
protocol = "{kind}"
builtin = "select-only"
clients = "1/core"
{load}
scale = 10
settings = {{ shared_buffers = "512MB" }}
prewarm = true
metric = "latency_p50_us"
"""
LOADS = {"W1": "", "W4": 'load = "50%"'}


@dataclass(frozen=True)
class Way:
    """What a way of comparing took and gave; se and df of the units' log-ratios, in percent."""

    name: str
    seconds: float
    pct: float
    half_width_pct: float
    se_pct: float
    df: int
    rate_tps: float | None = None


def by_study(kind: str, name: str, args: argparse.Namespace) -> Way:
    """By whole runs or by duet: a study of its own."""
    text = STUDY.format(
        kind=kind, name=name, load=LOADS[name], rounds=args.rounds, sets=args.sets,
        run_s=args.run_seconds, bound="100%" if args.open_gates else "5%",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "study.toml")
        path.write_text(text)
        planned = run.plan(
            path, Path(directory, "out"), quick=False, workloads=(), seed=args.seed, command=[]
        )
        run.conduct(planned, Console(stderr=True))
        (workload,) = run.result(planned).workloads
    if workload.why_not:
        raise MeasurementError(f"{name} by {kind}: {workload.why_not}")
    (compared,) = workload.compared
    effect = compared.effect
    assert effect.pct is not None
    assert effect.lo_pct is not None
    assert effect.hi_pct is not None
    d = 100 * np.log1p(np.array(compared.round_pct) / 100)
    se = float(d.std(ddof=1)) / len(d) ** 0.5
    half = (effect.hi_pct - effect.lo_pct) / 2
    return Way(kind, workload.spent_s, effect.pct, half, se, len(d) - 1, workload.rate_tps)


def in_server(name: str, seconds: float, rate: float | None, seed: int) -> Way:
    """By transactions inside one server, each with its own arm."""
    arms = (Arm("off", "base", {CAPTURE: "off"}), Arm("trace", "instrument", {CAPTURE: "trace"}))
    design = Design(arms, block_layout(2), seed)
    spec = LoadSpec(clients=cores(), rate=rate)
    began = time.monotonic()
    library = loadable(from_wheel(), "wait_event_timing").library
    with (
        harness.server([library]) as target,
        PgbenchLoad(find_pgbench(target.binaries), target.dsn, spec) as running,
    ):
        running.wait_ready()
        data = harness.record(target, running, design, seconds)
    arm = analyse(data, design, seed=1).arms[1]
    assert arm.effect is not None
    body = arm.effect.body_us
    base = float(np.median(data["service_ns"][data["arm"] == 0])) / 1000
    return Way(
        "transactions in one server", time.monotonic() - began, 100 * body.estimate / base,
        100 * (body.hi - body.lo) / 2 / base, 100 * body.se / base, 1_000, rate,
    )  # fmt: skip


def show(name: str, ways: list[Way]) -> None:
    """Print a workload's table."""
    base = ways[0]
    print(f"{name}: TRA against OFF")
    print("way                          seconds  effect %  half width %  in the rounds' time %")
    for way in ways:
        scaled = way.half_width_pct * (way.seconds / base.seconds) ** 0.5
        print(
            f"{way.name:28} {way.seconds:7.0f}  {way.pct:+8.2f}  {way.half_width_pct:12.3f}"
            f"  {scaled:21.3f}"
        )
    for way in ways[1:]:
        ratio = base.se_pct / way.se_pct * (base.seconds / way.seconds) ** 0.5
        # of two variances: each standard error rests on its own units only
        lo = ratio * stats.f.ppf(0.025, way.df, base.df) ** 0.5
        hi = ratio * stats.f.ppf(0.975, way.df, base.df) ** 0.5
        print(
            f"in the same time {way.name} is {ratio:.1f} [{lo:.1f}, {hi:.1f}] times tighter than "
            f"{base.name} (standard errors)",
            flush=True,
        )


def main() -> None:
    """Run the comparisons and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", nargs="*", choices=sorted(LOADS), default=sorted(LOADS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--sets", type=int, default=12)
    parser.add_argument("--run-seconds", type=int, default=5)
    parser.add_argument("--server-seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--open-gates", action="store_true", help="count runs beside other load")
    args = parser.parse_args()
    for name in args.workload:
        ways = [by_study(kind, name, args) for kind in ("rounds", "duet")]
        ways.append(in_server(name, args.server_seconds, ways[0].rate_tps, args.seed))
        show(name, ways)


if __name__ == "__main__":
    main()
