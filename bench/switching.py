"""What a trial itself costs: switching by number of settings, throughput, and the module loaded."""

from __future__ import annotations

import argparse
import os
import re
import subprocess

import numpy as np
from scipy import stats

from bench import harness
from pgtare.estimate.trial.design import Arm, Design
from pgtare.load import find_pgbench
from pgtare.server import own_session
from pgtare.weighing.trials import Population, Trials

NAME = "pgtare-bench"
RUN_TRANSACTIONS = 8000

SETTINGS = (
    "track_io_timing",
    "compute_query_id",
    "log_duration",
    "log_lock_waits",
    "track_functions",
    "log_statement",
    "log_min_duration_statement",
    "enable_seqscan",
    "enable_sort",
    "enable_hashagg",
    "enable_material",
    "enable_memoize",
)
VALUES = {
    "track_functions": "none",
    "log_statement": "none",
    "log_min_duration_statement": "-1",
    "enable_seqscan": "on",
    "enable_sort": "on",
    "enable_hashagg": "on",
    "enable_material": "on",
    "enable_memoize": "on",
}


def switching(target: harness.Server, seconds: float) -> None:
    """Cost of a switch, and its share of the load's time, by number of settings."""
    print("settings  switch µs (mean)  median  share of the time")
    with harness.load(target, 1) as running:
        for n in (1, 4, 8, 12):
            chosen = {name: VALUES.get(name, "off") for name in SETTINGS[:n]}
            design = harness.two_arms(chosen, chosen, 1)
            data = np.sort(harness.record(target, running, design, seconds), order="unit")
            spacing = np.diff(data["start_ns"]).mean()
            switch = data["switch_ns"][1:]
            print(
                f"{n:8d}  {switch.mean() / 1000:16.2f}  {np.median(switch) / 1000:6.2f}"
                f"  {100 * switch.mean() / spacing:13.1f} %",
                flush=True,
            )


def short_run(target: harness.Server) -> float:
    """Microseconds a transaction of one pgbench -S, so short that pairs meet little drift."""
    done = subprocess.run(
        [find_pgbench(target.binaries), "-n", "-S", "-t", str(RUN_TRANSACTIONS), target.dsn],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PGAPPNAME": NAME},
    )
    found = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return 1e6 / float(found[1])


def trial_or_not(target: harness.Server, pairs: int) -> None:
    """Time a transaction takes in a trial against outside one, in pairs of short runs."""
    chosen = {name: VALUES.get(name, "off") for name in SETTINGS[:6]}
    design = Design(
        tuple(
            Arm("base" if i == 0 else f"arm{i}", "base" if i == 0 else "instrument", chosen)
            for i in range(6)
        ),
        tuple(range(6)),
        1,
    )
    for cpu in (False, True):
        differences = []
        with own_session.connect(target.dsn) as conn:
            module = Trials(conn)

            def one(name: str, cpu: bool = cpu, module: Trials = module) -> float:
                module.start(design, Population(None, application=name, sessions=2), 60, cpu=cpu)
                try:
                    return short_run(target)
                finally:
                    module.stop()

            for flip in np.random.default_rng(1).integers(0, 2, pairs):
                # a trial in which nobody takes part is outside, with the same calls around it
                found = {name: one(name) for name in ((NAME, "nobody"), ("nobody", NAME))[flip]}
                differences.append((found[NAME], found["nobody"]))
        what = f"in a trial of 6 settings, CPU {'taken' if cpu else 'not taken'}"
        _tell(what, np.array(differences))


def loaded_or_not(pairs: int) -> None:
    """Time a transaction takes with the module loaded, no trial, against a server without it."""
    differences = []
    with harness.server() as loaded, harness.server(module=False) as plain:
        for target in (loaded, plain):
            for _ in range(3):
                short_run(target)
        for flip in np.random.default_rng(2).integers(0, 2, pairs):
            order = (True, False) if flip else (False, True)
            found = {which: short_run(loaded if which else plain) for which in order}
            differences.append((found[True], found[False]))
    _tell("with the module loaded, and no trial", np.array(differences))


def _tell(what: str, pairs: np.ndarray) -> None:
    """The 20 % trimmed mean of the pairs' differences, as single runs stall; Yuen's interval."""
    d = np.sort(pairs[:, 0] - pairs[:, 1])
    cut = len(d) // 5
    kept = d[cut : len(d) - cut]
    winsorised = np.clip(d, kept[0], kept[-1])
    df = len(kept) - 1
    se = winsorised.std(ddof=1) / (0.6 * len(d) ** 0.5)
    mean, half = kept.mean(), stats.t.ppf(0.975, df) * se
    base = np.median(pairs[:, 1])
    print(
        f"{what}: {mean:+.2f} µs [{mean - half:+.2f}, {mean + half:+.2f}] a transaction of "
        f"{base:.1f} µs ({100 * mean / base:+.1f} %), {len(d)} pairs of runs of "
        f"{RUN_TRANSACTIONS} transactions",
        flush=True,
    )


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=int, default=6)
    args = parser.parse_args()
    with harness.server() as target:
        switching(target, args.seconds)
        trial_or_not(target, args.pairs)
    loaded_or_not(args.pairs)


if __name__ == "__main__":
    main()
