"""Recordings on disk, their sums, and their page."""

from __future__ import annotations

import stat
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import DiskFull, MeasurementError, PgtareError, UsageError
from pgtare.kit import parquet
from pgtare.seeing.waits import recording as recordings
from pgtare.seeing.waits.documents import summary
from pgtare.seeing.waits.page import answers, page, write_page
from pgtare.seeing.waits.recording import OpenWait, Recording, Writer
from pgtare.seeing.waits.summary import summarise
from pgtare.server.wait_ring import RingRecordKind
from tests.small_volume import fill, raise_no_space, small_volume
from tests.unit.sample_recording import BEGAN, CLIENT, READ, SLEEP, write

HOSTILE = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"


def test_parts_and_description_are_the_owners_only(tmp_path: Path) -> None:
    kept = write(tmp_path / "r")
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o700
    names = sorted(path.name for path in (tmp_path / "r").iterdir())
    assert names == [
        "part-00000.parquet",
        "part-00001.parquet",
        "part-00002.parquet",
        "recording.json",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "r").iterdir()} == {0o600}
    assert recordings.load(tmp_path / "r") == kept
    assert sum(len(part["kind"]) for part in recordings.parts(tmp_path / "r")) == 2 * 999 * 5


def test_statements_are_named_without_what_was_sent(tmp_path: Path) -> None:
    """Of utility statements pg_stat_statements has the text as sent; so have older recordings."""
    sent = {"11": "SET x = 'Alice' /* Alice */", "12": "SELECT 'Alice'"}
    kept = write(tmp_path / "r", texts=sent)
    assert kept.texts == {"11": "SET x = ?", "12": "SELECT ?"}
    description = tmp_path / "r" / recordings.DESCRIPTION
    stored = description.read_text()
    assert "Alice" not in stored
    description.write_text(stored.replace("SELECT ?", "SELECT 'Alice'"))
    assert recordings.load(tmp_path / "r") == kept
    found = summarise(kept, recordings.parts(tmp_path / "r"))
    for shown in (page(found), summary(found).to_json()):
        assert "Alice" not in shown


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(UsageError, match="exists already"):
        Writer(tmp_path)
    with pytest.raises(UsageError, match="holds no recording"):
        recordings.load(tmp_path)


def test_a_full_disk_leaves_whole_parts_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path / "r")

    columns = {name: np.zeros(3, kind) for name, kind in recordings.COLUMNS.items()}
    writer.add(columns)
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "sync", raise_no_space)
        with pytest.raises(MeasurementError, match="the disk is full"):
            writer.flush()
    assert list(writer.staged.path.glob("*part*")) == []
    writer.flush()
    assert [len(part["kind"]) for part in recordings.parts(writer.staged.path)] == [3]


@pytest.mark.parametrize("texts", [{}, {"7": "SELECT " + "long, " * 100_000}])
def test_a_full_disk_keeps_what_has_room(as_root: None, texts: dict[str, str]) -> None:
    """Parts of what was taken, and the description, for which room was taken before."""
    rng = np.random.default_rng(1)
    with small_volume("size=512k") as place:
        writer = Writer(place / "r")
        columns = {
            name: rng.integers(0, 60_000, 10_000).astype(kind)
            for name, kind in recordings.COLUMNS.items()
        }
        columns["session"][:] = 0
        for _ in range(10):
            writer.add(columns)
        with pytest.raises(DiskFull, match=r"part-00000.parquet could not be written: the disk"):
            writer.flush()
        kept = sum(len(part["kind"]) for part in recordings.parts(writer.staged.path))
        assert kept > 1000
        assert writer.unwritten() == {0: 100_000 - kept}
        fill(place)
        described = Recording(
            started=BEGAN,
            duration_s=1,
            stopped_by="space",
            server="180000",
            sessions=[],
            events={},
            texts=texts,
        )
        writer.close(described)
        assert recordings.load(place / "r") == described.model_copy(update={"texts": {}})
        assert list((place / "r").glob(".*")) == []


def test_a_disk_without_any_room(as_root: None) -> None:
    with small_volume("size=256k") as place:
        fill(place)
        with pytest.raises(DiskFull, match="free some space"):
            Writer(place / "r")
        assert not (place / "r").exists()


