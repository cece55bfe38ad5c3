"""A spool by SQL: read-only, locked in, beside a writer that merges under it; and the commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from pgtare.errors import UsageError
from pgtare.keeping.spool import reader
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.writer import Spool
from tests.commands import failed, in_process
from tests.unit.spool_rows import UNLIMITED, at, catch_up, held, newest, number, random_rows


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool with rows of every table."""
    place = tmp_path_factory.mktemp("made") / "spool"
    with Spool.open(place, UNLIMITED) as spool:
        for index in range(20):
            rows = {name: random_rows(name, [at(10 * index)], index) for name in ("waits", "ticks")}
            spool.commit(rows, {("one", "waits"): number(index)})
        spool.commit({name: random_rows(name, [at(200)]) for name in TABLES}, {})
    return place


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    """A copy of it; its name is a pattern, and holds a quote."""
    return Path(shutil.copytree(made, tmp_path / "it's [1]*"))


def test_every_table_is_a_view_with_its_columns(tmp_path: Path, directory: Path) -> None:
    """Also if it is empty."""
    Spool.open(tmp_path / "new", UNLIMITED).close()
    tables = [name for (name,) in reader.query(directory, "SHOW TABLES").rows]
    assert tables == sorted(TABLES)
    for name, table in TABLES.items():
        answer = reader.query(directory, f"FROM {name}")
        assert answer.names == [column.name for column in table.columns]
        assert len(answer.rows) == held(directory, name).num_rows
        empty = reader.query(tmp_path / "new", f"FROM {name}")
        assert (empty.names, empty.types, empty.rows) == (answer.names, answer.types, [])


def test_a_query_does_not_take_all_processors(directory: Path) -> None:
    with reader.connect(directory) as connection:
        assert connection.execute("SELECT current_setting('threads')").fetchall() == [(2,)]


def test_sums_are_exact(directory: Path) -> None:
    (total,) = reader.query(directory, "SELECT sum(total_ns) FROM waits").rows[0]
    assert total == sum(held(directory, "waits")["total_ns"].to_pylist())
    (large,) = reader.query(directory, "SELECT sum(9223372036854775807) FROM ticks").rows[0]
    assert large == 9223372036854775807 * held(directory, "ticks").num_rows


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT 1; SELECT 2", "one SELECT at a time"),
        ("COPY (SELECT 1) TO 'x'", "one SELECT at a time"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO 'x'", "one SELECT at a time"),
        ("SET threads = 1", "one SELECT at a time"),
        ("", "one SELECT at a time"),
        ("SELEC", "syntax error"),
        ("SELECT nothing FROM waits", 'column "nothing" not found'),
        ("FROM read_text('/etc/passwd')", "Cannot access file"),
        ("FROM read_parquet('/tmp/*.parquet')", "Cannot access file"),
        ("SELECT 'a'::int", "Could not convert"),
    ],
)
def test_what_is_refused(directory: Path, sql: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reader.query(directory, sql)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT 'x'::INT FROM ticks", "Could not convert"),
        ("SELECT regexp_matches(source, '(') FROM ticks", r"missing \)"),
        ("SELECT 9223372036854775807 + count(*) FROM ticks", "Overflow"),
        ("SELECT (SELECT ts FROM ticks)", "More than one row"),
        ("FROM read_parquet('/tmp/*.parquet')", "Cannot access file"),
    ],
)
def test_a_wrong_query_reads_no_file_anew(
    directory: Path, monkeypatch: pytest.MonkeyPatch, sql: str, message: str
) -> None:
    monkeypatch.delattr(reader, "_damaged_files")
    with pytest.raises(UsageError, match=message):
        reader.query(directory, sql)


