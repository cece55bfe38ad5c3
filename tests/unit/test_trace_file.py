"""The trace file: what is written is read; what is damaged is reported, and nothing more."""

from __future__ import annotations

import io
import json
import os
import resource
import stat
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtare.errors import UsageError
from pgtare.observing.trace.file import blocks, columns, reader
from pgtare.observing.trace.file.blocks import BLOCK_HEADER, BLOCK_MAGIC, FILE_HEADER
from pgtare.observing.trace.file.disk_limits import LimitReached, Limits
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.tables import COLUMNS, NO_RING, Table
from pgtare.observing.trace.file.writer import Writer
from tests.commands import refused
from tests.sample_trace import ROWS, two_requests
from tests.unit.fuzz_trace import read_all
from tests.unit.made_traces import BEGAN_NS, NO_RESERVE, define_events, moment, ring, waits, write

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write(tmp_path / "t.pgtrace", two_requests().data, ROWS)


integers = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 300), st.just(5), st.integers(0, 2**40)
)


@given(st.lists(integers, max_size=300), st.lists(st.binary(max_size=40), max_size=30))
@settings(max_examples=150)
def test_columns_come_back_as_they_were(values: list[int], texts: list[bytes]) -> None:
    packed = columns.encode({"a": np.array(values, np.int64)})
    assert np.asarray(columns.decode(packed, len(values))["a"]).tolist() == values
    packed = columns.encode({"t": texts})
    assert columns.decode(packed, len(texts))["t"] == texts


@given(st.lists(st.tuples(integers, integers), max_size=300), st.integers(0, 63))
@settings(max_examples=150)
def test_columns_in_the_order_of_another(pairs: list[tuple[int, int]], zeros: int) -> None:
    keys = np.array([key for key, _ in pairs], np.int64)
    values = np.array([value for _, value in pairs], np.int64) >> zeros << zeros
    packed = columns.encode({"k": keys, "values": values}, {"values": "k"})
    found = columns.decode(packed, len(pairs))
    assert np.asarray(found["k"]).tolist() == keys.tolist()
    assert np.asarray(found["values"]).tolist() == values.tolist()
    lonely = packed[
        packed.rindex(b"values") - 2 :
    ]  # the name's length and the encoding go before it
    with pytest.raises(columns.Damaged, match="in the order of one that is not there"):
        columns.decode(lonely, len(pairs))


def test_pieces_are_those_of_pairs() -> None:
    rng = np.random.default_rng(5)
    n = 20_000
    keys = rng.integers(0, 2, n)
    before = np.concatenate([keys[:1], keys[:-1]])
    # the values of each pair fit a byte if they stand alone
    values = np.where(keys == before, rng.integers(0, 200, n), 1000 * (1 + keys))
    packed = columns.encode({"k": keys, "values": values}, {"values": "k"})
    assert np.asarray(columns.decode(packed, n)["values"]).tolist() == values.tolist()
    assert len(packed) < 0.8 * len(columns.encode({"k": keys, "values": values}))
    at = packed.index(b"\x01\x00k", packed.rindex(b"values")) + 3
    (pieces,) = struct.unpack_from("<I", packed, at)
    assert pieces == 4
    (length,) = struct.unpack_from("<I", packed, at + 4)
    for wrong in (length + n, 0):
        damaged = packed[: at + 4] + struct.pack("<I", wrong) + packed[at + 8 :]
        with pytest.raises(columns.Damaged):
            columns.decode(damaged, n)
    fewer = packed[:at] + struct.pack("<I", 3) + packed[at + 4 :]
    with pytest.raises(columns.Damaged, match="pieces of another length"):
        columns.decode(fewer, n)


def test_a_file_as_the_server_writes_it(tmp_path: Path) -> None:
    """Waits to the ns, each column by itself."""
    path = tmp_path / "t.pgtrace"
    rows = {
        "ring": np.array([1, 1]),
        "event": np.array([0, 1]),
        "gap_ns": np.array([BEGAN_NS, 3]),
        "length_ns": np.array([1001, 7]),
        "calls": np.array([1, 1]),
    }
    payload = columns.encode(rows)
    head = struct.pack(
        "<4sHHIIQI", BLOCK_MAGIC, Table.WAITS, 0, 2, len(payload), 0, zlib.crc32(payload)
    )
    file = struct.pack("<8sHHI16s", blocks.MAGIC, 1, 0, 0, bytes(16))
    path.write_bytes(
        b"".join(part + struct.pack("<I", zlib.crc32(part)) for part in (file, head)) + payload
    )
    (found,) = load(path).waits.values()
    assert found.start.tolist() == [BEGAN_NS, BEGAN_NS + 1004]
    assert found.length.tolist() == [1001, 7]


