"""What a trace says that it took, held against what it took.

Each load runs untraced and traced by turns, without a recorder; the difference of their mean times
by transaction, the median over the pairs and the order statistics that hold it in 95 of 100 cases,
is what tracing took. Then a recorder runs with the traced load: its profile's line "pgtare
itself", by transaction, is what the trace says.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import jinja2
from scipy import stats

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.profile import profile
from pgtare.observing.trace.capture.record import TraceRecorder
from pgtare.observing.trace.capture.server import open_server
from pgtare.observing.trace.capture.target import Target
from pgtare.observing.trace.file.disk_limits import Limits
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable

TAKES = "5 minutes; the machine should be idle"

SECONDS = 2
_STUDY = Path("studies/scripts/cursor_tables.sql.j2")
_SEED = "\\set seed random(0, 100000)\n"


@dataclass(frozen=True)
class Load:
    """A pgbench load. rows: whether its row sources are measured as well, 1 in 128."""

    title: str
    options: tuple[str, ...] = ()
    script: str = ""
    rows: bool = False


LOADS = [
    Load("select-only", ("-S",)),
    Load("select-only, prepared", ("-S", "-M", "prepared")),
    Load("select-only, prepared, rows", ("-S", "-M", "prepared"), rows=True),
    Load("OLTP", script=_SEED + "CALL cursor_oltp(15, :seed);"),
    Load("OLTP, rows", script=_SEED + "CALL cursor_oltp(15, :seed);", rows=True),
    Load("OLTP-N", script=_SEED + "SELECT cursor_oltp_many(15, :seed);"),
    Load("OLTP-N, rows", script=_SEED + "SELECT cursor_oltp_many(15, :seed);", rows=True),
    Load("DWH", script="CALL cursor_dwh(1);"),
    Load("DWH, rows", script="CALL cursor_dwh(1);", rows=True),
    Load("DWH-N, rows", script="SELECT cursor_dwh_many(1);", rows=True),
]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=6)


def main(args: argparse.Namespace) -> None:
    """Print, for each load, what tracing took and what the trace says."""
    binaries = from_wheel()
    modules = [loadable(binaries, name) for name in ("wait_event_timing", "sql_trace")]
    with (
        Cluster(
            binaries, {"compute_query_id": True}, preload=[m.library for m in modules]
        ) as cluster,
        tempfile.TemporaryDirectory() as name,
    ):
        with cluster.connect() as connection:
            for module in modules:
                connection.execute(module.create_sql.encode())
            connection.execute(jinja2.Template(_STUDY.read_text()).render().encode())
        subprocess.run(
            [str(binaries.pgbench), "-i", "-q", "-s", "10", cluster.dsn()],
            check=True,
            capture_output=True,
        )
        sys.stdout.write(f"{'load':<30} {'µs':>9}  {'took':>7}  {'95 % interval':<18} says\n")
        for each in LOADS:
            _compare(each, str(binaries.pgbench), cluster.dsn(), Path(name), args.pairs)


def _compare(each: Load, pgbench: str, dsn: str, directory: Path, pairs: int) -> None:
    command = [pgbench, "-n", "-T", str(SECONDS), *each.options]
    if each.script:
        (directory / "script.sql").write_text(each.script)
        command += ["-f", str(directory / "script.sql")]
    command.append(dsn)
    base, more = [], []
    for i in range(pairs):
        found = {}
        for traced in (False, True) if i % 2 else (True, False):
            found[traced] = _run(command, each, traced)
        base.append(found[False])
        more.append(found[True] - found[False])
    rank = int(stats.binom.ppf(0.025, pairs, 0.5))
    low, high = sorted(more)[max(rank - 1, 0)], sorted(more)[min(pairs - rank, pairs - 1)]
    sys.stdout.write(
        f"{each.title:<30} {median(base):>9.1f}  {median(more):>+7.2f}  "
        f"{f'{low:+.2f} to {high:+.2f}':<18} {_said(command, each, dsn, directory):.2f}\n"
    )
    sys.stdout.flush()


def _run(command: list[str], each: Load, traced: bool) -> float:
    """Mean µs of a transaction."""
    settings = {"sql_trace.level": 12 if traced else 0}
    settings["sql_trace.rowsource_sampling"] = 128 if each.rows and traced else 0
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    out = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PGOPTIONS": options},
    ).stdout
    latency = re.search(r"latency average = ([\d.]+) ms", out)
    assert latency
    return float(latency[1]) * 1000


def _said(command: list[str], each: Load, dsn: str, directory: Path) -> float:
    path = directory / f"{each.title}.pgtrace"
    with open_server(dsn) as server:
        target = Target(armed_only=True)
        recorder = TraceRecorder(server, dsn, path, target, Limits(total=8 << 30, reserve=0))
        thread = threading.Thread(target=recorder.run, args=(SECONDS + 2.0, lambda now: None))
        thread.start()
        _run(command, each, True)
        thread.join()
    book = ledgers.ledger(load(path))
    path.unlink()
    # each transaction is one request; on a busy machine not all are recorded
    requests = max(len(process.requests) for process in book.processes)
    own = sum(
        line.total_ns for line in profile(book).lines if line.name.startswith("pgtare itself")
    )
    return own / requests / 1000
