"""The duet driver against real servers: order, values, and truth of its latencies."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgtare.errors import UsageError
from pgtare.estimate.trial.design import Arm, Design
from pgtare.kit import npz
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, Script
from pgtare.postgres.load.driver import build_driver, driver_for, driver_source
from pgtare.postgres.load.duet import run_duet
from pgtare.postgres.load.duet_plan import Length
from tests.assignment import permuted_block
from tests.duet_runs import SELECT_1, SHORT, assert_nothing_lost, latencies_us, signal_driver
from tests.loads import during

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


# Building


def test_the_driver_is_built_again_only_where_its_source_changed(
    wheel: Binaries, driver: Path, tmp_path: Path
) -> None:
    stamp = driver.stat().st_mtime_ns
    assert build_driver(wheel) == driver
    assert driver.stat().st_mtime_ns == stamp
    changed = tmp_path / "driver"
    shutil.copytree(driver_source(), changed)
    with open(changed / "main.c", "a") as file:
        file.write("#error changed\n")
    with pytest.raises(UsageError, match=r"(?s)the duet driver could not be built.*changed"):
        build_driver(wheel, changed)


def test_missing_headers_are_named_with_their_package(
    wheel: Binaries, open_directory: Path
) -> None:
    pg_config = open_directory / "pg_config"
    pg_config.write_text("#!/bin/sh\necho /nonexistent\n")
    pg_config.chmod(0o755)
    other = dataclasses.replace(wheel, pg_config=pg_config)
    with pytest.raises(UsageError, match=r"/nonexistent/libpq-fe\.h: install .*libpq-dev"):
        build_driver(other)
    # servers of any installation get the driver of the bundled one
    assert driver_for(other) == build_driver(wheel)


# Order and values


def test_order_is_the_seed_s_and_balanced(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    run = run_duet(
        driver, [*targets, targets[0]], script(SELECT_1, clients=2), SHORT, tmp_path / "r"
    )
    assert run.whole
    assert_nothing_lost(run.records)
    arms = (Arm("a", "base"), Arm("b", "instrument"), Arm("c", "instrument"))
    design = Design(arms, (0, 1, 2), seed=5)
    rows = run.records.rows
    for row in rows[:: max(1, len(rows) // 2000)]:
        order = permuted_block(design, int(row["thread"]), int(row["cycle"]))
        assert order[row["turn"]] == row["cluster"]
    # in a closed loop the order is also that of time
    one = rows[rows["thread"] == 1]
    one = one[np.lexsort((one["turn"], one["cycle"]))]
    assert (np.diff(one["scheduled_ns"]) > 0).all()
    for cluster in range(3):
        turns = np.bincount(rows["turn"][rows["cluster"] == cluster], minlength=3)
        # 99.99 % of fair draws
        assert (abs(turns - turns.sum() / 3) < 4 * np.sqrt(turns.sum() * 2 / 9)).all()


@pytest.mark.parametrize("protocol", ["simple", "extended", "prepared"])
def test_clusters_get_the_same_values_in_a_cycle(
    driver: Path, targets: Any, pair: list[Cluster], script: Any, tmp_path: Path, protocol: str
) -> None:
    """For so long that there are some cycles on a busy machine, too."""
    text = """
