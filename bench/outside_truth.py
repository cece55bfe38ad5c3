"""Weighing from outside against an injector that counts what it took, by network and neighbours.

An extension (spinner/) spins in statements, and counts what it took. One trial has arms of 0, 1 and
5 µs in all statements, and of 5 µs in the script's statement only and in the stamp only. Under each
condition one recording is made and cut into parts; an interval covers if the truth is within it, or
off by no more than 1 % + 0.05 µs. Right after it, a minute of pgbench with the same statement and
the same way to the server is weighed by the server module, beside what the injector counted then:
it sees no stamps.

The exit status is 1 if over all conditions and arms intervals cover in fewer than 94 %, but for
what a correct program shows once in 10,000 times; or if more than 5 % of the parts of quiet
conditions limit the answer because bursts were held up.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import scipy
from psycopg.conninfo import make_conninfo
from rich.console import Console

from bench import harness, slow_network
from bench.answer_truth import injector
from bench.harness import say
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.bursts import DISTURBED_SOME
from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.postgres import own_session
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench
from pgtare.postgres.load.spec import Script
from pgtare.postgres.modules import loadable
from pgtare.weighing.instruments.arms import parse_arm
from pgtare.weighing.outside.run import weigh
from pgtare.weighing.outside.transactions import LOOK_UP
from pgtare.weighing.weigh.request import Request

TAKES = "90 minutes (--seconds, --parts)"
MODULE_S = 60

#: Arm: settings, and the delay that the injector counts for it, in ns; None if none is a
#: transaction's.
ARMS = {
    "a0": ("spinner.settled_ns=0, spinner.only=2", 0),
    "a1": ("spinner.settled_ns=1000", 1_000),
    "a5": ("spinner.settled_ns=5000", 5_000),
    "script5": ("spinner.settled_ns=5001, spinner.only=2", 5_001),
    "stamp5": ("spinner.settled_ns=5002, spinner.only=1", None),
}
LEAST, CHANCE = 0.94, 1e-4
MOST_LIMITED = 0.05
PORT = 59_321


@dataclass(frozen=True)
class Condition:
    """How the server is reached, and what else goes on."""

    name: str
    late_ms: tuple[float, float] | None  # None: by the Unix socket; (0, 0): TCP without a relay
    busy: bool


CONDITIONS = [
    Condition(f"{how}, {'two busy loops' if busy else 'quiet'}", late_ms, busy)
    for busy in (False, True)
    for how, late_ms in (
        ("Unix socket", None),
        ("TCP", (0.0, 0.0)),
        ("0.3-1 ms late", (0.3, 1.0)),
        ("5-15 ms late", (5.0, 15.0)),
    )
]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=600, help="of each recording")
    parser.add_argument("--parts", type=int, default=100, help="of each recording")
    parser.add_argument("--only", help="conditions whose name holds this")


def main(args: argparse.Namespace) -> int:
    """Print a row for each condition and arm."""
    print(
        "| condition | arm | truth µs | mean µs | median half-width µs | covered | limited "
        "| held up | truth in the minute after µs | module µs |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    covered = parts = limited = quiet = 0
    module = loadable(from_wheel())
    with tempfile.TemporaryDirectory() as work:
        script = Path(work) / "script.sql"
        script.write_text(f"\\set oid random(1, 16000)\n{LOOK_UP.replace('$1', ':oid')};\n")
        library = injector(from_wheel(), Path(work))
        libraries = [module.library, library]
        with Cluster(from_wheel(), {"pgtare.ring_memory": "128MB"}, libraries, tcp=True) as cluster:
            with cluster.connect(autocommit=True) as conn:
                create = (Path(__file__).with_name("spinner") / "spinner--1.0.sql").read_text()
                conn.execute(create.replace("MODULE_PATHNAME", library).encode())
                conn.execute(module.create_sql.encode())
            for condition in CONDITIONS:
                if args.only and args.only not in condition.name:
                    continue
                found = _recorded(cluster, condition, script, args.seconds, args.parts)
                covered += found.covered
                parts += found.parts
                if not condition.busy:
                    limited += found.limited
                    quiet += found.parts
    least = scipy.stats.binom.ppf(CHANCE, parts, LEAST) if parts else 0
    print(
        f"covered {covered} of {parts} (at least {least:.0f}), limited {limited} of {quiet} quiet"
    )
    return int(covered < least or limited > MOST_LIMITED * quiet)


@dataclass
class _Found:
    covered: int = 0
    limited: int = 0
    parts: int = 0


def _recorded(
    cluster: Cluster, condition: Condition, script: Path, seconds: float, parts: int
) -> _Found:
    with _way(cluster, condition) as dsn, _neighbours(condition.busy):
        with cluster.connect(autocommit=True) as conn:
            conn.execute("SELECT public.spinner_forget()")
        request = Request(
            chosen=tuple(parse_arm(f"{name}: {settings}") for name, (settings, _) in ARMS.items()),
            duration_s=seconds,
            dsn=dsn,
            outside=True,
        )
        with open(os.devnull, "w") as nowhere:
            done = weigh(request, [], Console(file=nowhere))
        with cluster.connect(autocommit=True) as conn:
            counted = _counted(conn)
        inside = _inside(cluster, dsn, script, min(MODULE_S, seconds))
    say(f"{condition.name}: {len(done.observations):,} runs")
    return _judged(condition, done.observations, done.design, counted, parts, inside)


def _inside(cluster: Cluster, dsn: str, script: Path, seconds: float) -> dict[str, str]:
    """What the injector counted and what the module found, by arm, as the end of a row."""
    off = {"spinner.settled_ns": "0", "spinner.only": "0"}
    arms = [Arm("base", "base", off)]
    for name, (settings, _) in ARMS.items():
        arms.append(Arm(name, "instrument", off | parse_arm(f"{name}: {settings}").settings))
    design = Design(tuple(arms), block_layout(len(arms)), 1)
    spec = LoadSpec(clients=1, scripts=(Script(script),), protocol="prepared")
    with (
        own_session.connect(cluster.dsn()) as conn,
        PgbenchLoad(find_pgbench(cluster.binaries), dsn, spec) as load,
    ):
        load.wait_ready()
        conn.execute("SELECT public.spinner_forget()")
        observations = harness.record(conn, design, load, seconds)
        counted = _counted(conn)
    found = analyse(observations, design, proven=dict.fromkeys(ARMS, True))
    rows = {}
    for name, arm in zip(ARMS, found.arms[1:], strict=True):
        asked = ARMS[name][1]
        truth = counted[asked] - counted[0] if asked else 0.0
        assert arm.answer is not None
        us = arm.answer.us
        rows[name] = f"| {truth:.2f} | {us.estimate:.3f} ± {us.half_width:.3f} |"
    return rows


def _counted(conn: psycopg.Connection[Any]) -> dict[int, float]:
    """What the injector took, in µs, by the delay that was asked for."""
    rows = conn.execute("SELECT * FROM public.spinner_counted()").fetchall()
    return {int(row[0]): row[2] / row[1] / 1000 for row in rows if row[1]}


def _judged(
    condition: Condition,
    rows: npt.NDArray[Any],
    design: Design,
    counted: dict[int, float],
    parts: int,
    inside: dict[str, str],
) -> _Found:
    found = _Found()
    edges = np.linspace(0, int(rows["start_us"].max()) + 1, parts + 1)
    which = np.searchsorted(edges, rows["start_us"], side="right") - 1
    estimates = [
        analyse(rows[which == part], design, proven=dict.fromkeys(ARMS, True))
        for part in range(parts)
    ]
    held_up = np.array([each.disturbed_pct for each in estimates])
    for index, arm in enumerate(design.arms):
        if arm.role != "instrument":
            continue
        asked = ARMS[arm.name][1]
        truth = 0.0 if not asked else counted[asked] - counted[0]
        slack = 0.01 * truth + 0.05
        answers = [each.arms[index].answer for each in estimates]
        us = [answer.us for answer in answers if answer is not None]
        hits = sum(each.lo - slack <= truth <= each.hi + slack for each in us)
        limits = int(np.count_nonzero(held_up > DISTURBED_SOME))
        found.covered += hits
        found.parts += len(us)
        found.limited += limits
        print(
            f"| {condition.name} | {arm.name} | {truth:.2f} "
            f"| {np.nanmean([e.estimate for e in us]):.3f} "
            f"| {np.nanmedian([e.half_width for e in us]):.3f} | {hits} of {len(us)} "
            f"| {limits} | {np.nanmean(held_up):.0f} % {inside[arm.name]}",
            flush=True,
        )
    return found


@contextlib.contextmanager
def _way(cluster: Cluster, condition: Condition) -> Iterator[str]:
    """A connection string that reaches the server in this way."""
    if condition.late_ms is None or condition.late_ms == (0.0, 0.0):
        yield cluster.dsn(tcp=condition.late_ms is not None)
        return
    relay = multiprocessing.Process(
        target=slow_network.run, args=(PORT, cluster.port, condition.late_ms), daemon=True
    )
    relay.start()
    try:
        time.sleep(1)
        yield make_conninfo(cluster.dsn(tcp=True), port=PORT)
    finally:
        relay.terminate()
        relay.join()


def _spin() -> None:
    while True:
        pass


@contextlib.contextmanager
def _neighbours(busy: bool) -> Iterator[None]:
    loops = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(2 if busy else 0)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.terminate()
            loop.join()
