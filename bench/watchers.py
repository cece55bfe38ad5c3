"""Watchers that people run, and one that takes a known time, weighed by windows.

Beside a load of other sessions on Debian's PostgreSQL 15: postgres_exporter, scraped every five
seconds; pg_activity, at its default of two; pgtare's own agent; the collectors of pg_wait_sampling
and PoWA, which are settings of the server; and a stand-in that acts every five seconds. What the
sessions of the exporter and of the stand-in took in their windows is also read in /proc, ten times
a second. The two counts must be what was weighed; the exit status is 1 if one is not.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psycopg
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console

from bench.harness import say
from bench.weights import DEBIAN
from pgtare.kit import machine
from pgtare.postgres.binaries import from_pg_config
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench, initialise
from pgtare.weighing.switches import Switch
from pgtare.weighing.weigh.outside_schema import WatcherInfo
from pgtare.weighing.weigh.report.page import write_page
from pgtare.weighing.weigh.report.terminal import render
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.whole_server.run import weigh
from pgtare.weighing.whole_server.watcher_time import WatcherTime

TAKES = (
    "22 minutes (--minutes, --only), with Debian's postgresql-15, postgresql-15-pg-wait-sampling, "
    "postgresql-15-powa, prometheus-postgres-exporter, pg-activity and curl"
)

#: How often the exporter is scraped and the stand-in acts, in s.
PERIOD_S = 5
#: What is counted by other means may differ so much from what is weighed, beside the interval:
#: both leave a watcher's first or last moments out, each in its own way.
TOLERANCE = 0.05
#: Counted by other means as well.
_COUNTED = ("exporter", "known")
_EXPORTER = """
DATA_SOURCE_NAME={dsn} prometheus-postgres-exporter --web.listen-address=127.0.0.1:{port} &
while sleep {period}; do curl -s -o /dev/null http://127.0.0.1:{port}/metrics; done
"""
_ACTIVITY = "TERM=xterm script -qfc {command} /dev/null"
#: Its collector wakes up this seldom, in ms, or as often as by default. It notices a reload only
#: when it wakes up, so it must do so now and then.
_SELDOM_MS, _OFTEN_MS = 1000, 10
_SAMPLING = "pg_wait_sampling"
#: It takes no snapshots, or as often as it can.
_POWA_OFF, _POWA_ON = "-1", "5s"
_SETTINGS = {
    f"{_SAMPLING}.profile_period": str(_SELDOM_MS),
    f"{_SAMPLING}.history_period": str(_SELDOM_MS),
    "powa.frequency": _POWA_OFF,
}
_POWA_EXTENSIONS = ("btree_gist", "pg_stat_statements", "powa")
_ROWS = 400_000


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=22)
    parser.add_argument("--port", type=int, default=9187)
    parser.add_argument("--only", nargs="*", help="names of watchers")
    parser.add_argument("--page", type=Path, help="write the page here")


def main(args: argparse.Namespace) -> int:
    """Print the report, and what was counted by other means."""
    binaries = from_pg_config(DEBIAN)
    with (
        Cluster(binaries, _SETTINGS, [_SAMPLING, "pg_stat_statements", "powa"]) as cluster,
        tempfile.TemporaryDirectory() as place,
    ):
        dsn = initialise(binaries, cluster.dsn(), 10).dsn
        _create_powa(dsn)
        switches = _watchers(dsn, args.port, Path(place))
        if args.only:
            switches = [switch for switch in switches if switch.name in args.only]
        load = PgbenchLoad(find_pgbench(binaries), dsn, LoadSpec(clients=4, rate=200.0))
        say("a load of four sessions, 200 transactions a second; windows of 15 s")
        with load, _Sessions(dsn, _COUNTED) as sessions, _windows() as windows:
            request = Request(
                (),
                dsn=dsn,
                outside=True,
                duration_s=60 * args.minutes,
                window_s=3.0 * PERIOD_S,
                switches=tuple(switches),
                allow=frozenset(switch.setting for switch in switches),
            )
            done = weigh(request, ["python", "-m", "bench", "watchers"], Console(stderr=True))
        render(done.result, Console(width=100), details=True)
        if args.page:
            write_page(done.result, done.observations, args.page)
        outside = done.result.design.outside
        assert outside is not None
        assert outside.windows is not None
        names = ["base", "control", *(switch.name for switch in switches)]
        right = []
        for one in outside.windows.watchers:
            if one.name in _COUNTED:
                own = [span for arm, *span in windows if names[arm] == one.name]
                right.append(_holds(one, sessions.share(one.name, own)))
    return 0 if all(right) else 1


def _watchers(dsn: str, port: int, place: Path) -> list[Switch]:
    own = [sys.executable, "-m"]
    exporter = _EXPORTER.format(
        dsn=shlex.quote(f"{dsn} application_name=exporter"), port=port, period=PERIOD_S
    )
    at = conninfo_to_dict(dsn)
    place_of = ["-h", str(at["host"]), "-p", str(at["port"])]
    who = ["-U", str(at["user"]), "-d", str(at["dbname"])]
    activity = "stty cols 120 rows 40; " + shlex.join(["pg_activity", *place_of, *who])
    agent = [*own, "pgtare", "agent", "--dsn", dsn, "--spool", str(place / "spool")]
    known = [*own, "bench.watchers", f"{dsn} application_name=known"]
    return [
        Switch("exporter", "process", on=exporter),
        Switch("pg_activity", "process", on=_ACTIVITY.format(command=shlex.quote(activity))),
        Switch("agent", "process", on=shlex.join(agent)),
        Switch.parse_reload(f"{_SAMPLING}: {_SAMPLING}.profile_period = {_OFTEN_MS}"),
        Switch.parse_reload(f"powa: powa.frequency = {_POWA_ON}"),
        Switch("known", "process", on=shlex.join(known)),
    ]


def _create_powa(dsn: str) -> None:
    """The database that PoWA keeps its snapshots in."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE DATABASE powa")
    with psycopg.connect(dsn, dbname="powa", autocommit=True) as conn:
        for extension in _POWA_EXTENSIONS:
            conn.execute(f"CREATE EXTENSION {extension}".encode())


