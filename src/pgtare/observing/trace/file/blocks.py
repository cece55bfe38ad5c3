"""The frame of a trace file: a header, then blocks that each carry their own checksums.

Whatever happened to a file, its whole blocks can be found among the others.
"""

from __future__ import annotations

import io
import secrets
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pgtare.errors import UsageError
from pgtare.kit import artefact
from pgtare.kit.numbers import counted, volume
from pgtare.observing.trace.file.columns import MAX_BYTES, MAX_ROWS, Column, Damaged, decode, encode
from pgtare.observing.trace.file.tables import GROUPED

#: Of the format; the server writes the same one for kept traces. Files of another are refused.
VERSION = 1
MAGIC = b"PGTARE\x00T"
BLOCK_MAGIC = b"\xb6TB\x01"
#: How the names of trace files end.
SUFFIX = ".pgtrace"
WHAT = "trace of `pgtare trace record`"

_FILE = struct.Struct("<8sHHI16sI")  # magic, version, 0, 0, random bytes, checksum
_BLOCK = struct.Struct("<4sHHIIQII")  # magic, table, 0, rows, bytes, number, checksums
FILE_HEADER, BLOCK_HEADER = _FILE.size, _BLOCK.size
#: Bytes that are searched for a block at first, and at a time at most: many may be near.
_SEARCHED, _MOST_SEARCHED = 1 << 10, 1 << 20
#: How often the bytes of a file are read at most, in search of its sound blocks.
_EFFORT = 4


@dataclass(frozen=True)
class Block:
    """Some rows of a table; number: counted from 0, stored: its bytes in the file."""

    table: int
    rows: int
    number: int
    columns: dict[str, Column]
    stored: int

    @property
    def decoded(self) -> int:
        """The bytes that it is decoded to."""
        texts = (column for column in self.columns.values() if isinstance(column, list))
        return 8 * self.rows * len(self.columns) + sum(len(value) for c in texts for value in c)


@dataclass(frozen=True)
class Damage:
    """A place where a file does not hold what was written, and whether it is only its end."""

    path: Path
    offset: int
    size: int
    what: str
    tail: bool = False

    def __str__(self) -> str:
        left_out = f" ({volume(self.size)} left out)" if self.size else ""
        return f"{self.path}: {self.what} at byte {self.offset:,}{left_out}"


@dataclass(frozen=True)
class _Bad:
    """What is wrong with a block, and its length if its header is sound."""

    what: str
    length: int = 0


def file_header() -> bytes:
    """The first bytes of a file."""
    head = _FILE.pack(MAGIC, VERSION, 0, 0, secrets.token_bytes(16), 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def block(table: int, rows: int, number: int, columns: dict[str, Column]) -> bytes:
    """A block as it is in a file."""
    assert rows <= MAX_ROWS
    payload = encode(columns, GROUPED.get(table))
    head = _BLOCK.pack(BLOCK_MAGIC, table, 0, rows, len(payload), number, zlib.crc32(payload), 0)[
        :-4
    ]
    return head + struct.pack("<I", zlib.crc32(head)) + payload


def _header_damage(path: Path, file: BinaryIO) -> Damage | None:
    """What is wrong with the header. Raises UsageError if the file is no trace we can read."""
    head = file.read(FILE_HEADER)
    if not head:
        raise UsageError(f"{path} is empty: its recorder has written nothing yet")
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise artefact.other_kind(path, WHAT, "it begins with something else")
    if len(head) < FILE_HEADER:
        return Damage(path, 0, len(head), "the file ends within its header", tail=True)
    _, version, _, _, _, checksum = _FILE.unpack(head)
    sound = zlib.crc32(head[:-4]) == checksum
    if version != VERSION and sound:
        raise artefact.other_version(path, version, VERSION)
    if not sound:
        return Damage(path, 0, FILE_HEADER, "the header is damaged")
    return None


def scan(path: Path) -> Iterator[Block | Damage]:
    """The blocks and the damages of a file, in its order.

    A file that is being written is read up to its last whole block. Raises UsageError if
    there is none, or it is none that can be read at all.
    """
    try:
        if path.is_dir():
            files = sorted(path.glob(f"*{SUFFIX}"))
            hint = f": name one of its files, such as {files[-1]}" if files else ""
            raise artefact.other_kind(path, WHAT, f"it is a directory{hint}")
        with path.open("rb") as file:
            if (damage := _header_damage(path, file)) is not None:
                yield damage
            yield from _blocks(path, file)
    except FileNotFoundError as ex:
        raise artefact.not_there(path, WHAT) from ex
    except OSError as ex:
        raise artefact.unreadable(path, ex) from ex


def _blocks(path: Path, file: BinaryIO) -> Iterator[Block | Damage]:
    size = file.seek(0, io.SEEK_END)
    at, expected, reported = min(FILE_HEADER, size), 0, False
    effort = _EFFORT * size
    while at < size:
        found = _block_at(file, at, size)
        if isinstance(found, _Bad):
            effort -= found.length
            # a file made to be slow has no time without end: its blocks are believed then
            begin = at + 1 if effort > 0 else at + max(found.length, 1)
            following = _next_block(file, begin, size)
            end = size if following is None else following
            yield Damage(path, at, end - at, found.what, following is None)
            at, reported = end, True
            continue
        if found.number < expected:
            yield Damage(path, at, found.stored, "a block that is there twice")
        else:
            # the bytes of those that are missing are gone: cut out, not overwritten
            lacking = found.number - expected
            if lacking > 1 or (lacking and not reported):
                what = counted(lacking, "block is missing", "blocks are missing")
                yield Damage(path, at, 0, what)
            yield found
        expected, reported = max(expected, found.number + 1), False
        at += found.stored


def _block_at(file: BinaryIO, at: int, size: int) -> Block | _Bad:
    """The block here, or what is wrong."""
    file.seek(at)
    head = file.read(BLOCK_HEADER)
    if len(head) < BLOCK_HEADER:
        return _Bad("the file ends within a block")
    magic, table, _, rows, stored, number, payload_sum, head_sum = _BLOCK.unpack(head)
    if magic != BLOCK_MAGIC or zlib.crc32(head[:-4]) != head_sum:
        return _Bad("a damaged block")
    if rows > MAX_ROWS or stored > MAX_BYTES:
        return _Bad("a block of impossible size")
    if at + BLOCK_HEADER + stored > size:
        return _Bad("the file ends within a block")
    length = BLOCK_HEADER + stored
    payload = file.read(stored)
    if len(payload) < stored:
        return _Bad("the file ends within a block", length)  # it has become shorter
    if zlib.crc32(payload) != payload_sum:
        return _Bad("a block whose checksum is wrong", length)
    try:
        return Block(table, rows, number, decode(payload, rows), length)
    except Damaged as ex:
        return _Bad(f"a block with {ex}", length)


def _next_block(file: BinaryIO, at: int, size: int) -> int | None:
    """Where the next sound block header begins, at or after `at`."""
    searched = _SEARCHED
    while at < size:
        file.seek(at)
        chunk = file.read(searched + BLOCK_HEADER)
        where = chunk.find(BLOCK_MAGIC)
        while where >= 0:
            head = chunk[where : where + BLOCK_HEADER]
            if len(head) == BLOCK_HEADER and zlib.crc32(head[:-4]) == int.from_bytes(
                head[-4:], "little"
            ):
                return at + where
            where = chunk.find(BLOCK_MAGIC, where + 1)
        if len(chunk) < searched + BLOCK_HEADER:
            return None
        at += searched
        searched = min(2 * searched, _MOST_SEARCHED)
    return None
