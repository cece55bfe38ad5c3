"""The same transactions by the server module and by their client's clock.

A client of our own is weighed and reads its clock around each transaction, so that both know every
transaction and its arm. It shares the server's processor, or has another one and sleeps while it
waits for an answer, or polls. What an instrument adds by the client's clock is a little more: the
calls that receive and send find colder caches, and lie outside a service time, or in part.

The exit status is 1 if, for the dearest instrument, the module does not say between 0.75 and 1.05
of what its client saw.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg

from bench import harness
from bench.gold_standard import WEIGHED, design
from pgtare.errors import MeasurementError
from pgtare.estimate.arrays import Bools, Floats, Ints
from pgtare.estimate.trial.observations import Observations
from pgtare.estimate.trial.runs import DROPPED
from pgtare.postgres import own_session
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.modules import loadable
from pgtare.weighing.trials import Population, Trials

TAKES = "2 minutes (--seconds)"

STATEMENT = "SELECT abalance FROM pgbench_accounts WHERE aid = 4711"
SAME, SLEEPS, POLLS = "on the same processor", "on another one, sleeps", "on another one, polls"
CONDITIONS = (SAME, SLEEPS, POLLS)
#: Between transactions the client works, as pgbench does: ns.
THINKS_NS = 8_000
PARTS = 50
LEAST, MOST = 0.75, 1.05


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=20, help="of each condition")


def main(args: argparse.Namespace) -> int:
    """Print what each says, by condition and instrument."""
    module = loadable(from_wheel())
    libraries = [module.library, "pg_stat_statements", "auto_explain"]
    bad = False
    with (
        harness.server(libraries, {"pgtare.ring_memory": "256MB"}) as target,
        own_session.connect(target.dsn) as conn,
        tempfile.TemporaryDirectory() as work,
    ):
        conn.execute(module.create_sql.encode())
        server = psutil.Process(conn.info.backend_pid).parent()
        assert server is not None
        for process in (server, *server.children()):
            process.cpu_affinity([0])
        print("| client | instrument | client's clock µs | module µs | ratio |")
        print("|---|---|---|---|---|")
        for condition in CONDITIONS:
            rows, times = both(conn, target.dsn, condition, args.seconds, Path(work) / "times.npy")
            bad |= not told(condition, rows, times)
    return int(bad)


def both(
    conn: psycopg.Connection[Any], dsn: str, condition: str, seconds: float, kept: Path
) -> tuple[Observations, Floats]:
    """What the module observed of a client, and that client's times in ns, of the same units."""
    work = multiprocessing.Process(target=client, args=(dsn, condition, seconds, kept))
    work.start()
    trials = Trials(conn)
    population = Population(conn.info.dbname, application="timed", sessions=5)
    trials.start(design(WEIGHED, 1, held=False), population, seconds + 30, cpu=False)
    parts = []
    while work.is_alive():
        parts.append(trials.drain())
        time.sleep(0.1)
    parts.append(trials.drain())
    if trials.status().lost:
        raise MeasurementError("observations were lost, so that they do not match the times")
    trials.stop()
    rows, times = np.concatenate(parts), np.load(kept)
    rows = rows[np.argsort(rows["start_ns"])]
    several = min(len(rows), len(times))  # the trial may have begun after the client
    return rows[-several:], times[-several:]


def client(dsn: str, condition: str, seconds: float, kept: Path) -> None:
    """Ask for one row over and over, and keep how long each answer took."""
    os.sched_setaffinity(0, {0 if condition == SAME else 1})
    with psycopg.connect(dsn, autocommit=True, application_name="timed") as conn:
        pgconn = conn.pgconn
        pgconn.prepare(b"timed", STATEMENT.encode())
        time.sleep(1)  # the trial begins
        times = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if condition == POLLS:
                times.append(round_trip_ns(pgconn))
                continue
            began = time.perf_counter_ns()
            pgconn.exec_prepared(b"timed", [])
            ended = time.perf_counter_ns()
            times.append(ended - began)
            while time.perf_counter_ns() < ended + THINKS_NS:
                pass
    np.save(kept, np.array(times, dtype=float))


def round_trip_ns(pgconn: psycopg.pq.abc.PGconn) -> int:
    """One transaction by the client's clock. The client polls: nobody has to wake it."""
    began = time.perf_counter_ns()
    pgconn.send_query_prepared(b"timed", [])
    while pgconn.is_busy():
        pgconn.consume_input()
    took = time.perf_counter_ns() - began
    while pgconn.get_result() is not None:
        pass
    return took


def told(condition: str, rows: Observations, times: Floats) -> bool:
    """Print both costs of each instrument; whether those of the dearest agree."""
    arm = rows["arm"].astype(int)
    changes = np.r_[True, arm[1:] != arm[:-1]]
    place = np.arange(len(arm))
    settled = place - np.maximum.accumulate(np.where(changes, place, 0)) >= DROPPED
    both_us = []
    for found in (times, rows["service_ns"].astype(float)):
        costs = [
            costs_of(found[part] / 1_000, arm[part], settled[part])
            for part in np.array_split(place, PARTS)
        ]
        both_us.append(np.array(costs))
    seen, said = (found.mean(axis=0) for found in both_us)
    errors = [2 * found.std(axis=0, ddof=1) / np.sqrt(PARTS) for found in both_us]
    for k, name in enumerate(WEIGHED):
        print(
            f"| {condition} | {name} | {seen[k]:.2f} ± {errors[0][k]:.2f} "
            f"| {said[k]:.2f} ± {errors[1][k]:.2f} | {said[k] / seen[k]:.2f} |",
            flush=True,
        )
    dearest = int(np.argmax(said))
    return bool(LEAST <= said[dearest] / seen[dearest] <= MOST)


def costs_of(us: Floats, arm: Ints, settled: Bools) -> list[float]:
    """What each instrument adds to the base's mean, its slowest hundredth and the base's cut."""
    base, costs = us[settled & (arm == 0)], []
    for k in range(1, len(WEIGHED) + 1):
        own = us[settled & (arm == k)]
        cut = np.mean([np.quantile(base, 0.99), np.quantile(own, 0.99)])
        costs.append(float(np.minimum(own, cut).mean() - np.minimum(base, cut).mean()))
    return costs
