"""The same comparison by whole runs, by duet, and by transactions inside one server.

wait_event_timing with every wait traced against the same module switched off, on cached look-ups
(W1) and on the same at half of saturation (W4); one study, in which each protocol gets a third of
the time. Prints the study's table of protocols side by side, and how much tighter than rounds each
is in the same time, with a 95 % interval of that ratio. Rounds and duet test the median latency of
their units; inside a server it is the mean service time below the 99.9th percentile.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.console import Console
from scipy import stats

from pgtare.errors import MeasurementError
from pgtare.weighing.ladder import planning, run, terminal
from pgtare.weighing.ladder.protocol_registry import PROTOCOLS
from pgtare.weighing.ladder.result import LadderResult, SideBySide, Way

STUDY = """
title = "One comparison by several protocols"
[protocol]
rounds = 12
run = "{run_s}s"
[quick]
rounds = {rounds}
run = "{run_s}s"
[quick.duet]
sets = {duet}
run = "{run_s}s"
[quick.units]
trials = {units}
run = "{trial_s}s"
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
"""
WORKLOAD = """
[[workload]]
name = "{name}"
protocol = ["rounds", "duet", "units"]
builtin = "select-only"
clients = "1/core"
{load}
scale = 10
settings = {{ shared_buffers = "512MB" }}
prewarm = true
metric = "latency_p50_us"
"""
LOADS = {"W1": "", "W4": 'load = "50%"'}
RUN_S, TRIAL_S = 2, 4
#: A block of each protocol, about, as a round and a set hold three runs each.
BLOCK_S: dict[str, float] = {"rounds": 11.0, "duet": 12.0, "units": 6.5}
#: Blocks: how many are planned at least, and how many give an interval two ends.
LEAST, HONEST = 2, 6


def study(names: list[str], seconds: float, open_gates: bool) -> str:
    """A study of these workloads in this time."""
    third = seconds / len(names) / len(BLOCK_S)
    planned = {kind: max(LEAST, int(third / block_s)) for kind, block_s in BLOCK_S.items()}
    if min(planned.values()) < HONEST:
        print(f"this is too short for intervals: they need {HONEST} blocks of each protocol")
    bound = "100%" if open_gates else "5%"
    text = STUDY.format(run_s=RUN_S, trial_s=TRIAL_S, bound=bound, **planned)
    return text + "".join(WORKLOAD.format(name=name, load=LOADS[name]) for name in names)


def measured(text: str, seed: int) -> LadderResult:
    """The result of a study, played here and now."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "study.toml")
        path.write_text(text)
        # a quick study says that it is short; another one refuses to be
        planned = planning.plan(
            path, Path(directory, "out"), quick=True, workloads=(), seed=seed, command=[]
        )
        run.conduct(planned, Console(stderr=True))
        return run.result(planned)


def tighter(found: SideBySide) -> list[str]:
    """How much tighter than rounds each of the other protocols is in the same time."""
    base, *others = found.ways
    return [f"{found.workload}: {_ratio(base, way)}" for way in others if way.se_pct]


def _ratio(base: Way, way: Way) -> str:
    assert base.se_1min_pct is not None
    assert way.se_1min_pct is not None
    ratio = base.se_1min_pct / way.se_1min_pct
    # of two variances: each standard error rests on its own blocks only
    lo, hi = (
        ratio * stats.f.ppf(p, way.blocks - 1, base.blocks - 1) ** 0.5 for p in (0.025, 0.975)
    )
    name, other = (PROTOCOLS[one.protocol].words.name for one in (way, base))
    return (
        f"in the same time {name} is {ratio:.1f} [{lo:.1f}, {hi:.1f}] times tighter than {other} "
        "(standard errors)"
    )


def main() -> None:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", nargs="*", choices=sorted(LOADS), default=sorted(LOADS))
    parser.add_argument("--seconds", type=float, default=540.0, help="of all protocols together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--open-gates", action="store_true", help="count runs next to other load")
    args = parser.parse_args()
    result = measured(study(args.workload, args.seconds, args.open_gates), args.seed)
    for workload in result.workloads:
        if workload.why_not:
            raise MeasurementError(f"{workload.called}: {workload.why_not}")
    terminal.render(result, Console(width=120))
    for found in result.side_by_side:
        if found.arm == "TRA":
            print("\n".join(tighter(found)))


if __name__ == "__main__":
    main()
