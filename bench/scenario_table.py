"""How often verdicts and intervals hold in hostile scenarios: the table of docs/method.md."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from bench.scenarios.contents import ALL
from bench.scenarios.registry import Counts, Scenario

TAKES = "20 minutes on two processors"
ONE_THREAD = True

#: Parts of a scenario, so that progress shows and both processes have work until the end.
_PARTS = 8
_SEED = 20_271


def seed_of(index: int, part: int) -> int:
    """A seed for each part of each scenario: with a shared one, rows would be off together."""
    return _SEED + 1_000 * (_PARTS * index + part)


def _part(index: int, trials: int, part: int) -> tuple[int, Counts]:
    return index, ALL[index].function(trials, seed_of(index, part))


def run(chosen: list[int], quick: bool, share: float, processes: int) -> dict[int, Counts]:
    """Counts by the scenario's number; progress goes to standard error."""
    jobs = []
    for index in chosen:
        trials = ALL[index].quick if quick else max(1, round(share * ALL[index].trials))
        sizes = [trials // _PARTS + (part < trials % _PARTS) for part in range(_PARTS)]
        jobs += [(index, size, part) for part, size in enumerate(sizes) if size]
    # part by part, so that the time left is known early, whatever a scenario takes
    jobs.sort(key=lambda job: job[2])
    found = {index: Counts(0, 0) for index in chosen}
    began = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        waiting = [pool.submit(_part, *job) for job in jobs]
        for done, future in enumerate(as_completed(waiting), start=1):
            index, counts = future.result()
            found[index] += counts
            left = (time.monotonic() - began) / done * (len(jobs) - done)
            print(f"\r{done} of {len(jobs)} parts, {left:.0f} s left   ", end="", file=sys.stderr)
    print(file=sys.stderr)
    return found


def row(scenario: Scenario, counts: Counts) -> str:
    """A line of the table."""
    sign = "≥" if scenario.at_least else "≤"
    held = "" if scenario.holds(counts) else "stated" if scenario.stated else "**missed**"
    cells = (
        scenario.name,
        scenario.checks,
        f"{counts.rate:.3f}",
        f"{counts.error:.3f}",
        f"{counts.trials:,}",
        f"{sign} {scenario.bound:.3g}",
        held,
    )
    return f"| {' | '.join(cells)} |"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="few trials: a check of the table")
    parser.add_argument("--share", type=float, default=1.0, help="of the trials, such as 0.2")
    parser.add_argument("--only", default="", help="scenarios with this in their name")
    parser.add_argument("--processes", type=int, default=2)


def main(args: argparse.Namespace) -> int:
    """Exit status 1 if a bound is missed that docs/method.md does not state."""
    chosen = [i for i, scenario in enumerate(ALL) if args.only in scenario.name]
    found = run(chosen, args.quick, args.share, args.processes)
    print("| scenario | what is counted | rate | Monte Carlo error | trials | required | |")
    print("|---|---|---|---|---|---|---|")
    for index in chosen:
        print(row(ALL[index], found[index]))
    for scenario in (ALL[index] for index in chosen):
        if scenario.stated:
            print(f"\n{scenario.name}: {scenario.stated}")
    return int(any(not ALL[i].holds(found[i]) and not ALL[i].stated for i in chosen))
