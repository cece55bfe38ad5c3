"""What an eviction sweep of pg_stat_statements costs, by pg_stat_statements.max.

Two figures for each size. The sweep itself: one session runs statements never seen before, timed
inside the server; once in max(10, 5 % of max) of them has to make room, and its excess over its
neighbours is the sweep (rewrites of the text file are longer and can be separated). And what
is lost: a load alternates between statements that are known and a mix of known and new ones; the
difference in throughput, divided by the deallocations a second that went with it, gives the rate
at which 1 % is lost. And how it goes by the number of statements to a place: the same statements by
turns on two servers, one with few places and one with room for all.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psycopg

from bench.harness import say
from pgtare.estimate.study.rounds import paired
from pgtare.load import LoadSpec, RunResult, Script, find_pgbench, run
from pgtare.server.binaries import Binaries, from_pg_config, from_wheel
from pgtare.server.cluster import Cluster

SIZES = (100, 400, 1_000, 5_000, 10_000, 50_000)
#: Statements that take turns, on few places and on many.
STATEMENTS = (64, 96, 128, 256, 512)
FEW, MANY = 100, 1_000
#: Columns of the one table; each pair of them is a statement of its own.
_COLUMNS = 400
_KNOWN = 50
#: New statements that are timed one by one, and those that are not needed to see a rewrite.
_SWEEPS = 60
_FEWEST = 6_000
_ADMIN = """
CREATE TABLE wide ({columns});
CREATE FUNCTION fresh(first int, n int) RETURNS float8[] LANGUAGE plpgsql AS $$
DECLARE
  took float8[] := array_fill(0.0, ARRAY[n]);
  began timestamptz;
BEGIN
  FOR i IN 0 .. n - 1 LOOP
    began := clock_timestamp();
    EXECUTE 'SELECT c' || (first + i) % {many} + 1 || ', c' || (first + i) / {many} % {many} + 1
      || ' FROM wide';
    took[i + 1] := 1e6 * extract(epoch FROM clock_timestamp() - began);
  END LOOP;
  RETURN took;
END $$;
"""


@dataclass(frozen=True)
class Sweep:
    """One size: entries that a sweep evicts, and how long it takes in µs.

    statement_us: a new statement that finds room. rewrite_us: the longest statement, which had to
    write the file of texts anew as well (if that happened).
    """

    major: int
    size: int
    evicted: int
    sweeps: int
    sweep_us: float
    sweep_low_us: float
    sweep_high_us: float
    statement_us: float
    longest_us: float


@dataclass(frozen=True)
class Loss:
    """What evictions took from a load's throughput, as a share, and the rates that went with it."""

    major: int
    size: int
    clients: int
    tps: float
    lost_pct: float
    lost_low_pct: float
    lost_high_pct: float
    deallocations_s: float
    evicted_s: float
    one_percent_s: float
    one_percent_evicted_s: float


@dataclass(frozen=True)
class Turnover:
    """This many statements on `size` places: what is lost against a server with room for all."""

    major: int
    size: int
    statements: int
    clients: int
    tps: float
    lost_pct: float
    lost_low_pct: float
    lost_high_pct: float
    deallocations_s: float
    evicted_s: float


