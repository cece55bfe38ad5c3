"""What `pgtare agent` costs a server of 500 sessions.

pgbench offers a steady load. First the agent runs undisturbed, and its processor time is taken
minute by minute. Then come pairs of windows: in one the agent runs, in the other it is stopped
(SIGSTOP), in an order drawn by lot. An agent that goes on makes up for looks that it missed, so
windows with it hold no fewer looks than usual; the share is printed. The exit status is 1 if the
agent takes more than a hundredth of a processor, or more than 150 MB.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.agent_runs import AgentProcess, WatchedLoad, cpu_s, watched_load
from bench.harness import say
from pgtare.errors import MeasurementError
from pgtare.estimate.inference import Estimate, Reference, mean_of_blocks
from pgtare.estimate.study.rounds import Paired, paired
from pgtare.keeping.spool import reader

TAKES = "35 minutes; the machine should be idle"

MOST_CPU_SHARE, MOST_BYTES = 0.01, 150_000_000
MARGIN = 0.005
#: The agent's first minute has the doctor's look and all texts of statements.
WARM_UP_S, BLOCK_S = 70.0, 60.0
WAITS_S = 10.0
_TRIES, _PAUSE_S = 100, 0.02


@dataclass(frozen=True)
class WindowFigures:
    """One window. agent_share, query_share: of one processor; cpu_us: of a transaction."""

    agent_runs: bool
    began_us: int
    ended_us: int
    tps: float
    latency_ms: float
    cpu_us: float
    agent_share: float
    query_share: float

    @property
    def with_queries_us(self) -> float:
        """Processor time of a transaction with what the agent's queries take, in µs."""
        return self.cpu_us + 1e6 * self.query_share / self.tps


def measure(load: WatchedLoad, agent: AgentProcess, seconds: float, runs: bool) -> WindowFigures:
    """Let the load run for a while, and take its figures."""
    backends, backend = load.backends(), load.agent_backend()
    if backend is None:
        raise MeasurementError(f"the agent has lost its session: {agent.log[-500:]}")
    reports = len(load.running.progress)

    def clocks() -> tuple[float, ...]:
        return (
            time.time(),
            time.monotonic(),
            float(load.transactions()),
            cpu_s(backends),
            agent.cpu_s(),
            cpu_s([backend]),
        )

    before = clocks()
    time.sleep(seconds)
    after = clocks()
    _, took, done, spent, agent_cpu, query_cpu = (b - a for a, b in zip(before, after, strict=True))
    load.running.check()
    later = load.running.progress[reports:]
    weights = [report.tps for report in later]
    latency = np.average([report.latency_ms for report in later], weights=weights)
    return WindowFigures(
        agent_runs=runs,
        began_us=round(before[0] * 1e6),
        ended_us=round(after[0] * 1e6),
        tps=done / took,
        latency_ms=float(latency),
        cpu_us=1e6 * spent / done,
        agent_share=agent_cpu / took,
        query_share=query_cpu / took,
    )


def stop(load: WatchedLoad, agent: AgentProcess) -> None:
    """Stop the agent between two of its transactions: else the server would end its session."""
    query = "SELECT state FROM pg_stat_activity WHERE pid = %s"
    for _ in range(_TRIES):
        agent.send(signal.SIGSTOP)
        time.sleep(_PAUSE_S)
        if load.conn.execute(query, (load.agent_backend(),)).fetchone() == ("idle",):
            return
        agent.send(signal.SIGCONT)
        time.sleep(_PAUSE_S)
    raise MeasurementError("the agent is never between two looks")


def pairs(
    load: WatchedLoad, agent: AgentProcess, number: int, seconds: float, seed: int
) -> list[tuple[WindowFigures, WindowFigures]]:
    """Windows with the agent and without it, in this order whatever came first."""
    rng, found = random.Random(seed), []
    for index in range(number):
        order = [True, False]
        rng.shuffle(order)
        windows = {}
        for runs in order:
            if runs:
                agent.send(signal.SIGCONT)
            else:
                stop(load, agent)
            windows[runs] = measure(load, agent, seconds, runs)
        agent.send(signal.SIGCONT)
        found.append((windows[True], windows[False]))
        on, off = found[-1]
        say(
            f"pair {index + 1} of {number}: {on.tps:.0f} and {off.tps:.0f} tx/s, "
            f"{on.cpu_us:.1f} and {off.cpu_us:.1f} µs of processor time a transaction"
        )
    return found


def compare(found: list[tuple[WindowFigures, WindowFigures]], name: str, seed: int) -> Paired:
    """On against off, as differences of logarithms."""
    table = np.log([[getattr(window, name) for window in pair] for pair in found])
    return paired(table[:, 0] - table[:, 1], margin=MARGIN, seed=seed)