def _holds(found: WatcherInfo, share: float) -> bool:
    estimate, lo, hi = found.server_pct.estimate, found.server_pct.lo, found.server_pct.hi
    truth = 100 * share
    slack = TOLERANCE * truth
    known = estimate is not None and lo is not None and hi is not None
    weighed = f"weighed {estimate:.3f} % [{lo:.3f}, {hi:.3f}]" if known else "has no interval"
    right = known and lo - slack <= truth <= hi + slack
    print(
        f"{found.name}: {weighed} of one processor, counted {truth:.3f} %"
        f"{'' if right else ' **off**'}"
    )
    return right


@contextlib.contextmanager
def _windows() -> Iterator[list[list[Any]]]:
    """The arm of each window, and when it began and ended, by the monotonic clock."""
    found: list[list[Any]] = []
    begin, end = WatcherTime.begin, WatcherTime.end

    def begun(self: WatcherTime, block: int, arm: int, *others: Any, **more: Any) -> None:
        begin(self, block, arm, *others, **more)
        found.append([arm, time.monotonic()])

    def ended(self: WatcherTime, seconds: float, leaders: Mapping[int, int]) -> None:
        found[-1].append(time.monotonic())
        end(self, seconds, leaders)

    with mock.patch.multiple(WatcherTime, begin=begun, end=ended):
        yield found


class _Sessions:
    """What the sessions of some applications take, seen in /proc ten times a second."""

    def __init__(self, dsn: str, names: Sequence[str]) -> None:
        self._conn, self._names = psycopg.connect(dsn, autocommit=True), list(names)
        self._seen: dict[tuple[str, int], int] = {}
        self._at: list[float] = []
        self._totals: dict[str, list[int]] = {name: [] for name in names}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Sessions:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._end.set()
        self._thread.join()
        self._conn.close()

    def share(self, name: str, windows: Sequence[Sequence[float]]) -> float:
        """Of a processor, that all sessions of an application took in these windows."""
        total = np.interp(np.array(windows), self._at, self._totals[name])
        return float(np.diff(total).sum() / 1e9 / np.diff(windows).sum())

    def _look(self) -> None:
        query = (
            "SELECT application_name, pid FROM pg_stat_activity WHERE application_name = ANY (%s)"
        )
        while not self._end.wait(0.1):
            for name, pid in self._conn.execute(query, (self._names,)).fetchall():
                spent = machine.schedstat(pid)
                if spent is not None:
                    self._seen[name, pid] = spent[0]
            self._at.append(time.monotonic())
            for name, totals in self._totals.items():
                totals.append(sum(ns for (of, _), ns in self._seen.items() if of == name))


def _stand_in(dsn: str) -> None:
    """Act every PERIOD_S."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        while True:
            time.sleep(PERIOD_S)
            conn.execute("SELECT count(*) FROM generate_series(1, %s)", (_ROWS,))


if __name__ == "__main__":
    _stand_in(sys.argv[1])