def victims(size: int) -> int:
    """How many entries a sweep evicts, as PostgreSQL has it."""
    return max(10, size * 5 // 100)


def prepare(cluster: Cluster) -> None:
    """The table and the function that runs new statements."""
    columns = ", ".join(f"c{i} int" for i in range(1, _COLUMNS + 1))
    with cluster.connect() as conn:
        conn.execute("CREATE EXTENSION pg_stat_statements")
        conn.execute(_ADMIN.format(columns=columns, many=_COLUMNS).encode())
        conn.execute("VACUUM wide")


def sweep(cluster: Cluster, size: int) -> Sweep:
    """Time statements never seen before, one by one, on a table that is full."""
    n = max(_SWEEPS * victims(size), _FEWEST)
    with cluster.connect() as conn:
        conn.execute("SET pg_stat_statements.track = 'all'")
        fill(conn, 0, size + victims(size))
        before = deallocations(conn)
        row = conn.execute("SELECT fresh(%s, %s)", (2 * size, n)).fetchone()
        assert row is not None
        swept = deallocations(conn) - before
    took = np.array(row[0])
    excess = sweeps_of(took, victims(size))
    low, high = interval_of_median(excess)
    return Sweep(
        cluster.binaries.major,
        size,
        victims(size),
        swept,
        float(np.median(excess)),
        low,
        high,
        float(np.median(took)),
        float(took.max()),
    )


def sweeps_of(took: npt.NDArray[np.float64], every: int) -> npt.NDArray[np.float64]:
    """The excess of each sweeping statement over its neighbours; sweeps come at equal distances."""
    whole = took[: len(took) // every * every].reshape(-1, every)
    at = int(np.median(whole, axis=0).argmax())
    return np.asarray(whole[:, at] - np.median(np.delete(whole, at, axis=1), axis=1))


def interval_of_median(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Order statistics that hold the median in 95 of 100 cases."""
    ordered, n = np.sort(values), len(values)
    rank = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return float(ordered[rank]), float(ordered[n - 1 - rank])


def fill(conn: psycopg.Connection[tuple[object, ...]], first: int, n: int) -> None:
    """Statements never seen before, so that the table is full."""
    conn.execute("SELECT count(*) FROM unnest(fresh(%s, %s))", (first, n))


def deallocations(conn: psycopg.Connection[tuple[object, ...]]) -> int:
    """How often the table was swept since the reset."""
    row = conn.execute("SELECT dealloc FROM pg_stat_statements_info").fetchone()
    assert row is not None
    return int(str(row[0]))


def measured_s(done: RunResult) -> float:
    """The seconds that pgbench's rate is of: without its start and its connecting."""
    return done.transactions / done.tps


def loss(cluster: Cluster, size: int, clients: int, rounds: int, seconds: int, seed: int) -> Loss:
    """Alternate a load of known statements with one of which a half is new."""
    pgbench = find_pgbench(cluster.binaries)
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="pgtare-bench-") as folder, cluster.connect() as conn:
        known, new = Path(folder, "known.sql"), Path(folder, "new.sql")
        # pgbench shares the processors: both scripts have it draw as many numbers
        draws = "".join(f"\\set {name} random(2, {_COLUMNS})\n" for name in "bd")
        known.write_text(f"\\set a random(1, {_KNOWN})\n{draws}SELECT c:a, c1, c1 FROM wide;\n")
        new.write_text(f"\\set a random(2, {_COLUMNS})\n{draws}SELECT c:a, c:b, c:d FROM wide;\n")
        specs = {
            "known": LoadSpec(scripts=(Script(known), Script(known)), clients=clients),
            "new": LoadSpec(scripts=(Script(known), Script(new)), clients=clients),
        }
        conn.execute("SET pg_stat_statements.track = 'all'")
        fill(conn, 0, size)
        for spec in specs.values():
            run(pgbench, cluster.dsn(), spec, 1)
        found: dict[str, list[float]] = {"known": [], "new": []}
        swept, spent = 0, 0.0
        for _ in range(rounds):
            for name in rng.permutation(list(specs)):
                before = deallocations(conn)
                # a seed of its own: the same statements again would be no new ones
                spec = replace(specs[name], seed=int(rng.integers(2**31)))
                done = run(pgbench, cluster.dsn(), spec, seconds)
                found[name].append(done.tps)
                if name == "new":
                    swept += deallocations(conn) - before
                    spent += measured_s(done)
    ratios = np.log(np.array(found["new"]) / np.array(found["known"]))
    got = paired(ratios, margin=0.005, family=1, alpha=0.05, seed=seed)
    lost, low, high = (-100 * math.expm1(x) for x in (got.mean, got.hi, got.lo))
    rate = swept / spent
    return Loss(
        cluster.binaries.major,
        size,
        clients,
        float(np.median(found["known"])),
        lost,
        low,
        high,
        rate,
        rate * victims(size),
        rate / lost,
        rate * victims(size) / lost,
    )


def turnover(
    small: Cluster,
    large: Cluster,
    size: int,
    n: int,
    clients: int,
    rounds: int,
    seconds: int,
    seed: int,
) -> Turnover:
    """Alternate n statements, drawn evenly, between a server with few places and one with many."""
    pgbench = find_pgbench(small.binaries)
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {"small": [], "large": []}
    swept, spent = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="pgtare-bench-") as folder, small.connect() as conn:
        path = Path(folder, "statements.sql")
        path.write_text(
            f"\\set n random(0, {n - 1})\n\\set a :n % {_COLUMNS} + 1\n"
            f"\\set b :n / {_COLUMNS} + 1\nSELECT c:a, c:b FROM wide;\n"
        )
        servers = {"small": small, "large": large}
        for number in range(rounds + 1):  # the first fills the tables
            for name in rng.permutation(list(servers)):
                before = deallocations(conn)
                spec = LoadSpec(
                    scripts=(Script(path),), clients=clients, seed=int(rng.integers(2**31))
                )
                done = run(pgbench, servers[name].dsn(), spec, seconds)
                if number:
                    found[name].append(done.tps)
                    if name == "small":
                        swept += deallocations(conn) - before
                        spent += measured_s(done)
    ratios = np.log(np.array(found["small"]) / np.array(found["large"]))
    got = paired(ratios, margin=0.005, family=1, alpha=0.05, seed=seed)
    lost, low, high = (-100 * math.expm1(x) for x in (got.mean, got.hi, got.lo))
    return Turnover(
        small.binaries.major,
        size,
        n,
        clients,
        float(np.median(found["large"])),
        lost,
        low,
        high,
        swept / spent,
        swept / spent * victims(size),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--statements", type=int, nargs="*", default=list(STATEMENTS))
    parser.add_argument("--only", choices=["sweep", "loss", "turnover"])
    parser.add_argument("--pg-config", help="an installed PostgreSQL instead of the wheel's")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    found = from_pg_config(Path(args.pg_config)) if args.pg_config else from_wheel()
    sweeps, losses, turnovers = [], [], []
    for size in args.sizes if args.only != "turnover" else ():
        with served(found, size) as cluster:
            prepare(cluster)
            if args.only != "loss":
                sweeps.append(sweep(cluster, size))
                say(f"{size}: {sweeps[-1]}")
            if args.only != "sweep":
                lost = loss(cluster, size, args.clients, args.rounds, args.seconds, args.seed)
                losses.append(lost)
                say(f"{size}: {lost}")
    if args.only in (None, "turnover"):
        with served(found, FEW) as small, served(found, MANY) as large:
            prepare(small)
            prepare(large)
            for n in args.statements:
                turnovers.append(
                    turnover(
                        small, large, FEW, n, args.clients, args.rounds, args.seconds, args.seed
                    )
                )
                say(f"{n}: {turnovers[-1]}")
    show(sweeps, losses, turnovers)
    if args.output:
        rows = {
            "sweeps": [asdict(s) for s in sweeps],
            "losses": [asdict(x) for x in losses],
            "turnovers": [asdict(x) for x in turnovers],
        }
        args.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def served(found: Binaries, size: int) -> Cluster:
    """A server whose pg_stat_statements holds `size` statements."""
    settings = {"pg_stat_statements.max": size, "autovacuum": False, "max_connections": 200}
    return Cluster(found, settings, preload=["pg_stat_statements"])


def show(sweeps: list[Sweep], losses: list[Loss], turnovers: list[Turnover]) -> None:
    """The tables of the documentation."""
    if sweeps:
        print("| max | a sweep evicts | takes, µs | 95 % | 1 % of the time at | sweeps |")
        for s in sweeps:
            print(
                f"| {s.size:,} | {s.evicted:,} | {s.sweep_us:,.0f} "
                f"| {s.sweep_low_us:,.0f} to {s.sweep_high_us:,.0f} "
                f"| {1e4 / s.sweep_us:,.1f}/s | {s.sweeps} |"
            )
    if losses:
        print(
            "| max | tx/s | lost | 95 % | deallocations/s | evicted/s | 1 % lost at | evicted/s |"
        )
        for x in losses:
            print(
                f"| {x.size:,} | {x.tps:,.0f} | {x.lost_pct:.1f} % "
                f"| {x.lost_low_pct:.1f} to {x.lost_high_pct:.1f} % | {x.deallocations_s:,.0f} "
                f"| {x.evicted_s:,.0f} | {x.one_percent_s:,.2g}/s "
                f"| {x.one_percent_evicted_s:,.0f} |"
            )
    if turnovers:
        print("| statements | to a place | tx/s | lost | 95 % | deallocations/s | evicted/s |")
        for t in turnovers:
            print(
                f"| {t.statements:,} | {t.statements / t.size:.2f} | {t.tps:,.0f} "
                f"| {t.lost_pct:.1f} % | {t.lost_low_pct:.1f} to {t.lost_high_pct:.1f} % "
                f"| {t.deallocations_s:,.0f} | {t.evicted_s:,.0f} |"
            )


if __name__ == "__main__":
    main()
