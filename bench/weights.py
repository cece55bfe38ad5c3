"""What the usual observers cost a transaction, from inside the server and from outside.

Each observer is weighed with `pgtare weigh` on a server of its own kind: the embedded PostgreSQL
18, or Debian's PostgreSQL 15 for extensions that only Debian has (an extension that is not
installed is left out, and named). One client; the loads are look-ups by key with prepared
statements, pgbench's tpcb-like, and a join of some thousand rows.

What an observer costs differs between starts of one server by more than the interval of a trial,
as each start lays memory out anew. So everything is weighed again in each round, on a new server,
and the interval is the t interval of the rounds' answers.

`--out` keeps what was found; `--against` compares it with an earlier run's: each pair of intervals
should agree, in percent of the run's own transaction, since the speed of a shared machine changes
within hours. The exit status is 1 if more pairs disagree than chance explains in 999 of 1,000 runs.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import scipy

from bench.harness import say
from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.inference import Reference, mean_of_blocks
from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.postgres import binaries
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import initialise
from pgtare.postgres.modules import PRELOAD_ORDER, loadable
from pgtare.weighing.weigh.schema import interval

TAKES = "half an hour (--seconds, --rounds, --only)"

DEBIAN = Path("/usr/lib/postgresql/15/bin/pg_config")
#: A join whose plan has thousands of rows in each node.
JOIN_SQL = """\
\\set low random(1, 99000 * :scale)
SELECT count(*) FROM pgbench_accounts a JOIN pgbench_branches b USING (bid)
WHERE aid BETWEEN :low AND :low + 2000;
"""
#: As pgbench's scripts of these names: the same statements on the same tables.
SELECT_ONLY = """\
\\set aid random(1, 100000 * :scale)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
"""
TPCB_LIKE = """\
\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
"""
SCALE = 10
#: The share of pairs of runs whose difference misses its own 95 % interval by chance, at most.
ALPHA = 0.05


@dataclass(frozen=True)
class Load:
    """What runs: a script of pgbench, and options of pgtare weigh."""

    title: str
    script: str
    options: tuple[str, ...] = ()


PREPARED = ("--protocol", "prepared")
SELECT = Load("prepared select", SELECT_ONLY, PREPARED)
TPCB = Load("tpcb-like", TPCB_LIKE)
JOINED = Load("join of 2,000 rows", JOIN_SQL)
OUTSIDE = Load("the select from outside", SELECT_ONLY, ("--outside", *PREPARED))


@dataclass(frozen=True)
class Group:
    """Observers that can share a trial. debian: on PostgreSQL 15 instead of 18."""

    observers: tuple[str, ...]
    loads: tuple[Load, ...]
    libraries: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    debian: bool = False
    settings: dict[str, str] = field(default_factory=dict)


TIMING = ("track_io_timing", "track_wal_io_timing", "track_functions/all")
LOGS = ("log_min_duration_statement", "log_statement", "log_duration", "log_lock_waits")
EXPLAINS = ("auto_explain", "auto_explain/no_timing", "auto_explain/sampled")
TRACES = (
    "wait_event_timing",
    "wait_event_timing/trace",
    "sql_trace",
    "sql_trace/values",
    "sql_trace_waits",
)
STATEMENTS = ("pg_stat_statements",)
GROUPS = (
    Group(
        ("pg_stat_statements_prepared", "pg_stat_statements_prepared/all", *TIMING),
        (SELECT, OUTSIDE),
        STATEMENTS,
        STATEMENTS,
    ),
    Group(
        (
            "pg_stat_statements",
            "pg_stat_statements/all",
            "pg_stat_statements/planning",
            "compute_query_id",
            *TIMING,
        ),
        (TPCB,),
        STATEMENTS,
        STATEMENTS,
    ),
    Group((*EXPLAINS, *LOGS), (SELECT, TPCB, OUTSIDE), ("auto_explain",)),
    Group((*EXPLAINS, "sql_trace", "sql_trace/rows"), (JOINED,), ("auto_explain", "sql_trace"), ()),
    Group(TRACES, (SELECT, TPCB), ("wait_event_timing", "sql_trace"), ()),
    Group(
        ("sql_trace_recorder", "sql_trace_recorder/calls"),
        (SELECT, TPCB),
        ("wait_event_timing", "sql_trace"),
        (),
        settings={"sql_trace.recorder_memory": "64MB"},
    ),
    Group(
        ("pg_stat_kcache", "pg_stat_kcache/planning", "pg_qualstats/sampled", "pg_qualstats/all"),
        (SELECT, TPCB),
        ("pg_stat_statements", "pg_stat_kcache", "pg_qualstats"),
        ("pg_stat_statements", "pg_stat_kcache", "pg_qualstats"),
        debian=True,
    ),
    Group(
        ("pgaudit/read", "pgaudit/write", "pgaudit/all"),
        (SELECT, TPCB),
        ("pgaudit",),
        debian=True,
    ),
)


@dataclass(frozen=True)
class Weight:
    """What one observer cost on one load."""

    observer: str
    load: str
    major: int
    base_us: float
    us: Interval
    pct: Interval
    verdict: str

    @property
    def key(self) -> tuple[str, str]:
        """What it is compared by."""
        return self.observer, self.load


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=15, help="of each trial")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each server, at least 2")
    parser.add_argument("--only", default="", help="observers whose name contains this")
    parser.add_argument("--out", type=Path, help="write what was found as JSON")
    parser.add_argument("--against", type=Path, help="compare with what an earlier run found")


def main(args: argparse.Namespace) -> int:
    """Print the tables."""
    if args.rounds < 2:
        raise UsageError("--rounds must be 2 or more: the interval is that of the rounds")
    answers: list[Weight] = []
    for number in range(args.rounds):
        for group in GROUPS:
            chosen = [name for name in group.observers if args.only in name]
            if not chosen:
                continue
            server = binaries_of(group)
            if server is None:
                say(f"left out, as it is not installed: {', '.join(chosen)}")
                continue
            for load in group.loads:
                say(f"{number + 1} of {args.rounds}, {load.title}: {', '.join(chosen)}")
                answers += weigh(server, group, chosen, load, args.seconds)
    found = over_rounds(answers)
    for line in table(found):
        print(line)
    if args.out is not None:
        args.out.write_text(json.dumps([kept(weight) for weight in found], indent=1) + "\n")
    return compared(found, read(args.against)) if args.against is not None else 0


def over_rounds(answers: Sequence[Weight]) -> list[Weight]:
    """One weight for each observer and load: the mean of the rounds, with their t interval."""
    each: dict[tuple[str, str], list[Weight]] = {}
    for answer in answers:
        each.setdefault(answer.key, []).append(answer)
    return [combined(rounds) for rounds in each.values()]


def combined(rounds: Sequence[Weight]) -> Weight:
    """The rounds of one observer and load as one weight."""
    us, pct = (
        t_interval([float(getattr(one, of).estimate) for one in rounds]) for of in ("us", "pct")
    )
    unproven = any(one.verdict == "not_verified" for one in rounds)
    shown = us.lo is not None and us.lo > 0
    verdict = "not_verified" if unproven else "cost" if shown else "undecided"
    base_us = float(np.mean([one.base_us for one in rounds]))
    return replace(rounds[0], base_us=base_us, us=us, pct=pct, verdict=verdict)


def t_interval(values: Sequence[float]) -> Interval:
    """The mean, and its 95 % t interval."""
    n = len(values)
    return interval(mean_of_blocks(np.array(values), Reference(n, n - 1)))


def binaries_of(group: Group) -> Binaries | None:
    """The server that a group is weighed on; None if it lacks something."""
    if not group.debian:
        return binaries.from_wheel()
    try:
        found = binaries.from_pg_config(DEBIAN)
    except UsageError:
        return None
    there = all((found.pkglibdir / f"{library}.so").exists() for library in group.libraries)
    return found if there else None


def weigh(
    server: Binaries, group: Group, chosen: Sequence[str], load: Load, seconds: float
) -> Iterator[Weight]:
    """Weigh them on a server of their own."""
    ours = {name: loadable(server, name) for name in group.libraries if name in PRELOAD_ORDER}
    module = loadable(server)
    modules = [module, *ours.values()]
    libraries = [ours[name].library if name in ours else name for name in group.libraries]
    settings = {
        "pgtare.ring_memory": "128MB",
        "shared_buffers": "256MB",
        "synchronous_commit": "off",
        "logging_collector": "on",
        **group.settings,
    }
    with (
        tempfile.TemporaryDirectory() as work,
        Cluster(server, settings, [module.library, *libraries]) as cluster,
    ):
        dsn = initialise(server, cluster.dsn(), SCALE).dsn
        with psycopg.connect(dsn, autocommit=True) as conn:
            for each in modules:
                conn.execute(each.create_sql.encode())
            for extension in group.extensions:
                conn.execute(f"CREATE EXTENSION {extension}".encode())
        script = Path(work, "script.sql")
        script.write_text(load.script.replace(":scale", str(SCALE)))
        document = run(dsn, chosen, seconds, ["--script", str(script), *load.options])
    arms = [arm for arm in document["arms"] if arm["role"] == "instrument"]
    for name, arm in zip(chosen, arms, strict=True):
        answer = arm["answer"]
        yield Weight(
            name,
            load.title,
            int(document["server"]["version_num"]) // 10_000,
            document["baseline"]["body_mean_us"],
            Interval(**answer["us"]),
            Interval(**answer["pct"]),
            answer["verdict"],
        )


def run(dsn: str, chosen: Sequence[str], seconds: float, more: Sequence[str]) -> dict[str, Any]:
    """The result document of one weighing."""
    allowed = [word for name in chosen for word in ("--allow", name.partition("/")[0])]
    command = ["weigh", *chosen, *allowed, "--dsn", dsn, "--duration", f"{seconds:g}", *more]
    done = subprocess.run(
        [sys.executable, "-m", "pgtare", *command, "--json", "--yes"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MeasurementError(f"pgtare weigh failed: {done.stderr[-500:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def table(found: Sequence[Weight]) -> Iterator[str]:
    """A row for each observer, with a column for each load."""
    loads = list(dict.fromkeys(weight.load for weight in found))
    names = list(dict.fromkeys(weight.observer for weight in found))
    cells = {weight.key: weight for weight in found}
    yield f"| observer | {' | '.join(f'{load}, µs' for load in loads)} |"
    yield f"|{'---|' * (len(loads) + 1)}"
    for name in names:
        row = [cell(cells[name, load]) if (name, load) in cells else "" for load in loads]
        yield f"| {name} | {' | '.join(row)} |"
    bases: dict[tuple[str, int], list[float]] = {}
    for weight in found:
        bases.setdefault((weight.load, weight.major), []).append(weight.base_us)
    for (load, major), each in bases.items():
        yield f"{load}, PostgreSQL {major}: base {min(each):.1f} to {max(each):.1f} µs"


def cell(weight: Weight) -> str:
    """An estimate with its interval, and the verdict."""
    if weight.verdict == "not_verified":
        return "not seen working"
    shown = f"{numbers.estimate(weight.us)} {numbers.bounds(weight.us)}"
    return f"{shown}, {numbers.estimate(weight.pct)} %" if weight.verdict == "cost" else shown


def kept(weight: Weight) -> dict[str, Any]:
    """A weight for JSON."""
    intervals = {"us": weight.us.model_dump(), "pct": weight.pct.model_dump()}
    return {**vars(weight), **intervals}


def read(path: Path) -> list[Weight]:
    """What an earlier run kept."""
    return [
        Weight(**{**row, "us": Interval(**row["us"]), "pct": Interval(**row["pct"])})
        for row in json.loads(path.read_text())
    ]


def compared(now: Sequence[Weight], before: Sequence[Weight]) -> int:
    """Print which pairs of intervals disagree; 1 if that are too many in percent."""
    earlier = {weight.key: weight for weight in before}
    pairs = [
        (one, earlier[one.key])
        for one in now
        if one.key in earlier and all(numbers.bounded(each.pct) for each in (one, earlier[one.key]))
    ]
    if not pairs:
        raise UsageError("the two runs have no observer with an interval in common")
    apart = [(one, other) for one, other in pairs if differ(one.pct, other.pct)]
    for one, other in apart:
        print(f"{one.observer}, {one.load}: {cell(one)}, earlier {cell(other)}")
    in_us = sum(differ(one.us, other.us) for one, other in pairs)
    speed = float(np.median([one.base_us / other.base_us for one, other in pairs]))
    most = int(scipy.stats.binom.ppf(0.999, len(pairs), ALPHA))
    print(f"transactions took {speed:.2f} times as long as in the earlier run (median)")
    print(f"{len(apart)} of {len(pairs)} pairs disagree in percent; by chance up to {most}")
    print(f"{in_us} disagree in µs")
    return 1 if len(apart) > most else 0


def differ(one: Interval, other: Interval) -> bool:
    """Whether the interval of their difference leaves 0 out."""
    ends = (one.estimate, one.hi, one.lo, other.estimate, other.hi, other.lo)
    a, a_hi, a_lo, b, b_hi, b_lo = (float(end or 0.0) for end in ends)
    return abs(a - b) > math.hypot(a_hi - a_lo, b_hi - b_lo) / 2
