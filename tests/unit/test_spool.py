"""Commits, baselines, the lock, damage and full disks, without a kill."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pgtare.errors import PgtareError, UsageError
from pgtare.keeping.spool import held as held_rows
from pgtare.keeping.spool import lock, manifest, reader, segments
from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.volume import Volume
from pgtare.keeping.spool.writer import Spool
from tests.small_volume import fill, small_volume
from tests.unit.spool_rows import (
    UNLIMITED,
    at,
    catch_up,
    held,
    newest,
    number,
    random_rows,
    value,
)


def commit(spool: Spool, index: int, *tables: str) -> str:
    rows = {name: random_rows(name, [at(10 * index)], index) for name in tables or ("ticks",)}
    return spool.commit(rows, {("one", "waits"): number(index)})


def test_a_commit_is_rows_and_their_baseline(tmp_path: Path) -> None:
    with Spool.open(tmp_path / "s", UNLIMITED) as spool:
        assert spool.reading("one", "waits") is None
        ids = [commit(spool, index, *TABLES) for index in (1, 2)]
        assert value(spool.reading("one", "waits")) == 2
        assert spool.reading("other", "waits") is None
        spool.commit({}, {("one", "waits"): None, ("a/../b", "x" * 300): number(7)})
    with Spool.open(tmp_path / "s", UNLIMITED) as spool:
        assert spool.reading("one", "waits") is None
        assert value(spool.reading("a/../b", "x" * 300)) == 7
    for table in TABLES:
        found = held(tmp_path / "s", table)
        assert found.schema == TABLES[table].schema
        assert set(found["segment"].to_pylist()) >= set(ids)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "s").rglob("*")}
    assert modes == {0o700, 0o600}
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    given = {name: random_rows(name, [at(1), at(2)]) for name in ("sessions", "waits", "gaps")}
    with Spool.open(tmp_path, UNLIMITED) as spool:
        spool.commit(given, {})
    for name, rows in given.items():
        assert held(tmp_path, name).drop_columns(["segment"]) == rows


def test_a_segment_is_of_one_day_and_not_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MOST_ROWS", 4)
    times = [at(14 * 3600 - 10 + 2 * i) for i in range(10)]  # over midnight
    with Spool.open(tmp_path, UNLIMITED) as spool:
        spool.commit({"ticks": random_rows("ticks", times, each=1)}, {})
        catch_up(spool, at(14 * 3600 + 60))
    found = newest(tmp_path).of_table("ticks")
    assert [(s.day, s.rows) for s in found] == [
        ("2026-11-02", 4),
        ("2026-11-02", 1),
        ("2026-11-03", 4),
        ("2026-11-03", 1),
    ]
    for segment in found:
        name = Path(segment.name).name
        assert name.startswith(f"{newest(tmp_path).uuid}-0000000001-ticks-")
    assert held(tmp_path, "ticks").num_rows == 10


def test_many_small_segments_become_few(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in range(40):
            commit(spool, index)
            catch_up(spool, at(10 * index))
        assert len(newest(tmp_path).of_table("ticks")) < 20
        catch_up(spool, at(2 * 86400))
        assert len(newest(tmp_path).of_table("ticks")) == 1
        assert held(tmp_path, "ticks").num_rows == 120
        catch_up(spool, at(2 * 86400 + 3600))  # replaced files are removed
    content = newest(tmp_path)
    assert not content.retired
    there = {f"segments/{name}" for name in os.listdir(tmp_path / "segments")}
    assert there == set(content.segments)


def test_old_segments_are_listed_in_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_MOST_OUTSIDE", 3)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in range(20):
            commit(spool, index)
        assert len(os.listdir(tmp_path / "catalogues")) <= 3
    assert newest(tmp_path).catalogue
    with Spool.open(tmp_path, UNLIMITED) as spool:
        catch_up(spool, at(86400))
    assert held(tmp_path, "ticks").num_rows == 60


@pytest.mark.parametrize("content", [b"", b'{"sha256":', b"{}", b"[1]", b"\xff" * 100])
def test_a_torn_manifest_costs_one_commit(tmp_path: Path, content: bytes) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in (1, 2, 3):
            commit(spool, index)
    (tmp_path / "manifest.json").write_bytes(content)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        assert "manifest.json is damaged" in spool.take_notes()[0]
        assert value(spool.reading("one", "waits")) == 2
        commit(spool, 4)
    assert held(tmp_path, "ticks").num_rows == 9


def test_a_torn_manifest_does_not_replace_the_one_before(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in (1, 2, 3):
            commit(spool, index)
    path = tmp_path / "manifest.json"
    path.write_bytes(path.read_bytes()[:100])
    with Spool.open(tmp_path, UNLIMITED) as spool:
        commit(spool, 3)
        assert manifest.read_previous(tmp_path).seq == 4
    assert (tmp_path / "damaged" / "manifest.json").stat().st_size == 100
    assert "manifest.json" in newest(tmp_path).damaged


def test_the_number_of_a_lost_commit_is_not_used_again(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        ids = [commit(spool, index) for index in range(1, 4)]
    (tmp_path / manifest.NEWEST).write_bytes(b"")
    with Spool.open(tmp_path, UNLIMITED) as spool:
        commit(spool, 4)
    content = newest(tmp_path)
    assert content.lost == ((3, 3),)
    kept = set(held(tmp_path, "ticks")["segment"].to_pylist())
    assert kept == {*ids[:2], f"{content.uuid}-0000000005"}


@pytest.mark.parametrize("damage", ["cut", "missing"])
@pytest.mark.parametrize("torn", [False, True])
def test_segments_of_a_damaged_catalogue_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, torn: bool
) -> None:
    monkeypatch.setattr(manifest, "_MOST_OUTSIDE", 3)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in range(20):
            commit(spool, index)
        catch_up(spool, at(200))  # merged and replaced ones, too
        commit(spool, 20, "findings")  # what a torn manifest costs
    before = newest(tmp_path)
    assert before.retired
    assert before.catalogue
    for path in (tmp_path / "catalogues").iterdir():
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-9])
    if torn:
        (tmp_path / "manifest.json").write_bytes(b"")
    lost = before.of_table("ticks")[0]
    (tmp_path / lost.name).write_bytes(b"PAR1")
    answer = reader.query(tmp_path, "SELECT count(*) FROM ticks")
    assert answer.rows == [(60 - lost.rows,)]
    with Spool.open(tmp_path, UNLIMITED) as spool:
        assert "its segments were found by their files" in " ".join(spool.take_notes())
        after = newest(tmp_path).segments
        of_ticks = {one.name: one for one in before.of_table("ticks")}
        assert {name for name in of_ticks if after.get(name) != of_ticks[name]} == {lost.name}
        commit(spool, 20)
        catch_up(spool, at(86400))
    assert held(tmp_path, "ticks").num_rows == 63 - lost.rows
    (gap,) = held(tmp_path, "gaps").to_pylist()
    assert (gap["kind"], gap["detail"][:27]) == ("lost", "ticks: all rows of 2026-11-")


def test_a_changed_manifest_is_damaged(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in (1, 2):
            commit(spool, index)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"seq":2', '"seq":9'))
    assert "damaged" in str(manifest.read(tmp_path)[1])
    (tmp_path / "manifest.previous.json").write_text("")
    with pytest.raises(PgtareError, match=r"neither manifest\.json nor manifest\.previous\.json"):
        Spool.open(tmp_path, UNLIMITED)


@pytest.mark.parametrize("lost", [(), ("spool.json",)])
def test_a_spool_without_manifests_is_not_taken_for_a_new_one(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in (1, 2, 3):
            commit(spool, index)
    for name in (manifest.NEWEST, manifest.PREVIOUS, *lost):
        (tmp_path / name).unlink()
    if lost:
        (tmp_path / "room").unlink()
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for _ in range(2):
        with pytest.raises(PgtareError, match=r"neither manifest\.json nor .* is whole"):
            Spool.open(tmp_path, UNLIMITED)
    with pytest.raises(PgtareError, match=r"neither manifest\.json nor .* is whole"):
        reader.query(tmp_path, "SELECT count(*) FROM ticks")
    assert before <= set(tmp_path.rglob("*"))


@pytest.mark.parametrize("damage", ["cut", "zeroes", "missing", "inside"])
def test_a_damaged_segment_is_set_aside(tmp_path: Path, damage: str) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for index in range(20):
            commit(spool, index)
    victim = newest(tmp_path).of_table("ticks")[3]
    path = tmp_path / victim.name
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "zeroes":
        path.write_bytes(bytes(len(data)))
    elif damage == "missing":
        path.unlink()
    else:  # found only when it is read: a byte of a page
        data[150] ^= 0xFF
        path.write_bytes(data)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        catch_up(spool, at(2 * 86400))
        notes = " ".join(spool.take_notes())
        assert f"{path} is damaged" in notes
    assert held(tmp_path, "ticks").num_rows == 57
    assert list(newest(tmp_path).damaged) == [victim.name]
    assert (tmp_path / "damaged" / path.name).exists() == (damage != "missing")
    (gap,) = held(tmp_path, "gaps").to_pylist()
    assert (gap["kind"], gap["from_ts"]) == ("lost", at(30))
    assert gap["detail"].startswith("ticks: 3 rows of 2026-11-02")


def test_a_damaged_baseline_is_none(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        commit(spool, 1)
    (reading,) = (tmp_path / "readings").iterdir()
    reading.write_bytes(b"PAR1")
    with Spool.open(tmp_path, UNLIMITED) as spool:
        assert spool.reading("one", "waits") is None
        assert "set aside" in spool.take_notes()[0]
        assert spool.reading("one", "waits") is None
    (gap,) = held(tmp_path, "gaps").to_pylist()
    assert (gap["kind"], gap["server"]) == ("lost", "one")
    assert gap["from_ts"] == min(at(10), gap["ts"])
    assert gap["detail"].startswith("what came after the last rows: the reading of waits is")


def test_a_second_writer_is_refused_and_names_the_first(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pgtare.keeping.spool.writer import Spool\n"
        "with Spool.open(Path(sys.argv[1])): print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    with pytest.raises(UsageError, match=rf"written by another process \(process {other.pid}\)"):
        Spool.open(tmp_path / "s")
    other.kill()
    other.communicate()
    Spool.open(tmp_path / "s").close()


def test_a_reader_that_looks_who_writes_does_not_stop_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Spool.open(tmp_path, UNLIMITED).close()
    reading = os.open(tmp_path / lock.LOCK, os.O_RDONLY)
    fcntl.flock(reading, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(reading))
    with Spool.open(tmp_path, UNLIMITED):
        assert lock.holder(tmp_path) == os.getpid()


def test_what_is_no_spool_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageError, match=r"is not empty and holds no spool .* lacks spool.json"):
        Spool.open(tmp_path)
    with pytest.raises(UsageError, match="there is no directory"):
        Spool.open(tmp_path / "a" / "b")
    with pytest.raises(UsageError, match="it is not a directory"):
        Spool.open(tmp_path / "x")
    (tmp_path / "spool.json").write_text(json.dumps({"schema": "pgtare.spool/9", "uuid": "u"}))
    with pytest.raises(UsageError, match="was written in version 9"):
        Spool.open(tmp_path)


class Full(Volume):
    """A disk that has no room as long as one says so."""

    full = False

    def free_bytes(self) -> int:
        return 0 if self.full else 1 << 40


def test_rows_are_held_while_the_disk_is_full(tmp_path: Path) -> None:
    volume = Full(tmp_path)
    limits = SpoolLimits(most_bytes=1 << 60, reserve_bytes=1)
    with Spool.open(tmp_path, limits, volume) as spool:
        commit(spool, 1)
        volume.full = True
        ids = [commit(spool, index) for index in (2, 3)]
        assert spool.held == 2
        assert value(spool.reading("one", "waits")) == 3
        assert spool.trouble is not None
        assert "less than 1 byte of its disk is free" in spool.trouble
        assert held(tmp_path, "ticks").num_rows == 3
        volume.full = False
        ids.append(commit(spool, 4))
        assert (spool.held, spool.trouble) == (0, None)
        assert value(spool.reading("one", "waits")) == 4
    found = held(tmp_path, "ticks")
    assert found.num_rows == 12
    assert len({*ids, *found["segment"].to_pylist()}) == 4


def test_a_held_commit_that_ends_a_reading_leaves_none(tmp_path: Path) -> None:
    volume = Full(tmp_path)
    limits = SpoolLimits(most_bytes=1 << 60, reserve_bytes=1)
    with Spool.open(tmp_path, limits, volume) as spool:
        commit(spool, 1)
        volume.full = True
        spool.commit({}, {("one", "waits"): None})
        assert spool.trouble
        assert spool.reading("one", "waits") is None
        volume.full = False
        spool.commit({}, {})
        assert spool.reading("one", "waits") is None


def test_what_is_held_for_too_long_becomes_a_counted_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    volume = Full(tmp_path)
    with Spool.open(tmp_path, SpoolLimits(reserve_bytes=1, held_s=600), volume) as spool:
        volume.full = True
        for index in range(100):  # 1,000 s
            now = 10.0 * index
            commit(spool, index, "ticks", "findings")
        assert spool.held == 61
        volume.full = False
        commit(spool, 100, "ticks", "findings")
    assert held(tmp_path, "ticks").num_rows == 62 * 3
    (gap,) = held(tmp_path, "gaps").to_pylist()
    assert (gap["server"], gap["kind"]) == ("one", "disk_full")
    assert (gap["from_ts"], gap["ts"]) == (at(0), at(380))
    assert gap["covered_ns"] == 380 * 10**9
    assert gap["detail"].endswith("findings 117, ticks 117")


def test_what_is_written_only_once_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    volume = Full(tmp_path)
    with Spool.open(tmp_path, SpoolLimits(reserve_bytes=1, held_s=600), volume) as spool:
        volume.full = True
        commit(spool, 1, "servers", "texts", "ticks")
        now = 1000.0
        commit(spool, 2)
        assert spool.held == 1
        volume.full = False
        commit(spool, 3)
    counts = [held(tmp_path, name).num_rows for name in ("servers", "texts", "ticks")]
    assert counts == [3, 3, 6]
    (gap,) = held(tmp_path, "gaps").to_pylist()
    assert gap["detail"].endswith(": ticks 3")


def test_much_that_is_written_only_once_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = random_rows("texts", [at(1)])
    monkeypatch.setattr(held_rows, "_MOST_LASTING_BYTES", texts.nbytes)
    waiting = held_rows.Held()
    for second in range(3):
        waiting.add({"texts": texts}, {}, second)
    waiting.expire(3)
    assert [(name, rows.num_rows) for name, rows in waiting.rows()] == [("texts", 3), ("gaps", 1)]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_full_volume(tmp_path: Path) -> None:
    with small_volume("size=8m,mode=0777") as place:
        with Spool.open(place / "s", SpoolLimits(reserve_bytes=2 << 20)) as spool:
            for index in range(10):
                commit(spool, index, "waits", "sessions")
            fill(place)
            for index in range(10, 14):
                commit(spool, index, "waits", "sessions")
            assert spool.trouble is not None
            # what may go went: sessions; waits are not rolled up yet, so they stay
            assert held(place / "s", "sessions").num_rows == 0
            assert held(place / "s", "waits").num_rows == 30
            assert spool.held == 4
            (place / "others").unlink()
            commit(spool, 14, "waits", "sessions")
            assert spool.trouble is None
        assert held(place / "s", "waits").num_rows == 45
        kinds = held(place / "s", "gaps")
        assert set(kinds["kind"].to_pylist()) == {"dropped"}
        with Spool.open(place / "s", SpoolLimits(reserve_bytes=2 << 20)) as spool:
            assert value(spool.reading("one", "waits")) == 14


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from tests.unit.spool_rows import *
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Spool.open(Path(sys.argv[1]), UNLIMITED) as spool:
    spool.commit({"ticks": random_rows("ticks", [at(0)])}, {})
    assert spool.trouble is None
    spool.commit({"waits": random_rows("waits", [at(10)], each=2000)}, {})
    assert "the disk is full" in spool.trouble, spool.trouble
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    spool.commit({}, {})
    assert spool.trouble is None
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "s"], check=True)
    assert held(tmp_path / "s", "waits").num_rows == 2000


def test_a_clock_set_back_an_hour(tmp_path: Path) -> None:
    with Spool.open(tmp_path, UNLIMITED) as spool:
        times = [*range(0, 7300, 300), *range(3700, 11000, 300)]  # back by an hour, then on
        for index, seconds in enumerate(times):
            spool.commit({"ticks": random_rows("ticks", [at(seconds)], index)}, {})
            catch_up(spool, at(seconds))
        catch_up(spool, at(86400))
    expected = 3 * len(times)
    assert held(tmp_path, "ticks").num_rows == expected
    for table in ("ticks", "ticks_1m", "ticks_1h"):
        covered = held(tmp_path, table)["covered_ns"].to_pylist()
        assert sum(covered) == sum(held(tmp_path, "ticks")["covered_ns"].to_pylist())
