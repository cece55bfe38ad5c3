"""pg_wait_sampling's profile next to exact waits, on one load: `make bench-wait-sampling`.

pg_wait_sampling looks every 10 ms at what each process waits for; wait_event_timing times every
wait. Both watch the sessions of one load on PostgreSQL 15, and both are read in batches of two
seconds. The difference of an event's shares has the standard error that the batches show: the load
itself varies in both alike, so what is left is sampling, and samples that follow each other closely
in one wait count as what they are worth.

The criterion, stated beforehand: with 100 samples or more, in ten batches or more, the shares
differ by no more than chance allows in all but one of 10,000 comparisons (3.9 standard errors; a
little more for a few batches, by Student's t). Rarer events are judged together. The exit status is
1 if an event does not agree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from pgtare.errors import PgtareError, UsageError
from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import Expansion, Reference
from pgtare.load import LoadSpec, PgbenchLoad, Script, find_pgbench, initialise
from pgtare.server import own_session
from pgtare.server.binaries import from_pg_config
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable

SCHEMA = "pgtare.bench.wait_sampling/1"
PG_CONFIG = "/usr/lib/postgresql/15/bin/pg_config"
MODULE = "wait_event_timing"
ALPHA = 1e-4
FEWEST_SAMPLES, FEWEST_BATCHES = 100, 10
IDLE, OTHERS = ("Client", "ClientRead"), ("", "all others")
SCALE = 10

#: Scripts with waits for locks, for WAL, for blocks past the buffers, for temporary files and for
#: time; how often each runs.
SCRIPTS = {
    "row-lock": (
        8,
        "UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\n",
    ),
    "advisory-lock": (4, "SELECT pg_advisory_xact_lock(1), pg_sleep(0.002);\n"),
    "look-ups": (
        8,
        f"\\set aid random(1, {100_000 * SCALE - 3000})\n"
        "SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 3000;\n",
    ),
    "sort": (
        2,
        f"\\set aid random(1, {100_000 * SCALE - 9000})\n"
        "SELECT count(*) FROM (SELECT filler FROM pgbench_accounts WHERE aid BETWEEN :aid AND "
        ":aid + 9000 ORDER BY filler, abalance OFFSET 0) AS sorted;\n",
    ),
    "insert": (
        6,
        "INSERT INTO pgbench_history SELECT 1, 1, i, i, now() FROM generate_series(1, 300) i;\n",
    ),
    "pause": (2, "SELECT pg_sleep(0.004);\n"),
}
SETTINGS = {
    "shared_buffers": "2MB",
    "work_mem": "64kB",
    "max_parallel_workers_per_gather": "0",
    "wait_event_timing.capture": "stats",
    "pg_wait_sampling.profile_period": "10",
    "pg_wait_sampling.profile_pid": "on",
}

#: Waits that have ended, and those in progress, in one reading.
_OURS = """
SELECT wait_event_type, wait_event, sum(ms) FROM (
  SELECT pid, wait_event_type, wait_event, total_time AS ms FROM pg_stat_wait_event_timing
  UNION ALL
  SELECT pid, wait_event_type, wait_event, wait_time FROM pg_stat_wait_event_timing_current
) waits WHERE pid = ANY(%s) GROUP BY 1, 2
"""
_THEIRS = """
SELECT event_type, event, sum(count)::float8 FROM pg_wait_sampling_profile
WHERE pid = ANY(%s) AND event IS NOT NULL GROUP BY 1, 2
"""

Event = tuple[str, str]
Reading = dict[Event, float]


@dataclass(frozen=True)
class EventComparison:
    """One event's share of the waits, by time and by samples. se: of their difference.

    Without the idle wait, whose own share is one of all waits. effective_samples: as many
    independent samples would vary as much. limit: how many standard errors may lie between them.
    """

    type: str
    event: str
    our_share: float
    their_share: float
    se: float
    samples: int
    effective_samples: float
    limit: float
    agrees: bool | None

    @property
    def z(self) -> float:
        """The difference in standard errors."""
        return (self.their_share - self.our_share) / self.se if self.se > 0 else float("nan")


@contextmanager
def load(
    clients: int, rate: float, pg_config: str
) -> Iterator[tuple[psycopg.Connection[Any], Any]]:
    """A server that both watch, with its load: a connection, and what runs."""
    found = from_pg_config(pg_config)
    if not (found.pkglibdir / "pg_wait_sampling.so").exists():
        raise UsageError(
            f"{found.pkglibdir} has no pg_wait_sampling: apt-get install "
            f"postgresql-{found.major}-pg-wait-sampling"
        )
    module = loadable(found, MODULE)
    with (
        Cluster(found, SETTINGS, [module.library, "pg_wait_sampling"]) as cluster,
        tempfile.TemporaryDirectory() as name,
    ):
        database = initialise(found, cluster.dsn(), SCALE)
        with own_session.connect(database.dsn) as conn:
            conn.execute(module.create_sql.encode())
            conn.execute("CREATE EXTENSION pg_wait_sampling")
        scripts = []
        for title, (weight, text) in SCRIPTS.items():
            path = Path(name, f"{title}.sql")
            path.write_text(text)
            scripts.append(Script(path, weight))
        spec = LoadSpec(scripts=tuple(scripts), clients=clients, rate=rate, seed=1)
        with (
            own_session.connect(database.dsn) as conn,
            PgbenchLoad(find_pgbench(found), database.dsn, spec) as running,
        ):
            conn.execute(f"SET search_path = {MODULE}, public".encode())
            running.wait_ready()
            yield conn, running


def read(conn: psycopg.Connection[Any], query: str, pids: list[int]) -> Reading:
    """Times or samples by event, so far."""
    return {(kind, event): float(sum_) for kind, event, sum_ in conn.execute(query, (pids,))}


def batches(
    conn: psycopg.Connection[Any], pids: list[int], number: int, seconds: float
) -> tuple[list[Event], Floats, Floats]:
    """What each event grew by: events, ms (batches, events), samples (batches, events)."""
    readings = []
    due = time.monotonic()
    for _ in range(number + 1):
        time.sleep(max(0.0, due - time.monotonic()))
        due += seconds
        readings.append((read(conn, _OURS, pids), read(conn, _THEIRS, pids)))
    events = sorted({event for pair in readings for reading in pair for event in reading})
    ours, theirs = (
        np.diff([[pair[side].get(event, 0.0) for event in events] for pair in readings], axis=0)
        for side in (0, 1)
    )
    return events, ours, theirs


def pooled(events: list[Event], ours: Floats, theirs: Floats) -> tuple[list[Event], Floats, Floats]:
    """Events with too few samples to be judged alone are added up."""
    enough = (theirs.sum(axis=0) >= FEWEST_SAMPLES) & ((theirs > 0).sum(axis=0) >= FEWEST_BATCHES)
    kept = [event for event, one in zip(events, enough, strict=True) if one]
    if enough.all():
        return kept, ours, theirs
    added = (
        np.column_stack([side[:, enough], side[:, ~enough].sum(axis=1)]) for side in (ours, theirs)
    )
    return [*kept, OTHERS], *added  # type: ignore[return-value]


def compare(events: list[Event], ours: Floats, theirs: Floats) -> list[EventComparison]:
    """Shares of each event, the idle one's of all waits and the others' of all but that."""
    idle = np.array([event == IDLE for event in events])
    found = []
    for index, (kind, event) in enumerate(events):
        among = np.ones(len(events), bool) if idle[index] else ~idle
        mine, its = (
            _sum(side[:, index]).over(_sum(side[:, among].sum(axis=1))) for side in (ours, theirs)
        )
        difference = its - mine
        reference = Reference(len(ours), len(ours) - 1).of(difference.influence)
        samples = int(theirs[:, index].sum())
        limit, se = reference.multiplier(ALPHA), difference.se
        judged = samples >= FEWEST_SAMPLES and bool(np.isfinite(limit)) and se > 0
        found.append(
            EventComparison(
                kind,
                event,
                mine.value,
                its.value,
                se,
                samples,
                its.value * (1 - its.value) / se**2 if se > 0 else 0.0,
                limit,
                abs(difference.value) <= limit * se if judged else None,
            )
        )
    return sorted(found, key=lambda row: (row.event == IDLE[1], -row.our_share))


def _sum(values: Floats) -> Expansion:
    return Expansion(float(values.sum()), values - values.mean())


def print_table(found: list[EventComparison]) -> None:
    """One row an event."""
    print("| event | ours | pg_wait_sampling | standard error | samples | effective | z | agree |")
    print("|---|---|---|---|---|---|---|---|")
    words = {True: "yes", False: "NO", None: "too few samples"}
    for row in found:
        name = f"{row.type} {row.event}".strip()
        if (row.type, row.event) == IDLE:
            name += " (of all waits)"
        print(
            f"| {name} | {100 * row.our_share:.3f} % | {100 * row.their_share:.3f} % |"
            f" {100 * row.se:.3f} % | {row.samples} | {row.effective_samples:.0f} |"
            f" {row.z:+.2f} | {words[row.agrees]} |"
        )


def document(given: argparse.Namespace, found: list[EventComparison], tps: float) -> dict[str, Any]:
    """Everything as JSON. It agrees only if some event with enough samples was compared."""
    judged = Counter(row.agrees for row in found)
    return {
        "schema": SCHEMA,
        "clients": given.clients,
        "made_tps": tps,
        "batches": given.batches,
        "batch_s": given.batch,
        "alpha": ALPHA,
        "events": [{**asdict(row), "z": row.z} for row in found],
        "judged": judged[True] + judged[False],
        "passed": judged[True] > 1 and not judged[False],
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--rate", type=float, default=300, help="transactions a second")
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--batch", type=float, default=2.0, help="seconds of each")
    parser.add_argument("--pg-config", default=PG_CONFIG)
    parser.add_argument("--output", type=Path, help="write all figures there, as JSON")
    given = parser.parse_args()
    try:
        with load(given.clients, given.rate, given.pg_config) as (conn, running):
            query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
            pids = [pid for (pid,) in conn.execute(query, (running.application_name,))]
            events, ours, theirs = batches(conn, pids, given.batches, given.batch)
            running.check()
            tps = float(np.mean([report.tps for report in running.progress[1:]]))
    except PgtareError as ex:
        raise SystemExit(f"error: {ex}") from ex
    found = compare(*pooled(events, ours, theirs))
    rounds = theirs.sum() / max(ours.sum() / 1000, 1e-9)
    print(
        f"{given.clients} sessions, {tps:.0f} tx/s, {given.batches} batches of {given.batch:g} s; "
        f"{rounds:.1f} samples in a second of waiting"
    )
    print_table(found)
    result = document(given, found, tps)
    print("the shares agree" if result["passed"] else "the shares do not agree")
    if given.output:
        given.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if result["passed"] else 1)


if __name__ == "__main__":
    main()
