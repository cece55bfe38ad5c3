"""What reading wait timing's views, or resetting its counters, costs the sessions that are watched.

Sessions with capture = stats run a script of sixteen waits a transaction. Every 12 to 18 ms one
more session reads the three views, resets the counters, or does nothing, drawn by lot. How many
transactions began in the 5 ms after that moment, how long they took and how much processor time,
is compared with the 5 ms before it; doing nothing is the control, whose figures are subtracted.
What one reading costs, times the readings a second, is what watching costs.
"""

from __future__ import annotations

import argparse
import itertools
import random
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench import harness
from bench.latency_puzzle import CAPTURE, MODULE, reads_load
from pgtare.estimate.inference import Estimate, Reference
from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.estimate.trial.observations import Observations
from pgtare.load import PgbenchLoad, find_pgbench
from pgtare.server import own_session
from pgtare.server.binaries import from_wheel
from pgtare.server.modules import loadable
from pgtare.weighing.trials import Population, Trials

Floats = npt.NDArray[np.float64]
VIEWS = tuple(f"pg_stat_wait_event_timing{kind}" for kind in ("_system", "", "_statements"))
NOTHING, READ, RESET = range(3)
NAMES = {READ: "read three views", RESET: "reset"}
GAP_S = (0.012, 0.018)
WINDOW_NS = 5_000_000
HERTZ = (1, 10, 100)


@dataclass
class Observer:
    """Acts in a thread; remembers when it began what, and how long that took."""

    dsn: str
    seed: int
    began_s: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    trouble: str = ""

    def watch(self, stop: threading.Event) -> None:
        """Act by lot until stopped."""
        rng = random.Random(self.seed)
        try:
            with own_session.connect(self.dsn) as conn:
                conn.execute(f"SET {CAPTURE} = off".encode())
                while not stop.wait(rng.uniform(*GAP_S)):
                    kind, clock = rng.choice((NOTHING, READ, RESET)), time.monotonic()
                    self.began_s.append(time.time())
                    self.kind.append(kind)
                    if kind == READ:
                        for view in VIEWS:
                            conn.execute(f"SELECT * FROM {view}".encode()).fetchall()
                    elif kind == RESET:
                        conn.execute("SELECT wait_event_timing_reset()")
                    self.took_s.append(time.monotonic() - clock)
        except Exception as ex:  # reported by the main thread
            self.trouble = own_session.first_line(ex)


@dataclass(frozen=True)
class Effect:
    """Of one action on all watched sessions, beyond doing nothing, in the window after it."""

    transactions: Estimate
    service_us: Estimate
    cpu_us: Estimate


def windows(data: Observations, at_ns: npt.NDArray[np.int64]) -> dict[str, Floats]:
    """After each moment less before it (E,): transactions begun, and their means in µs."""
    order = np.argsort(data["start_ns"], kind="stable")
    start = data["start_ns"][order]
    edges = [np.searchsorted(start, at_ns + shift) for shift in (-WINDOW_NS, 0, WINDOW_NS)]
    counts = [(b - a).astype(np.float64) for a, b in itertools.pairwise(edges)]
    found = {"transactions": counts[1] - counts[0]}
    for name in ("service", "cpu"):
        values = data[f"{name}_ns"][order] / 1000.0
        sums = np.concatenate([[0.0], np.cumsum(np.minimum(values, np.quantile(values, 0.999)))])
        with np.errstate(invalid="ignore", divide="ignore"):
            before, after = (
                (sums[b] - sums[a]) / n
                for (a, b), n in zip(itertools.pairwise(edges), counts, strict=True)
            )
        found[f"{name}_us"] = after - before
    return found


def effect(found: dict[str, Floats], kind: npt.NDArray[np.int64], action: int) -> Effect:
    """An action's differences less those of doing nothing; Welch's interval."""
    return Effect(
        **{name: _less(v[kind == action], v[kind == NOTHING]) for name, v in found.items()}
    )


def _less(one: Floats, other: Floats) -> Estimate:
    one, other = (v[np.isfinite(v)] for v in (one, other))
    se = float(np.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other)))
    fewest = min(len(one), len(other))
    return Reference(fewest, fewest - 1).interval(float(one.mean() - other.mean()), se)


def observe(target: harness.Server, args: argparse.Namespace, clients: int) -> None:
    """One load's rows."""
    # Two alike arms: the server module is the stopwatch, nothing is switched.
    stats = {CAPTURE: "stats"}
    design = Design((Arm("a", "base", stats), Arm("b", "control", stats)), block_layout(2), 1)
    observer, stop = Observer(target.dsn, args.seed + clients), threading.Event()
    thread = threading.Thread(target=observer.watch, args=(stop,), daemon=True)
    with (
        own_session.connect(target.dsn) as conn,
        PgbenchLoad(
            find_pgbench(target.binaries), target.dsn, reads_load(args.reads, clients)
        ) as running,
    ):
        running.wait_ready()
        population = Population(
            conn.info.dbname, application=running.application_name, sessions=clients + 4
        )
        thread.start()
        try:
            got = harness.observe(
                Trials(conn), design, population, args.seconds, cpu=True, load=running
            )
        finally:
            stop.set()
            thread.join()
        started = Trials(conn).status().started
    if observer.trouble:
        raise SystemExit(f"the observer failed: {observer.trouble}")
    assert started is not None
    data = got.observations
    at_ns = ((np.array(observer.began_s) - started.timestamp()) * 1e9).astype(np.int64)
    took_s, kind = np.array(observer.took_s), np.array(observer.kind)[: len(observer.took_s)]
    whole = (at_ns > WINDOW_NS) & (at_ns < int(data["start_ns"].max()) - WINDOW_NS)
    keep = whole[: len(kind)]
    found = windows(data, at_ns[: len(kind)][keep])
    seconds = float(data["start_ns"].max() - data["start_ns"].min()) / 1e9
    rate = len(data) / seconds
    service_us = data["service_ns"].mean() / 1000
    print(f"| {clients} | none: {rate:.0f} tx/s, {service_us:.1f} µs | | | | | | |")
    for action, name in NAMES.items():
        seen = effect(found, kind[keep], action)
        times = int((kind[keep] == action).sum())
        took_ms = 1000 * float(np.median(took_s[kind == action]))
        shares = " | ".join(_share(seen.transactions, hertz, rate) for hertz in HERTZ)
        print(
            f"| {clients} | {name}, {times} times, {took_ms:.1f} ms"
            f" | {_pm(seen.transactions)} | {_pm(seen.service_us)} | {_pm(seen.cpu_us)} |"
            f" {shares} |",
            flush=True,
        )


def _pm(found: Estimate) -> str:
    return f"{found.estimate:+.2f} ± {found.half_width:.2f}"


def _share(transactions: Estimate, hertz: int, rate: float) -> str:
    share = 100 * hertz / rate
    return f"{share * transactions.estimate:+.3f} ± {share * transactions.half_width:.3f} %"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--reads", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    library = loadable(from_wheel(), MODULE).library
    with harness.server([library], {"compute_query_id": "on"}) as target:
        with own_session.connect(target.dsn) as conn:
            conn.execute(loadable(target.binaries, MODULE).create_sql.encode())
            conn.execute("CREATE EXTENSION pg_prewarm")
        print("| clients | action | transactions | service, µs | CPU, µs | 1 Hz | 10 Hz | 100 Hz |")
        print("|---|---|---|---|---|---|---|---|")
        for clients in args.clients:
            observe(target, args, clients)


if __name__ == "__main__":
    main()