def test_the_configuration_is_locked(directory: Path) -> None:
    with reader.connect(directory) as connection:
        for sql in (
            "SET memory_limit = '100GB'",
            "SET enable_external_access = true",
            "ATTACH '/tmp/x.db'",
            "INSTALL httpfs",
            f"COPY (SELECT 1) TO '{str(directory / 'x').replace(chr(39), chr(39) * 2)}'",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(sql)


def test_a_reader_survives_merging_and_needs_no_lock(directory: Path) -> None:
    sql = "SELECT count(*), sum(calls) FROM waits"
    with Spool.open(directory, UNLIMITED) as spool, reader.connect(directory) as connection:
        expected = connection.execute(sql).fetchall()
        before = {segment.name for segment in newest(directory).of_table("waits")}
        cursor = connection.execute("SELECT calls FROM waits")
        first = cursor.fetchmany(1)
        catch_up(spool, at(2 * 86400))
        assert not before & set(newest(directory).segments)
        assert len(first + cursor.fetchall()) == expected[0][0]
        assert connection.execute(sql).fetchall() == expected
        assert reader.query(directory, sql).rows == expected
        # ten minutes later the files are gone; who asks again finds the new ones
        catch_up(spool, at(2 * 86400 + 700))
        with pytest.raises(duckdb.Error):
            connection.execute(sql).fetchall()
        assert reader.query(directory, sql).rows == expected


def test_a_damaged_file_is_left_out_with_a_note(directory: Path) -> None:
    segments = newest(directory).of_table("ticks")
    cut, inside = (directory / segments[i].name for i in (1, 4))
    cut.write_bytes(cut.read_bytes()[:-9])
    data = inside.read_bytes()
    inside.write_bytes(data[:4] + bytes(len(data) - 200) + data[-196:])
    answer = reader.query(directory, "SELECT sum(covered_ns), count(*) FROM ticks")
    assert answer.rows[0][1] == held_rows(directory) - 6
    assert len(answer.notes) == 2
    assert str(cut) in " ".join(answer.notes)


def held_rows(directory: Path) -> int:
    """Rows of ticks by the manifest."""
    return sum(segment.rows for segment in newest(directory).of_table("ticks"))


def test_tables_and_csv(directory: Path) -> None:
    sql = "SELECT ts, 5::BIGINT query_id, sum(calls) calls, NULL nothing FROM waits GROUP BY ts "
    sql += "ORDER BY ts LIMIT 2"
    shown = in_process("spool", "sql", directory, sql)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[1].startswith("2026-11-02 10:00:00")
    lines = in_process("spool", "sql", directory, sql, "--csv").stdout.splitlines()
    assert lines[0] == "ts,query_id,calls,nothing"
    assert lines[1].startswith("2026-11-02 10:00:00,5,")


def test_info(directory: Path) -> None:
    with Spool.open(directory, UNLIMITED):
        text = in_process("spool", "info", directory).stdout
        assert f"written by process {os.getpid()}" in text
    text = in_process("spool", "info", directory).stdout
    assert "nobody writes it" in text
    found = json.loads(in_process("spool", "info", directory, "--json").stdout)
    assert (found["schema"], found["writer_pid"]) == ("pgtare.spool.info/1", None)
    assert {table["name"]: table["rows"] for table in found["tables"]}["waits"] == 63
    assert found["gaps"][0]["rows"] >= 1


@pytest.mark.parametrize("command", [("sql", "SELECT 1"), ("info",)])
def test_no_spool(tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *rest = command
    done = in_process("spool", name, tmp_path / "none", *rest)
    assert "there is no spool of `pgtare agent`" in failed(done, 2)
    done = in_process("spool", name, tmp_path, *rest)
    assert "holds no spool of `pgtare agent`: it lacks spool.json" in failed(done, 2)


_NOW = """
import sys
from pathlib import Path
from pgtare.keeping.live.query_worker import QueryWorker
from pgtare.keeping.spool import reader
sql = (
    "SELECT count(*), any_value(current_date = (now() AT TIME ZONE 'UTC')::DATE), "
    "any_value(date_trunc('day', now()) = date_trunc('day', now() AT TIME ZONE 'UTC')) FROM ticks "
    "WHERE ts > now() - INTERVAL 1 MINUTE AND ts < now() + INTERVAL 1 MINUTE"
)
print(reader.query(Path(sys.argv[1]), sql).rows[0])
worker = QueryWorker(Path(sys.argv[1]))
print(worker._connection.execute("SELECT current_setting('TimeZone')").fetchone())
"""


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles"])
def test_now_is_in_utc_in_any_time_zone(tmp_path: Path, zone: str) -> None:
    with Spool.open(tmp_path / "spool", UNLIMITED) as spool:
        spool.commit({"ticks": random_rows("ticks", [datetime.now(UTC)])}, {})
    done = subprocess.run(
        [sys.executable, "-c", _NOW, str(tmp_path / "spool")],
        env={**os.environ, "TZ": zone},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["(3, True, True)", "('UTC',)"]