def looks_share(spool: Path, found: list[tuple[WindowFigures, WindowFigures]]) -> float:
    """Looks at waits in windows with the agent, as a share of those of an undisturbed one."""
    rows = reader.query(spool, "SELECT epoch_us(ts) FROM ticks WHERE source = 'waits'").rows
    times = np.array([us for (us,) in rows])
    on = [window for window, _ in found]
    looks = sum(int(((times > w.began_us) & (times <= w.ended_us)).sum()) for w in on)
    return looks * WAITS_S / sum((w.ended_us - w.began_us) / 1e6 for w in on)


def own_table_share(spool: Path, windows: list[WindowFigures]) -> float:
    """The agent's processor time as its own table `agent` has it, over undisturbed windows."""
    sql = (
        "SELECT sum(value) / (sum(covered_ns) / 1e9) FROM agent WHERE kind = 'cpu' AND server = ''"
        f" AND epoch_us(ts) BETWEEN {windows[0].began_us} AND {windows[-1].ended_us}"
    )
    ((share,),) = reader.query(spool, sql).rows
    return math.nan if share is None else float(share)


def shown(found: Estimate) -> str:
    """A share of a processor with its interval, in percent."""
    return f"{100 * found.estimate:.2f} % [{100 * found.lo:.2f}, {100 * found.hi:.2f}]"


def compared(found: Paired) -> str:
    """A ratio with its interval, in percent."""
    low, high = (100 * math.expm1(value) for value in (found.lo, found.hi))
    return f"{100 * math.expm1(found.mean):+.2f} % [{low:+.2f}, {high:+.2f}]"


def run(given: argparse.Namespace, directory: Path) -> bool:
    """Measure all, and print it; whether the agent keeps its limits."""
    spool = directory / "spool"
    with watched_load(
        directory,
        clients=given.clients,
        rate=given.rate,
        statements=given.statements,
        scale=given.scale,
    ) as load:
        words = ["--dsn", load.agent_dsn, "--spool", spool]
        with AgentProcess(directory / "agent.log", *words) as agent:
            agent.wait_connected()
            say("the agent is connected")
            time.sleep(WARM_UP_S)
            steady = [measure(load, agent, BLOCK_S, True) for _ in range(given.minutes)]
            memory, _ = agent.memory_bytes()
            say(f"undisturbed: {steady[-1].tps:.0f} tx/s, {memory / 1e6:.0f} MB")
            found = pairs(load, agent, given.pairs, given.window, given.seed)
            memory, most = agent.memory_bytes()
    reference = Reference(len(steady), len(steady) - 1)
    own = mean_of_blocks(np.array([w.agent_share for w in steady]), reference)
    asked = mean_of_blocks(np.array([w.query_share for w in steady]), reference)
    effects = {
        name: compare(found, name, given.seed)
        for name in ("tps", "latency_ms", "cpu_us", "with_queries_us")
    }
    tps = float(np.mean([w.tps for w in steady]))
    table_share = own_table_share(spool, steady)
    looks = looks_share(spool, found)
    passed = own.estimate <= MOST_CPU_SHARE and most <= MOST_BYTES
    print(
        f"{given.clients} sessions, {given.statements} statements, {given.rate:g} tx/s offered, "
        f"{tps:.0f} made"
    )
    print(f"agent, of one processor: {shown(own)}; by its own table: {100 * table_share:.2f} %")
    print(f"its queries in the server, of one processor: {shown(asked)}")
    print(f"agent's memory: {memory / 1e6:.0f} MB, at most {most / 1e6:.0f} MB")
    print(
        f"agent on against off, {given.pairs} pairs of {given.window:g} s "
        f"({looks:.2f} of the usual looks):"
    )
    names = {
        "tps": "transactions a second",
        "latency_ms": "latency",
        "cpu_us": "processor time of a transaction",
        "with_queries_us": "the same, with the agent's queries",
    }
    for name, effect in effects.items():
        print(f"  {names[name]}: {compared(effect)}")
    print("the agent keeps its limits" if passed else "the agent exceeds its limits")
    return passed


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rate", type=float, default=10_000, help="transactions a second")
    parser.add_argument("--statements", type=int, default=100, help="different ones, at most 128")
    parser.add_argument("--scale", type=int, default=20, help="of pgbench's tables")
    parser.add_argument("--minutes", type=int, default=10, help="without stopping the agent")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--window", type=float, default=20, help="seconds of each of a pair")
    parser.add_argument("--seed", type=int, default=1)


def main(given: argparse.Namespace) -> int:
    """1 if the agent exceeds its limits."""
    with tempfile.TemporaryDirectory() as name:
        return 0 if run(given, Path(name)) else 1
