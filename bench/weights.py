"""What wait timing costs a transaction: weighed on four loads, from few waits to little else."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgtare.server.binaries import Binaries, from_wheel
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable

TAKES = "4 minutes"

INSERT = "INSERT INTO bench_rows VALUES (1);\n"

_ARMS = "wait_event_timing wait_event_timing/trace"


@dataclass(frozen=True)
class Load:
    """A load, and the server settings that give it its waits.

    script: what its transactions run, if it is none of pgbench's own.
    """

    title: str
    options: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    script: str | None = None


LOADS = (
    Load("cached look-ups", ("--load", "select-only"), {"shared_buffers": "512MB"}),
    Load("buffer misses", ("--load", "select-only"), {"shared_buffers": "1MB"}),
    Load("tpcb-like", ("--load", "tpcb-like"), {"shared_buffers": "512MB"}),
    Load("LWLocks: one-row commits, 32 clients", ("--clients", "32"), script=INSERT),
)


def weigh(found: Binaries, load: Load, seconds: float) -> dict[str, Any]:
    """The result document of one weighing on a server of its own."""
    modules = [loadable(found, name) for name in ("pgtare", "wait_event_timing")]
    settings = {"pgtare.ring_memory": "128MB", **load.settings}
    with (
        Cluster(found, settings, [m.library for m in modules]) as cluster,
        tempfile.TemporaryDirectory() as work,
    ):
        with cluster.connect() as conn:
            for module in modules:
                conn.execute(module.create_sql.encode())
            conn.execute("CREATE TABLE bench_rows (v int)")
        options = list(load.options)
        if load.script is not None:
            script = Path(work, "load.sql")
            script.write_text(load.script)
            options += ["--script", str(script)]
        arguments = f"weigh {_ARMS} --duration {seconds:g}s --json --yes".split()
        done = subprocess.run(
            [sys.executable, "-m", "pgtare", *arguments, "--dsn", cluster.dsn(), *options],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def interval(found: dict[str, float]) -> str:
    """An estimate with its interval, with as many digits as it is wide."""
    digits = 3 if found["hi"] - found["lo"] < 0.5 else 1
    estimate, lo, hi = (f"{found[key]:+.{digits}f}" for key in ("estimate", "lo", "hi"))
    return f"{estimate} [{lo}, {hi}]".replace("-", "\N{MINUS SIGN}")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--duration", type=float, default=60, help="seconds for each load")
    parser.add_argument("--only", help="loads whose title contains this")


def main(args: argparse.Namespace) -> None:
    """Print a row for each load and level."""
    found = from_wheel()
    print("| load, base µs | arm | service time, µs | % | CPU a cycle, µs | verdict |")
    print("|---|---|---|---|---|---|")
    for load in LOADS:
        if args.only and args.only not in load.title:
            continue
        document = weigh(found, load, args.duration)
        base = document["baseline"]["body_mean_us"]
        for arm in document["arms"][1:]:
            effect = arm["effect"]
            print(
                f"| {load.title}, {base:.1f} | {arm['name']} | {interval(effect['body_us'])} |"
                f" {interval(effect['body_pct'])} | {interval(effect['cpu_us'])} |"
                f" {arm['verdict'] or ''} |",
                flush=True,
            )