def test_damage_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "r")
    (tmp_path / "r" / "part-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(PgtareError, match="damaged"):
        write_page(tmp_path / "r", tmp_path / "x.html")


def test_sums_of_a_recording(tmp_path: Path) -> None:
    found = summarise(write(tmp_path / "r"), recordings.parts(tmp_path / "r"))
    lengths = [1000 << (i % 11) for i in range(999)]
    assert found.events[READ].waits == 999
    assert found.events[READ].total_ns == sum(lengths)
    assert found.events[READ].max_ns == max(lengths)
    assert found.label(READ) == "IO/DataFileRead"
    assert found.label(SLEEP) == "Timeout/0x09000004"

    assert found.active["IO"].mean() == pytest.approx(sum(lengths) / 1e10)
    assert found.active["Client"].mean() == pytest.approx(2 * 999 * 0.004 / 10)
    # half a millisecond of CPU in each cycle but the first, which has nothing to subtract from
    assert found.active["CPU"].mean() == pytest.approx(2 * 998 * 0.0005 / 10)
    assert found.statements[101].runs == 999
    assert found.statements[101].cpu_ns == pytest.approx(998 * 500_000)
    assert set(found.statements[102].events) == {SLEEP}
    assert found.statements[0].events[CLIENT].waits == 2 * 999
    assert found.heat.sum() == 2 * 999


@pytest.mark.parametrize(("server", "name"), [("180006", "BufferPin"), ("190000", "Buffer")])
def test_a_class_has_the_name_that_its_server_gives_it(
    tmp_path: Path, server: str, name: str
) -> None:
    found = summarise(write(tmp_path / "r"), recordings.parts(tmp_path / "r"))
    found.recording.server = server
    assert found.class_of(0x04000001) == name
    assert found.class_of(READ) == "IO"


def lone_wait(directory: Path, start_s: float, length_s: float) -> None:
    """Leave one wait of session 0, and a statement begun by each of two sessions."""
    for path in directory.glob("part*"):
        path.unlink()
    began_ns = round(BEGAN.timestamp() * 1e6) * 1000
    columns = {name: np.zeros(3, kind) for name, kind in recordings.COLUMNS.items()}
    columns["kind"][:] = [
        RingRecordKind.WAIT,
        RingRecordKind.STATEMENT_BEGIN,
        RingRecordKind.STATEMENT_BEGIN,
    ]
    columns["session"][:] = [0, 0, 1]
    columns["event"][0] = READ
    columns["query_id"][:] = 101
    columns["start_ns"][:] = began_ns + np.array([start_s, 1, 1]) * 1e9
    columns["value"][:] = [round(length_s * 1e9), 101, 101]
    parquet.write(directory / "part-00000.parquet", columns)


@pytest.mark.parametrize(("start_s", "length_s", "inside_s"), [(-20, 23, 3), (8, 5, 2)])
def test_a_wait_counts_as_far_as_it_lies_in_the_recording(
    tmp_path: Path, start_s: float, length_s: float, inside_s: float
) -> None:
    kept = write(tmp_path)
    lone_wait(tmp_path, start_s, length_s)
    found = summarise(kept, recordings.parts(tmp_path))
    assert found.active["IO"].mean() * 10 == pytest.approx(inside_s)
    assert found.events[READ].total_ns == pytest.approx(inside_s * 1e9)
    assert found.statements[101].waited_ns == pytest.approx(inside_s * 1e9)
    assert found.events[READ].max_ns == length_s * 1e9
    assert answers(found)[0] == f"{inside_s / 10:.2f} sessions were active on average."


def test_parallel_workers_are_no_runs(tmp_path: Path) -> None:
    kept = write(tmp_path)
    lone_wait(tmp_path, 0, 1)
    assert summarise(kept, recordings.parts(tmp_path)).statements[101].runs == 2
    kept.sessions[1].leader_pid = 4000
    assert summarise(kept, recordings.parts(tmp_path)).statements[101].runs == 1
    assert "worker of 4000" in page(summarise(kept, recordings.parts(tmp_path)))


def test_a_wait_that_never_ended_is_on_the_page(tmp_path: Path) -> None:
    kept = write(tmp_path)
    for path in tmp_path.glob("part*"):
        path.unlink()
    kept.sessions.clear()
    kept.waiting_at_end = [
        OpenWait(
            pid=4711,
            backend_type="client backend",
            type="Lock",
            event="transactionid",
            idle=False,
            query_id=101,
            started=BEGAN - timedelta(seconds=since),
            user="app",
            database="bank",
            application="web",
            blocked_by=[4712],
        )
        for since in (2, -6)
    ]
    found = summarise(kept, recordings.parts(tmp_path))
    assert found.active["Lock"].mean() == pytest.approx((10 + 4) / 10)
    (event,) = found.events
    assert (found.label(event), found.events[event].open) == ("Lock/transactionid", 2)
    assert found.statements[101].waited_ns == pytest.approx(14e9)
    text = page(found)
    assert "1 session waited throughout" in text
    assert "process 4711, 12 s in Lock" in text
    assert "blocked by 4712" in text
    assert "still waiting" in text


def test_the_page_escapes_whatever_it_shows(tmp_path: Path) -> None:
    kept = write(tmp_path / "r", {"101": HOSTILE, "102": HOSTILE})
    kept.events[str(READ)] = ["IO", HOSTILE]
    for session in kept.sessions:
        session.application = HOSTILE
    text = page(summarise(kept, recordings.parts(tmp_path / "r")))
    assert "<script>window.pwned" not in text
    assert HOSTILE not in text


def test_the_page_says_what_was_lost(tmp_path: Path) -> None:
    kept = write(tmp_path / "r", lost=1234)
    text = page(summarise(kept, recordings.parts(tmp_path / "r")))
    assert "1,234 records were overwritten" in text


def test_an_empty_recording_has_a_page_too(tmp_path: Path) -> None:
    kept = write(tmp_path / "r")
    for path in (tmp_path / "r").glob("part*"):
        path.unlink()
    kept.sessions.clear()
    text = page(summarise(kept, recordings.parts(tmp_path / "r")))
    assert "Nothing was recorded" in text
