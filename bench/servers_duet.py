"""Two servers compared by sessions of the driver's on each, and by duet, in the same time.

Both servers have the library that spins (spinner/); the second spins for about a hundredth of what
a transaction takes, or not at all. The two methods take turns. For each round: what either says,
with its interval, in percent of its own base and in µs. The base of the sessions is the server's
time, that of the duet what a client waits, which is longer: so they compare in µs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.answer_truth import injector
from bench.harness import say
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import initialise

TAKES = "20 minutes (--rounds, --seconds)"

SPIN_NS = (0, 400)
_SCRIPT = "SELECT abalance FROM pgbench_accounts WHERE aid = 1;\n"
_STUDY = """
title = "Two servers"
[servers]
main = {{ source = "wheel" }}
[protocol]
rounds = 6
run = "10s"
[analysis]
floor = "A"
[quick]
rounds = 2
run = "2s"
warm_up = "1s"
[quick.duet]
sets = {sets}
run = "2s"
warm_up = "1s"
[gates]
steal_at_most = "100%"
other_load_at_most = "100%"
[[variant]]
name = "A"
preload = ["{library}"]
settings = {{ "spinner.settled_ns" = 0 }}
[[variant]]
name = "B"
preload = ["{library}"]
settings = {{ "spinner.settled_ns" = {ns} }}
[[comparison]]
arm = "B"
base = "A"
[[workload]]
name = "W1"
protocol = "duet"
builtin = "select-only"
clients = 1
scale = 1
settings = {{ shared_buffers = "64MB" }}
prewarm = true
metric = "latency_p50_us"
[[workload.profile]]
event = "*"
of = "sessions"
at_most = "100%"
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="of each measurement")


def main(args: argparse.Namespace) -> int:
    """Print a row for each measurement."""
    with tempfile.TemporaryDirectory() as work:
        library = injector(from_wheel(), Path(work))
        for number in range(args.rounds):
            for ns in SPIN_NS:
                for how in (_by_sessions, _by_duet):
                    began = time.monotonic()
                    lo, hi, base_us = how(library, ns, args.seconds, Path(work) / f"{number}-{ns}")
                    took, us = time.monotonic() - began, base_us / 100
                    say(
                        f"round {number + 1}, {ns} ns, {how.__name__[1:]}: {lo:+.2f} to {hi:+.2f} %"
                        f" (± {(hi - lo) / 2:.2f}) of {base_us:.1f} µs: {us * lo:+.2f} to "
                        f"{us * hi:+.2f} µs (± {us * (hi - lo) / 2:.2f}), {took:.0f} s in all"
                    )
    return 0


def _by_sessions(library: str, ns: int, seconds: float, place: Path) -> tuple[float, float, float]:
    """Both ends in percent, and the base in µs."""
    binaries = from_wheel()
    with (
        Cluster(binaries, {"spinner.settled_ns": "0"}, [library]) as first,
        Cluster(binaries, {"spinner.settled_ns": str(ns)}, [library]) as second,
    ):
        servers = []
        for name, cluster in (("A", first), ("B", second)):
            dsn = initialise(binaries, cluster.dsn(), 1).dsn
            servers += ["--server", f"{name}: {dsn}"]
        words = ["weigh", *servers, "--sql", _SCRIPT, "--protocol", "prepared", "--json"]
        found = _pgtare([*words, "-d", str(seconds)])
    pct = next(arm for arm in found["arms"] if arm["name"] == "B")["answer"]["pct"]
    return pct["lo"], pct["hi"], found["baseline"]["body_mean_us"]


def _by_duet(library: str, ns: int, seconds: float, place: Path) -> tuple[float, float, float]:
    """The same."""
    place.mkdir(exist_ok=True)
    study = place / "study.toml"
    sets = max(round(seconds / (3 * 3)), 6)  # rounds of 3 s, of three servers with the floor
    study.write_text(_STUDY.format(library=library, ns=ns, sets=sets))
    out = place / "out"
    _run(["ladder", str(study), "--quick", "--out", str(out)])
    found = json.loads((out / "result.json").read_text())
    workload = found["workloads"][0]
    effect = workload["compared"][0]["effect"]
    base = next(rung for rung in workload["rungs"] if rung["variant"] == "A")
    return effect["lo_pct"], effect["hi_pct"], base["metrics"]["latency_p50_us"]


def _pgtare(words: list[str]) -> Any:
    return json.loads(_run(words))


def _run(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pgtare", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(argparse.Namespace(rounds=1, seconds=20)))
