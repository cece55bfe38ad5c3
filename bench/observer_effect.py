"""What reading wait timing's views, or resetting its counters, costs those who are watched.

Sessions with capture = stats run a script of sixteen waits a transaction. For a second at a
time, in random order, one more session reads all three views 0, 1, 10 or 100 times a second, or
resets the counters 1 or 10 times. Compared are the means of those spans, block by block.
"""

from __future__ import annotations

import argparse
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench import client_side, harness
from bench.latency_puzzle import CAPTURE, MODULE, reads_load
from pgtare.design import Arm, Design, block_layout
from pgtare.estimate.inference import Estimate
from pgtare.load import PgbenchLoad, find_pgbench
from pgtare.server import trials
from pgtare.server.binaries import from_wheel
from pgtare.server.modules import loadable
from pgtare.server.trials import Population, Trials
from pgtare.weigh import recording

VIEWS = tuple(f"pg_stat_wait_event_timing{kind}" for kind in ("_system", "", "_statements"))
GUARD_S = 0.1
NOTHING = "nothing"


@dataclass(frozen=True)
class Watching:
    """What the observer does in a span, and how often a second."""

    name: str
    hertz: float = 0.0
    reset: bool = False


CONDITIONS = (
    Watching(NOTHING),
    Watching("nothing again"),
    *(Watching(f"read {hertz} Hz", hertz) for hertz in (1, 10, 100)),
    *(Watching(f"reset {hertz} Hz", hertz, reset=True) for hertz in (1, 10)),
)


@dataclass
class Observer:
    """Does each span's watching in a thread; remembers when the spans were, and what it took."""

    dsn: str
    span_s: float
    seed: int
    began: list[float] = field(default_factory=list)  # clock, s
    ended: list[float] = field(default_factory=list)
    arm: list[int] = field(default_factory=list)
    took_s: dict[int, list[float]] = field(default_factory=dict)
    late: int = 0
    trouble: str = ""

    def watch(self, stop: threading.Event) -> None:
        """Blocks of spans in random order, until told to stop."""
        rng = random.Random(self.seed)
        try:
            with trials.connect(self.dsn) as conn:
                conn.execute(f"SET {CAPTURE} = off".encode())
                while not stop.is_set():
                    for arm in rng.sample(range(len(CONDITIONS)), len(CONDITIONS)):
                        self._span(conn, arm, stop)
        except Exception as ex:  # told by the main thread
            self.trouble = trials.first_line(ex)

    def _span(self, conn: Any, arm: int, stop: threading.Event) -> None:
        watching = CONDITIONS[arm]
        began, clock = time.time(), time.monotonic()
        act = self._act(conn, watching)
        every = 1 / watching.hertz if watching.hertz else math.inf
        due = clock + every / 2
        while not stop.is_set() and (now := time.monotonic()) < clock + self.span_s:
            if now < due:
                stop.wait(min(due, clock + self.span_s) - now)
                continue
            act()
            took = time.monotonic() - now
            self.took_s.setdefault(arm, []).append(took)
            due += every
            self.late += took > every
        self.began.append(began)
        self.ended.append(time.time())
        self.arm.append(arm)

    def _act(self, conn: Any, watching: Watching) -> Callable[[], None]:
        def read() -> None:
            for view in VIEWS:
                conn.execute(f"SELECT * FROM {view}").fetchall()

        def reset() -> None:
            conn.execute("SELECT wait_event_timing_reset()")

        return reset if watching.reset else read


def observe(target: harness.Server, args: argparse.Namespace, clients: int) -> None:
    """One load's table."""
    spec = reads_load(args.reads, clients)
    # Two alike arms: the server module is the stopwatch, nothing is switched.
    stats = {CAPTURE: "stats"}
    design = Design((Arm("a", "base", stats), Arm("b", "control", stats)), block_layout(2), 1)
    observer = Observer(target.dsn, args.span, args.seed + clients)
    stop = threading.Event()
    thread = threading.Thread(target=observer.watch, args=(stop,), daemon=True)
    with (
        trials.connect(target.dsn) as conn,
        PgbenchLoad(find_pgbench(target.binaries), target.dsn, spec) as running,
    ):
        running.wait_ready()
        population = Population(
            conn.info.dbname, application=running.application_name, sessions=clients + 4
        )
        thread.start()
        try:
            got = recording.record(
                Trials(conn), design, population, args.seconds, cpu=True, load=running,
                look=lambda seconds, data: False, tick=lambda seconds, rows: None,
            )  # fmt: skip
        finally:
            stop.set()
            thread.join()
        started = Trials(conn).status().started
        lost = conn.execute(
            "SELECT missed, statements_missed FROM pg_stat_wait_event_timing_info"
        ).fetchone()
    if observer.trouble:
        raise SystemExit(f"the observer failed: {observer.trouble}")
    assert started is not None
    recorded = client_side.Recorded(got.observations, np.empty(0, np.int64), np.empty(0), math.nan)
    schedule = _schedule(observer, started.timestamp())
    columns = client_side.by_slice(recorded, schedule, guard_ns=round(GUARD_S * 1e9))
    own = ("service_us", "cpu_us", "tps")
    base = {name: float(np.nanmean(columns[name][schedule.arm == 0])) for name in own}
    print(
        f"{clients} client(s): {base['tps']:.0f} tx/s, {base['service_us']:.1f} µs, "
        f"{base['cpu_us']:.1f} µs CPU a cycle; {len(schedule.arm)} spans of {args.span:g} s; "
        f"since the last reset {lost[0]} waits missed, {lost[1]} missed by statement; "
        f"{observer.late} readings came late"
        if lost
        else ""
    )
    print("| the observer | service time | CPU a cycle | throughput | one reading or reset |")
    print("|---|---|---|---|---|")
    for arm, watching in enumerate(CONDITIONS[1:], start=1):
        service, cpu, tps = (schedule.difference(columns[name], arm, 0) for name in own)
        took = observer.took_s.get(arm)
        one = f"{1000 * float(np.median(took)):.1f} ms" if took else "–"
        print(
            f"| {watching.name} | {_in(service, base['service_us'])} | {_in(cpu, base['cpu_us'])} |"
            f" {_in(tps, base['tps'])} | {one} |",
            flush=True,
        )


def _schedule(observer: Observer, started_s: float) -> client_side.Schedule:
    """The observer's spans on the trial's clock; whole blocks of them, within the trial."""
    begin = np.array([round((at - started_s) * 1e9) for at in observer.began], dtype=np.int64)
    end = np.array([round((at - started_s) * 1e9) for at in observer.ended], dtype=np.int64)
    block = np.arange(len(begin), dtype=np.int64) // len(CONDITIONS)
    return client_side.Schedule(begin, end, np.array(observer.arm, dtype=np.int64), block)


def _in(found: Estimate, base: float) -> str:
    """In percent of the base."""
    return f"{100 * found.estimate / base:+.2f} ± {100 * found.half_width / base:.2f} %"


def main() -> None:
    """Print a table for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--span", type=float, default=1.0)
    parser.add_argument("--reads", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    library = loadable(from_wheel(), MODULE).library
    with harness.server([library], {"compute_query_id": "on"}) as target:
        with trials.connect(target.dsn) as conn:
            conn.execute(loadable(target.binaries, MODULE).create_sql.encode())
            conn.execute("CREATE EXTENSION pg_prewarm")
        for clients in args.clients:
            observe(target, args, clients)


if __name__ == "__main__":
    main()