\\set x random(-5, 4000000000 * :scale)
BEGIN;
INSERT INTO seen VALUES (:client_id, :x, 0);
\\set y random(1, 2) + :x
UPDATE seen SET y = :y WHERE x = :x;
END;
"""
    run = run_duet(
        driver,
        targets,
        script(text, protocol=protocol, clients=2),
        Length(1.5),
        tmp_path / "r",
        variables={"scale": 3},
    )
    assert run.whole, run.failure
    tables = []
    for cluster in pair:
        with cluster.connect() as connection:
            tables.append(connection.execute("SELECT * FROM seen ORDER BY x").fetchall())
            connection.execute("TRUNCATE seen")
    assert tables[0] == tables[1]
    assert len(tables[0]) == len(run.records.rows) / 2 > 4
    assert {client for client, _, _ in tables[0]} == {0, 1}
    assert {y - x for _, x, y in tables[0]} == {1, 2}
    assert max(x for _, x, _ in tables[0]) > 2**32


def test_scripts_are_chosen_by_weight(driver: Path, targets: Any, tmp_path: Path) -> None:
    scripts = []
    for number, weight in enumerate((1, 0, 3)):
        path = tmp_path / f"{number}.sql"
        path.write_text(f"SELECT {number};")
        scripts.append(Script(path, weight))
    spec = LoadSpec(scripts=tuple(scripts), protocol="prepared", seed=1)
    rows = run_duet(driver, targets, spec, SHORT, tmp_path / "r").records.rows
    drawn = rows["script"][rows["cluster"] == 0]  # the other's are the same
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    assert shares[1] == 0
    # but for one of a million fair draws, of as many as there were
    assert shares[2] == pytest.approx(0.75, abs=4.9 * np.sqrt(0.75 * 0.25 / len(drawn)))


# Truth of what is measured


def test_a_known_delay_is_recovered(
    driver: Path, pair: list[Cluster], script: Any, tmp_path: Path
) -> None:
    """2 ms more sleep, set for the session, in one of the clusters.

    Means of the fastest hundredth, which a busy machine leaves alone.
    """
    targets = [pair[0].dsn(options="-c duet.ms=1"), pair[1].dsn(options="-c duet.ms=3")]
    spec = script("SELECT pg_sleep(current_setting('duet.ms')::float8 / 1000);")
    run = run_duet(driver, targets, spec, Length(2.0, warmup_s=0.2), tmp_path / "r")
    assert run.whole

    def fastest(cluster: int) -> float:
        values = np.sort(latencies_us(run.records, cluster))
        return float(values[: max(1, len(values) // 100)].mean())

    assert fastest(1) - fastest(0) == pytest.approx(2000, rel=0.15)


def test_the_warm_up_is_recorded_but_not_measured(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    """Records are kept as columns. On a busy machine nothing may begin for half a second."""
    run = run_duet(driver, targets, script(SELECT_1), Length(1.0, warmup_s=1.0), tmp_path / "r")
    rows = run.records.rows
    started = rows["scheduled_ns"][rows["turn"] == 0]  # a cycle that has begun is ended
    assert started.min() < 1_000_000_000 < started.max() < 2_020_000_000
    assert run.records.measured["scheduled_ns"].min() >= 1_000_000_000
    npz.write(tmp_path / "r.npz", run.records.columns())
    columns = np.load(tmp_path / "r.npz")
    assert np.array_equal(columns["latency_ns"], run.records.rows["latency_ns"])
    assert (tmp_path / "r.npz").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_more_records_than_fit_a_block_are_all_kept(
    driver: Path, targets: Any, script: Any, tmp_path: Path
) -> None:
    """Blocks hold 8,192 records; each thread fills several."""
    reports: list[tuple[float, int]] = []
    output = tmp_path / "r"

    def enough() -> bool:
        written = output.exists() and output.stat().st_size > 4 * 8192 * 40
        return written and len(reports) > 1 and reports[-1][1] > reports[0][1]

    def await_blocks() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not enough():
            time.sleep(0.05)
        signal_driver(output, signal.SIGINT)

    with during(await_blocks):
        run = run_duet(
            driver,
            targets,
            script(SELECT_1, clients=2),
            Length(30),
            output,
            on_progress=lambda *report: reports.append(report),
        )
    assert_nothing_lost(run.records)
    assert len(run.records.rows) > 4 * 8192
    assert [s for s, _ in reports][:2] == [1.0, 2.0]
    counts = [transactions for _, transactions in reports]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] <= len(run.records.rows)


# PostgreSQL 15


@pytest.mark.debian
@pytest.mark.parametrize("protocol", ["simple", "prepared"])
def test_the_driver_of_15_serves_15_and_18(
    debian15: Binaries, server15: Cluster, server18: Cluster, tmp_path: Path, protocol: Any
) -> None:
    """Built with the older libpq, on both servers at once, in pgbench's own transaction."""
    for cluster in (server15, server18):
        with cluster.connect() as connection:
            connection.execute(PGBENCH_TABLES)
    targets = [cluster.dsn() for cluster in (server15, server18)]
    spec = LoadSpec(builtin="tpcb-like", protocol=protocol, clients=2, seed=3)
    try:
        run = run_duet(build_driver(debian15), targets, spec, Length(0.5), tmp_path / "r")
        assert run.whole, run.failure
        assert_nothing_lost(run.records)
        per_cluster = np.bincount(run.records.rows["cluster"])
        sums = []
        for cluster, transactions in zip((server15, server18), per_cluster, strict=True):
            with cluster.connect() as connection:
                row = connection.execute(
                    "SELECT count(*), sum(delta), (SELECT sum(bbalance) FROM pgbench_branches)"
                    " FROM pgbench_history"
                ).fetchone()
            assert row is not None
            assert row[0] == transactions
            assert row[1] == row[2]
            sums.append(row[1])
        assert sums[0] == sums[1]
    finally:
        for cluster in (server15, server18):
            with cluster.connect() as connection:
                for table in ("branches", "tellers", "accounts", "history"):
                    connection.execute(f"DROP TABLE pgbench_{table}")


PGBENCH_TABLES = """
    CREATE TABLE pgbench_branches AS SELECT 1 AS bid, 0 AS bbalance;
    CREATE TABLE pgbench_tellers AS SELECT tid, 0 AS tbalance FROM generate_series(1, 10) tid;
    CREATE TABLE pgbench_accounts AS
        SELECT aid, 0 AS abalance FROM generate_series(1, 100000) aid;
    CREATE UNIQUE INDEX ON pgbench_accounts (aid);
    CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp);
"""
