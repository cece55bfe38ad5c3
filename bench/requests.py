"""Random requests of random shapes, each of which the SQL trace must tell as the client knows it.

Sessions send what their seed says: by both protocols, in pipelines, with errors and cancels at any
point, cursors, savepoints, COPY, levels that change, and functions within functions. The generator
knows what a trace must tell of it: calls in order with texts, values, rows and depths; requests,
errors, transactions and levels; times that nest and add up; nothing lost. At the first difference
it drops requests as long as there is one, prints what is left of them, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from tests.new_servers import servers_in_memory
from tests.random_requests.play import Played, play, shrunk
from tests.random_requests.statements import TABLES
from tests.servers import stopped_at_once, tracing
from tests.sessions import Connection, session
from tests.versions.servers import installed

from bench.harness import say
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value

TAKES = "an hour for a million (--requests, --minutes)"

_OF_SESSION = 300
_DATABASE = "requests{}"
_SAY_S = 30.0
#: After so many sessions of a process, what they left in tables is removed.
_TIDY = 20
_EMPTY = "TRUNCATE shapes, late, fired, log"
_VACUUM = "VACUUM pg_class, pg_attribute, pg_type, pg_depend, pg_statistic, pg_shdepend"
_SETTINGS: dict[str, Value] = {
    "fsync": False,
    "autovacuum": False,  # what it analyses is parsed once more
    "max_parallel_workers": 4,
    "sql_trace.ring_memory": "1GB",
}


@dataclass
class Sums:
    """Of all sessions so far."""

    began: float = field(default_factory=time.monotonic)
    requests: int = 0
    sessions: int = 0
    shapes: Counter[str] = field(default_factory=Counter)

    def add(self, played: Played) -> None:
        self.requests += len(played.sent)
        self.sessions += 1
        self.shapes += played.shapes

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / max(time.monotonic() - self.began, 1e-9)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, help="stop after this time, if that is earlier")
    parser.add_argument("--seed", type=int, help="of the first session; the next ones count up")
    parser.add_argument("--only", help="play these requests of the seed alone, as in 3,17,22")
    parser.add_argument("--version", type=int, choices=(15, 18), default=18)
    parser.add_argument("--processes", type=int, default=2, help="sessions side by side")


def main(args: argparse.Namespace) -> int:
    """Play all, print sums; 1 at the first difference."""
    seed = random.randrange(10**9) if args.seed is None else args.seed
    binaries = installed(args.version)
    with _server(binaries, args.processes) as cluster:
        if args.only is not None:
            return _again(cluster, seed, [int(n) for n in args.only.split(",") if n])
        sums = Sums()
        failed = _play_all(cluster, args, seed, sums)
        _print(sums)
        if failed is None:
            say(f"no difference; seeds {seed} to {seed + sums.sessions - 1}")
            return 0
        return _shrink(cluster, *failed)


@contextlib.contextmanager
def _server(binaries: Binaries, databases: int) -> Iterator[Cluster]:
    """A server with a database for each process: there no one else locks anything."""
    with servers_in_memory(), stopped_at_once(tracing(binaries, _SETTINGS)) as cluster:
        with session(cluster) as admin:
            admin.execute(TABLES.encode())
            for number in range(databases):
                name = _DATABASE.format(number)
                admin.execute(f"CREATE DATABASE {name} TEMPLATE postgres".encode())
        yield cluster


@dataclass
class _Worker:
    """What a process of the pool has."""

    cluster: Cluster
    database: str
    onlooker: Connection
    opened: contextlib.ExitStack
    sessions: int = 0


_workers: list[_Worker] = []


def _start(cluster: Cluster, numbers: multiprocessing.Queue[int]) -> None:
    """A process of the pool begins."""
    database = _DATABASE.format(numbers.get())
    opened = contextlib.ExitStack()
    onlooker = opened.enter_context(session(cluster, dbname=database))
    _workers.append(_Worker(cluster, database, onlooker, opened))


def _play(seed: int) -> tuple[int, Played]:
    """A session of a process of the pool."""
    (worker,) = _workers
    if worker.sessions % _TIDY == 0:
        worker.onlooker.execute(_EMPTY)
        worker.onlooker.execute(_VACUUM)
    worker.sessions += 1
    numbers = range(_OF_SESSION)
    return seed, play(worker.cluster, worker.onlooker, seed, numbers, worker.database)


def _play_all(
    cluster: Cluster, args: argparse.Namespace, seed: int, sums: Sums
) -> tuple[int, Played] | None:
    """The session that made a difference, or None. Processes fork: all know the server."""
    fork = multiprocessing.get_context("fork")
    numbers: multiprocessing.Queue[int] = fork.Queue()
    for number in range(args.processes):
        numbers.put(number)
    seeds = itertools.count(seed)
    said = time.monotonic()
    running: set[Future[tuple[int, Played]]] = set()
    with ProcessPoolExecutor(args.processes, fork, _start, (cluster, numbers)) as pool:
        while True:
            wanted = sums.requests + len(running) * _OF_SESSION < args.requests
            late = args.minutes and time.monotonic() - sums.began > 60 * args.minutes
            if wanted and not late and len(running) < args.processes:
                running.add(pool.submit(_play, next(seeds)))
                continue
            if not running:
                return None
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                at, played = one.result()
                sums.add(played)
                if played.difference:
                    return at, played
            if time.monotonic() - said > _SAY_S:
                said = time.monotonic()
                _progress(sums, args)


def _progress(sums: Sums, args: argparse.Namespace) -> None:
    left = (args.requests - sums.requests) / sums.rate / 60
    if args.minutes:
        left = min(left, args.minutes - (time.monotonic() - sums.began) / 60)
    say(f"{sums.requests:,} requests, {sums.rate:,.0f} a second, {max(left, 0):.0f} minutes left")


def _print(sums: Sums) -> None:
    for shape, many in sums.shapes.most_common():
        print(f"{many:12,}  {shape}")
    say(f"{sums.requests:,} requests of {sums.sessions:,} sessions, {sums.rate:,.0f} a second")


def _again(cluster: Cluster, seed: int, numbers: Sequence[int]) -> int:
    """Requests of a seed once more; 1 if there is a difference."""
    with session(cluster) as onlooker:
        played = play(cluster, onlooker, seed, numbers)
    for number, sent in played.sent:
        print(f"{number:6}  {sent}")
    print(played.difference or "no difference")
    return int(played.difference is not None)


def _shrink(cluster: Cluster, seed: int, played: Played) -> int:
    """Print the difference, and the few requests that make one."""
    say(f"a difference in the session of seed {seed}:\n{played.difference}")
    with session(cluster) as onlooker:

        def differs(numbers: Sequence[int]) -> bool:
            return play(cluster, onlooker, seed, numbers).difference is not None

        sent = [number for number, _ in played.sent]
        if not differs(sent):
            say("the same requests make none now")
            return 1
        left = shrunk(sent, differs)
    only = ",".join(map(str, left))
    say(f"python -m bench requests --seed {seed} --only {only}")
    _again(cluster, seed, left)
    return 1
