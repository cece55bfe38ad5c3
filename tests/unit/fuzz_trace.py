"""Fuzzes the readers of traces: bytes changed at random, and blocks that are sound but senseless.

Nothing that a file can hold may crash a reader, or keep it busy without end. The default suite
runs it briefly; `python -m tests.unit.fuzz_trace SECONDS` runs it for as long as asked.
"""

from __future__ import annotations

import contextlib
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgtare.errors import PgtareError
from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis import merge, profile, statements
from pgtare.observing.trace.file import blocks, record_decoder
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.tables import COLUMNS, OF_BYTES, Table
from pgtare.observing.trace.output import export
from pgtare.observing.trace.output.page import page
from tests.sample_trace import ROWS, two_requests
from tests.unit.made_traces import write

#: Longest time for one file, in s: the file is small.
LIMIT_S = 20


def read_all(path: Path, *, draw: bool = False) -> None:
    """Everything that reads a trace; only sentences of ours may come out of it."""
    with contextlib.suppress(PgtareError):
        found = load(path)
        found.notes()
        book = ledgers.ledger(found)
        total = float(book.entries.ns.sum())
        for by in profile.GROUPINGS:
            grouped = profile.profile(book, by)
            assert abs(sum(line.total_ns for line in grouped.lines) - grouped.total_ns) <= (
                1e-6 * max(total, 1.0)
            )
        statements.report(book)
        for way in merge.WAYS:
            merge.clients(book, way)
        for columns in export.tables(book).values():
            assert len({len(values) for values in columns.values()}) == 1
        if draw:
            page(book)


def sample() -> bytes:
    """A small trace with something of everything."""
    with tempfile.TemporaryDirectory() as directory:
        b = two_requests()
        b.plan(5, [{"id": 0, "parent": -1, "kind": "Seq Scan", "relation": "public.t"}])
        b.rowsources(3, 5, [(0, 1, 10, 9, 1, 9000, 8000, 10000)], 40_000_000)
        b.error(40_000_000, "division by zero", 33816706, 3)
        b.transaction(1, 40_000_000, 30_000_000)
        b.lost(40_000_000, 100, 2)
        return write(Path(directory) / "t.pgtrace", b.data, ROWS).read_bytes()


_numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-3, 40), st.sampled_from([2**31, 2**62, -1])
)
_small = st.binary(max_size=80)


@st.composite
def senseless(draw: st.DrawFn) -> bytes:
    """A file whose blocks are sound and whose content is anything."""
    data = blocks.file_header()
    sound = _sound_stream(draw)
    for number in range(draw(st.integers(1, 6))):
        table = draw(st.sampled_from(list(Table)))
        rows = draw(st.integers(0, 6))
        columns: dict[str, object] = {}
        for name in COLUMNS[table]:
            if name in OF_BYTES:
                value = (
                    st.one_of(_small, st.just(sound))
                    if name == "data"
                    else st.one_of(
                        _small,
                        st.sampled_from([b'{"kind": "sql"}', b'{"kind": "waits"}', b"[" * 500]),
                    )
                )
                columns[name] = [draw(value) for _ in range(rows)]
            else:
                columns[name] = np.array([draw(_numbers) for _ in range(rows)], np.int64)
        if draw(st.integers(0, 9)) == 0 and columns:
            columns.pop(next(iter(columns)))
        data += blocks.block(int(table), rows, number, columns)  # type: ignore[arg-type]
    return data


def _sound_stream(draw: st.DrawFn) -> bytes:
    """Records of sound sizes with anything in them."""
    data = b""
    for _ in range(draw(st.integers(0, 5))):
        words = draw(st.lists(_numbers, min_size=0, max_size=16))
        body = struct.pack(f"<{len(words)}q", *words)
        kind, depth = draw(st.integers(0, 17)), draw(st.integers(0, 3))
        when, call = draw(_numbers), draw(_numbers) % 2**64
        data += struct.pack("<IHHQqQ", 32 + len(body), kind, depth, 1, when, call) + body
    return data


@contextlib.contextmanager
def limited() -> object:  # type: ignore[misc]
    """An alarm where a reader takes longer than it may."""

    def give_up(signum: int, frame: object) -> None:
        raise AssertionError(f"a reader took more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damaged(data: bytes, seed: int) -> bytes:
    """Bytes changed, cut out, doubled or cut off, at random."""
    rng = random.Random(seed)
    found = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not found:
            break
        at, n = rng.randrange(len(found)), rng.randint(1, 64)
        match rng.randrange(5):
            case 0:
                found[at] = rng.randrange(256)
            case 1:
                del found[at : at + n]
            case 2:
                found[at:at] = found[at : at + n]
            case 3:
                del found[at:]
            case 4:
                found[at : at + n] = rng.randbytes(n)
    return bytes(found)


def senseless_files(examples: int, directory: Path) -> Callable[[], None]:
    """A property over files whose blocks are sound."""

    @given(senseless(), st.integers(0, 9))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    def check(data: bytes, luck: int) -> None:
        path = directory / "f.pgtrace"
        path.write_bytes(data)
        with limited():
            read_all(path, draw=luck == 0)

    return check


def damaged_files(data: bytes, seeds: range, directory: Path) -> None:
    """Files damaged in as many ways as there are seeds, and streams likewise."""
    raw = two_requests().data
    for seed in seeds:
        path = directory / "d.pgtrace"
        path.write_bytes(damaged(data, seed))
        with limited():
            read_all(path, draw=seed % 100 == 0)
            record_decoder.decode([(0, damaged(raw, seed))])


def main() -> None:
    """Fuzz for as many seconds as the first argument says."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    start, seed, files = time.monotonic(), random.randrange(1 << 40), 0
    data = sample()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        while time.monotonic() - start < seconds:
            senseless_files(200, directory)()
            damaged_files(data, range(seed, seed + 300), directory)
            seed, files = seed + 300, files + 500
            sys.stdout.write(f"\r{files:,} files, {time.monotonic() - start:.0f} s")
            sys.stdout.flush()
    sys.stdout.write(
        f"\n{files:,} damaged or senseless traces in {seconds:.0f} s: no crash, no hang\n"
    )


if __name__ == "__main__":
    main()