def test_sorted_columns_are_small_and_outliers_stand_apart() -> None:
    n = 10_000
    runs = np.repeat(np.arange(5), n // 5)
    assert len(columns.encode({"a": runs})) < 60
    few = np.arange(n) % 200
    few[17], few[4000] = -5, 2**62
    packed = columns.encode({"a": few})
    assert np.asarray(columns.decode(packed, n)["a"]).tolist() == few.tolist()
    assert len(packed) < n


def test_columns_of_a_block_are_bounded_together() -> None:
    """A column of one value takes a few bytes of a file, and 8 MiB of memory."""
    zeros = np.zeros(columns.MAX_ROWS, np.int64)
    packed = columns.encode(dict.fromkeys("abcdefgh", zeros))
    assert len(columns.decode(packed, columns.MAX_ROWS)) == 8
    many = packed * (columns.MAX_BYTES // (8 * zeros.nbytes) + 1)
    assert len(many) < 1000
    with pytest.raises(columns.Damaged, match="too large together"):
        columns.decode(many, columns.MAX_ROWS)


def test_a_file_that_would_fill_memory_is_refused(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rows take some hundred bytes, however many they are."""
    monkeypatch.setattr(reader, "_DECODED", 1 << 20)
    assert load(whole).streams
    equal = dict.fromkeys(COLUMNS[Table.WAITS], np.ones(20_000, np.int64))
    more = b"".join(blocks.block(Table.WAITS, 20_000, 100 + n, equal) for n in range(20))
    path = whole.with_name("made.pgtrace")
    path.write_bytes(whole.read_bytes() + more)
    with pytest.raises(UsageError, match="over 256 times its size in memory"):
        load(path)


def test_waits_come_back_in_order_of_ring_and_time(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "t.pgtrace", b"{}", NO_RESERVE)
    define_events(writer)
    for number in (1, 2):
        writer.define(Table.RINGS, ring(number, 100 + number, "waits"))
    writer.add(Table.WAITS, waits(2, [(0, 50, 10), (1, 8, 20)]))
    writer.add(Table.WAITS, waits(1, [(3, 8, 2**40)]))
    writer.close(b"{}")
    found = load(tmp_path / "t.pgtrace")
    # begins and ends are kept in units of 16 ns
    assert (found.waits[2].start - BEGAN_NS).tolist() == [16, 48]
    assert found.waits[2].length.tolist() == [16, 16]
    assert found.waits[1].length.tolist() == [2**40]
    assert found.label(int(found.waits[1].event[0])) == "IO/WalSync"
    assert found.rings[1].pid == 101
    assert not found.damages


def test_a_file_cut_anywhere_is_read_up_to_there(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    before = 0
    # all of the head and of the end, and each of the places in a word of what is between them
    for size in [*range(300), *range(300, len(data) - 300, 5), *range(len(data) - 300, len(data))]:
        cut = tmp_path / "cut.pgtrace"
        cut.write_bytes(data[:size])
        if size == 0:
            with pytest.raises(UsageError, match="empty"):
                load(cut)
            continue
        found = load(cut)
        assert found.end is None
        assert "has no end" in found.notes()[0]
        n = len(found.streams) + sum(len(w.start) for w in found.waits.values())
        assert n >= before  # the more bytes, the more is there
        before = n
    assert before >= len(ROWS)


def test_a_flipped_bit_costs_one_block_and_is_reported(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    sound = [d for d in blocks.scan(whole) if isinstance(d, blocks.Block)]
    for at in range(FILE_HEADER, len(data), 7):
        bad = bytearray(data)
        bad[at] ^= 0x10
        path = tmp_path / "bad.pgtrace"
        path.write_bytes(bad)
        found = list(blocks.scan(path))
        kept = [d for d in found if isinstance(d, blocks.Block)]
        damages = [d for d in found if isinstance(d, blocks.Damage)]
        assert len(kept) == len(sound) - 1
        assert damages
        assert any(d.offset <= at for d in damages)
        # one block is one damage, however it is noticed
        assert not any("missing" in str(d) for d in damages)
        assert not any("(0 bytes" in str(d) for d in damages)


class _Counted(io.BytesIO):
    """A file that counts the bytes that are read of it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def test_headers_without_blocks_take_no_time_without_end(tmp_path: Path) -> None:
    """A file made to be slow: each header is sound, and its block impossible."""
    data = blocks.file_header()
    for number in range(5000):
        size = columns.MAX_BYTES + 1
        head = struct.pack("<4sHHIIQI", BLOCK_MAGIC, Table.WAITS, 0, 0, size, number, 0)
        data += head + struct.pack("<I", zlib.crc32(head))
    file = _Counted(data)
    found = list(blocks._blocks(tmp_path, file))
    assert len(found) == 5000
    assert file.count < 50 * len(data)


def test_bytes_cut_out_and_blocks_that_stand_twice_are_reported(
    whole: Path, tmp_path: Path
) -> None:
    data = whole.read_bytes()
    at = [i for i in range(len(data)) if data[i : i + 4] == BLOCK_MAGIC]
    path = tmp_path / "bad.pgtrace"
    path.write_bytes(data[: at[1]] + data[at[2] :])
    (damage,) = load(path).damages
    assert str(damage) == f"{path}: 1 block is missing at byte {at[1]:,}"
    path.write_bytes(data[: at[2]] + data[at[1] :])
    found = load(path)
    assert any("twice" in str(d) for d in found.damages)
    assert len(found.rings) == 2


@pytest.mark.parametrize("version", [blocks.VERSION - 1, blocks.VERSION + 1])
def test_another_version_is_refused_in_a_sentence(whole: Path, version: int) -> None:
    data = bytearray(whole.read_bytes())
    struct.pack_into("<H", data, 8, version)
    struct.pack_into("<I", data, FILE_HEADER - 4, zlib.crc32(data[: FILE_HEADER - 4]))
    whole.write_bytes(data)
    with pytest.raises(UsageError, match=f"version {version} .*pgtare that wrote it"):
        load(whole)


def test_tables_and_columns_of_the_future_are_passed_over(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    more = blocks.block(99, 1, 1000, {"new": np.array([1])})
    path = tmp_path / "t.pgtrace"
    path.write_bytes(data + more)
    found = load(path)
    assert len(found.rings) == 2
    assert found.streams


def test_other_files_are_no_traces(tmp_path: Path) -> None:
    path = tmp_path / "x.pgtrace"
    path.write_bytes(b"something else entirely")
    with pytest.raises(UsageError, match="no trace of"):
        load(path)
    with pytest.raises(UsageError, match="there is no trace"):
        load(tmp_path / "nothing")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match="holds no trace"):
        load(empty)
    # so the system answers of a file in a directory that is not ours to enter, too
    with pytest.raises(UsageError, match="cannot be read: File name too long"):
        load(tmp_path / ("x" * 300))


def test_no_result_replaces_its_trace(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes --output for the place of the trace would lose it."""
    before, why = whole.read_bytes(), "would replace the trace itself"
    for command in ("profile", "statements", "clients"):
        assert why in refused("trace", command, whole, "--output", whole)
    assert why in refused("trace", "report", whole, "--html", whole)
    assert whole.read_bytes() == before
    new = tmp_path / "new"
    assert why in refused("trace", "record", new, "--dsn", "host=nowhere", "--output", new)
    monkeypatch.chdir(tmp_path)
    assert "it is a directory" in refused("trace", "report", ".")


def test_size_and_reserve_end_a_trace_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b"{}", Limits(total=2000, reserve=0))
    writer.define(Table.RINGS, ring(1, 7, "waits"))

    def fill() -> None:
        for i in range(10_000):
            writer.add(Table.WAITS, waits(1, [(0, i * 1000, i * i)]))
            writer.flush()

    with pytest.raises(LimitReached) as reached:
        fill()
    assert reached.value.limit == "size"
    assert writer.unwritten[Table.WAITS] == 1
    writer.close(json.dumps({"stopped_by": "size", "why": str(reached.value)}).encode())
    assert path.stat().st_size < 2200
    found = load(path)
    assert not found.damages
    assert "ended early" in found.notes()[0]
    with pytest.raises(UsageError, match="reserve"):
        Writer(tmp_path / "u.pgtrace", b"{}", Limits(reserve=1 << 62))


def test_what_lies_in_the_way_is_not_written_to(tmp_path: Path) -> None:
    """Whoever may write the directory could else read a trace, or choose what it overwrites."""
    path = tmp_path / "t.pgtrace"
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    (tmp_path / ".t.pgtrace.partial").symlink_to(other)
    Writer(path, b"{}", NO_RESERVE).close(b"{}")
    assert other.read_bytes() == b"of somebody else"
    assert not path.is_symlink()
    again = tmp_path / "u.pgtrace"
    (tmp_path / ".u.pgtrace.partial").touch(0o644)
    Writer(again, b"{}", NO_RESERVE).close(b"{}")
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, again)] == [0o600, 0o600]


def test_what_follows_a_torn_block_lies_where_that_began(tmp_path: Path) -> None:
    """As on a full disk, which takes the beginning of a block and then no more."""
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b"{}", NO_RESERVE)
    define_events(writer)
    writer.define(Table.RINGS, ring(1, 7, "waits"))
    sound = writer.written
    stream = {
        "ring": np.array([1]),
        "position": np.array([0]),
        "data": [os.urandom(100_000)],
    }
    writer.add(Table.STREAM, stream)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sound + 5000, most[1]))
    try:
        with pytest.raises(LimitReached, match="is full"):
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert path.stat().st_size == writer.written == sound
    writer.add(Table.WAITS, waits(1, [(0, 0, 1000)]))
    writer.close(b"{}")
    assert path.stat().st_size == writer.written
    found = load(path)
    assert not found.damages
    assert len(found.waits[1].start) == 1
    assert found.end == {}


def test_notes_of_an_end_tell_what_is_missing(tmp_path: Path) -> None:
    """Whatever a file says there: only counts are believed."""
    for number, (end, notes) in enumerate(
        [
            (
                {"unread": {"sessions": 1, "records": 20, "bytes": 3000}},
                ["1 session ended unread: 20 records, 3,000 bytes of calls made way"],
            ),
            ({"unwritten": {"bytes": 1234, "waits": 5}}, ["1,234 bytes of calls and 5 waits came"]),
            ({"unread": "x", "unwritten": {"bytes": -1, "waits": "y"}}, []),
        ]
    ):
        path = tmp_path / f"{number}.pgtrace"
        writer = Writer(path, b"{}", Limits(reserve=0))
        writer.close(json.dumps({"stopped_by": "time", **end}).encode())
        sentences = load(path).notes()
        assert len(sentences) == len(notes)
        assert all(a.startswith(b) for a, b in zip(sentences, notes, strict=True))


def test_numbers_in_documents_have_bounds(tmp_path: Path) -> None:
    """What a document says goes into arrays: the year 9999 has no room there."""
    late, early = "9999-12-31T23:59:59-14:00", "0001-01-02T00:00:00+00:00"
    assert [reader.moment(when) for when in (late, early)] == [reader.LATEST, -reader.LATEST]
    stated = ((late, moment(1)), (early, moment(1)), (moment(9), late), (moment(9), early))
    for number, (at, since) in enumerate(stated):
        doing = {"state": "active", "running": True, "since": since}
        kept = {"cause": "transaction", "detail": "", "at": at, "doing": doing}
        path = tmp_path / f"{number}.pgtrace"
        read_all(write(path, two_requests().data, ROWS, until=at, kept=kept), draw=True)
    writer = Writer(tmp_path / "t.pgtrace", b"{}", NO_RESERVE)
    define_events(writer)
    writer.define(Table.RINGS, ring(1, 7, "waits", leader_pid=10**30))
    writer.add(Table.WAITS, waits(1, [(0, 0, 1000)]))
    writer.close(json.dumps({"until": late, "behind": {"1": 10}}).encode())
    assert load(tmp_path / "t.pgtrace").rings[1].leader_pid is None
    read_all(tmp_path / "t.pgtrace")


def test_losses_of_sessions_that_nobody_saw(tmp_path: Path) -> None:
    """Told from the rows, too, where there is no end."""
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b"{}", Limits(reserve=0))
    for lost in (1000, 500):
        writer.add(
            Table.LOSSES,
            {"ring": np.array([NO_RING]), "when_ns": np.array([1]), "lost": np.array([lost])},
        )
    writer.flush()
    writer.abandon()
    note = load(path).notes()[-1]
    assert note.startswith("sessions ended unread: 1,500 bytes of calls made way")


def test_a_block_header_stands_where_the_documentation_says(whole: Path) -> None:
    data = whole.read_bytes()
    magic, table, zero, rows, _, number = struct.unpack_from("<4sHHIIQ", data, FILE_HEADER)
    assert (magic, table, zero, rows, number) == (BLOCK_MAGIC, Table.RECORDING, 0, 1, 0)
    assert (FILE_HEADER, BLOCK_HEADER) == (36, 32)
