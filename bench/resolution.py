"""How much tighter is randomising per transaction than alternating whole runs?

Both estimate what pg_stat_statements.track = top adds to the mean service time below the pooled
99.9th percentile (the body), both read the module's stopwatch, and both get the same time, in turns
on the same machine: some pairs of whole runs, then a trial of the same length, and so on.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import stats

from bench import harness
from pgtare.estimate.trial import analyse
from pgtare.estimate.trial.observations import UnitFlag

OFF = {"compute_query_id": "off", "pg_stat_statements.track": "none"}
ON = {"compute_query_id": "on", "pg_stat_statements.track": "top"}


def one_run(
    target: harness.Server, settings: dict[str, str], clients: int, seconds: float, seed: int
) -> np.ndarray:
    """Service times (µs) of a whole run with these settings in its sessions."""
    design = harness.two_arms({}, {}, seed)
    with harness.options(settings), harness.load(target, clients) as running:
        data = harness.record(target, running, design, seconds)
    return data["service_ns"][(data["flags"] & UnitFlag.UNBLOCKED) == 0] / 1000.0


def one_trial(target: harness.Server, clients: int, seconds: float, seed: int) -> np.ndarray:
    """Observations of a randomised trial."""
    design = harness.two_arms(ON, OFF, seed)
    with harness.load(target, clients) as running:
        return harness.record(target, running, design, seconds)


def compare(target: harness.Server, clients: int, pairs: int, run_s: float, turns: int) -> None:
    """Measure and print one line of the comparison."""
    rng = np.random.default_rng(clients)
    runs: list[tuple[np.ndarray, np.ndarray]] = []
    parts: list[np.ndarray] = []
    for turn in range(turns):
        for _ in range(pairs // turns):
            order = [True, False] if rng.random() < 0.5 else [False, True]
            found = {on: one_run(target, ON if on else OFF, clients, run_s, 1) for on in order}
            runs.append((found[True], found[False]))
        part = one_trial(target, clients, 2 * run_s * (pairs // turns), 100 + turn).copy()
        # each turn has sessions and a seed of its own
        part["backend"] += turn * 1000
        parts.append(part)
        harness.say(f"{clients} client(s): turn {turn + 1} of {turns} done")
    data = np.concatenate(parts)
    estimate = analyse(data, harness.two_arms(ON, OFF, 0), seed=1).arms[1].effect
    assert estimate is not None
    body = estimate.body_us

    cap = float(np.quantile(np.concatenate([x for pair in runs for x in pair]), 0.999))
    d = np.array([np.minimum(on, cap).mean() - np.minimum(off, cap).mean() for on, off in runs])
    se_runs = float(d.std(ddof=1)) / len(d) ** 0.5
    df = len(d) - 1
    # the runs' standard error rests on few pairs, the trial's on thousands of clusters
    lo = (df / stats.chi2.ppf(0.975, df)) ** 0.5
    hi = (df / stats.chi2.ppf(0.025, df)) ** 0.5
    ratio = se_runs / body.se
    print(
        f"{clients} client(s), {len(d)} pairs of runs of {run_s:g} s against "
        f"{2 * run_s * pairs:g} s of trial\n"
        f"  whole runs:      {d.mean():+.3f} µs, standard error {se_runs:.3f} µs\n"
        f"  per transaction: {body.estimate:+.3f} µs, standard error {body.se:.3f} µs "
        f"(of {len(data):,} transactions, cap {cap:.0f} µs)\n"
        f"  ratio of standard errors {ratio:.1f} [{ratio * lo:.1f}, {ratio * hi:.1f}]",
        flush=True,
    )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--run-seconds", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4])
    args = parser.parse_args()
    with harness.server(["pg_stat_statements"]) as target:
        for clients in args.clients:
            compare(target, clients, args.pairs, args.run_seconds, args.turns)


if __name__ == "__main__":
    main()
