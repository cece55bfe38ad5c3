"""What a trial itself costs: switching by number of settings, throughput, and the module loaded."""

from __future__ import annotations

import argparse

import numpy as np

from bench import harness
from pgtare.design import Arm, Design
from pgtare.load import LoadSpec, find_pgbench
from pgtare.load.pgbench import run

SETTINGS = (
    "track_io_timing", "compute_query_id", "log_duration", "log_lock_waits", "track_functions",
    "log_statement", "log_min_duration_statement", "enable_seqscan", "enable_sort",
    "enable_hashagg", "enable_material", "enable_memoize",
)  # fmt: skip
VALUES = {
    "track_functions": "none", "log_statement": "none", "log_min_duration_statement": "-1",
    "enable_seqscan": "on", "enable_sort": "on", "enable_hashagg": "on", "enable_material": "on",
    "enable_memoize": "on",
}  # fmt: skip


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


def trial_or_not(target: harness.Server, pairs: int, seconds: int) -> None:
    """Throughput in a trial of six settings against none, alternating."""
    chosen = {name: VALUES.get(name, "off") for name in SETTINGS[:6]}
    design = Design(
        tuple(Arm("base" if i == 0 else f"arm{i}", "base" if i == 0 else "instrument", chosen)
              for i in range(6)), tuple(range(6)), 1,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    logs = []
    for _ in range(pairs):
        rates: dict[bool, float] = {}
        for with_trial in rng.permutation([True, False]).tolist():
            with harness.load(target, 1) as running:
                if with_trial:
                    harness.record(target, running, design, seconds)
                else:
                    # a trial in which nobody takes part costs the same drains
                    harness.record(target, _Nobody(running), design, seconds)
                rates[with_trial] = float(np.median([p.tps for p in running.progress[1:]]))
        logs.append(np.log(rates[True] / rates[False]))
    _ratio("throughput in a trial (6 settings, 6 arms, CPU not taken)", np.array(logs))


class _Nobody:
    """A load whose name no session carries."""

    def __init__(self, running: object) -> None:
        self._running = running
        self.application_name = "nobody"

    def __getattr__(self, name: str) -> object:
        return getattr(self._running, name)


def loaded_or_not(pairs: int, seconds: int) -> None:
    """Throughput of a server with the module loaded, no trial, against one without it."""
    spec = LoadSpec(clients=1, seed=1)
    rng = np.random.default_rng(2)
    logs = []
    with harness.server() as loaded, harness.server(module=False) as plain:
        pgbench = find_pgbench(loaded.binaries)
        for target in (loaded, plain):
            run(pgbench, target.dsn, spec, 2)
        for _ in range(pairs):
            rates = {
                which: run(pgbench, (loaded if which else plain).dsn, spec, seconds).tps
                for which in rng.permutation([True, False]).tolist()
            }
            logs.append(np.log(rates[True] / rates[False]))
    _ratio("throughput with the module merely loaded", np.array(logs))


def _ratio(what: str, logs: np.ndarray) -> None:
    mean, lo, hi = (100 * (np.exp(x) - 1) for x in harness.t_interval(logs))
    print(f"{what}: {mean:+.2f} % [{lo:+.2f}, {hi:+.2f}], {len(logs)} pairs", flush=True)


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=3)
    args = parser.parse_args()
    with harness.server() as target:
        switching(target, 2 * args.seconds)
        trial_or_not(target, args.pairs, args.seconds)
    loaded_or_not(args.pairs, args.seconds)


if __name__ == "__main__":
    main()
