"""Columns of a block: integers and bytes, encoded so that they decode with a few array operations.

An integer column is stored as planes, one for each byte of its values, each compressed alone; the
few values that do not fit are kept apart. A column whose values depend on those of another is
stored in the order of that one, in pieces that are compressed alone, and without the low bits that
are zero in all of them.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Integers = npt.NDArray[np.int64]
Column = npt.NDArray[Any] | list[bytes]

#: Rows of a block at most: what a reader takes memory for, whatever a damaged file says.
MAX_ROWS = 1 << 20
#: Bytes of a block at most, decoded.
MAX_BYTES = 1 << 28

_CONSTANT, _PLANES, _BYTES, _PIECES = 1, 2, 4, 5
_STORED, _ZSTD = 0, 1
_LEVEL = 3
#: Rows of a piece at least: what is alike in it must be worth a table of its own.
_PIECE = 2048
#: Share of values that may be kept apart to make the others a byte narrower.
_OUTLIERS = 0.01
_HEAD = struct.Struct("<BB")
_LENGTH = struct.Struct("<BI")
_VALUE = struct.Struct("<q")
_COUNT = struct.Struct("<I")


class Damaged(Exception):
    """What was read is not what a writer wrote; the text says in what way."""


def encode(columns: Mapping[str, Column], grouped: Mapping[str, str] | None = None) -> bytes:
    """The payload of a block: each column with its name, in the order given.

    grouped: columns that are stored in the order of another, which comes before them.
    """
    compress = zstd.ZstdCompressor(level=_LEVEL)
    parts = []
    pairs: dict[str, tuple[Integers, Integers]] = {}
    for name, values in columns.items():
        raw = name.encode("ascii")
        if isinstance(values, list):
            kind, body = _BYTES, _encode_bytes(values, compress)
        elif by := (grouped or {}).get(name):
            if by not in pairs:
                pairs[by] = _pairs(np.asarray(columns[by], np.int64))
            kind, body = _PIECES, _encode_pieces(values, *pairs[by], by, compress)
        else:
            kind, body = _encode_integers(values.astype(np.int64, copy=False), compress)
        parts.append(_HEAD.pack(len(raw), kind) + raw + _COUNT.pack(len(body)) + body)
    return b"".join(parts)


def decode(payload: bytes | memoryview, rows: int) -> dict[str, Column]:
    """The columns of a block of `rows` rows. Raises Damaged."""
    if not 0 <= rows <= MAX_ROWS:
        raise Damaged(f"a block of {rows:,} rows")
    source = _Source(memoryview(payload))
    columns: dict[str, Column] = {}
    pairs: dict[str, Integers] = {}
    room = MAX_BYTES
    while source.left():
        room -= 8 * rows  # a column of one value takes some bytes of a file
        if room < 0:
            raise Damaged("columns that are too large together")
        length, kind = source.unpack(_HEAD)
        try:
            name = str(source.take(length), "ascii")
        except UnicodeDecodeError as ex:
            raise Damaged("the name of a column") from ex
        (size,) = source.unpack(_COUNT)
        body = _Source(source.take(size))
        if kind == _BYTES:
            columns[name] = _decode_bytes(body, rows)
        elif kind == _PIECES:
            columns[name] = _decode_pieces(body, rows, columns, pairs)
        else:
            columns[name] = _decode_integers(kind, body, rows)
        if body.left():
            raise Damaged(f"column {name} is longer than its rows")
    return columns


class _Source:
    """Bytes taken from the front; too few of them are damage."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> memoryview:
        if size > self.left():
            raise Damaged("a column that ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def unpack(self, fields: struct.Struct) -> tuple[Any, ...]:
        return fields.unpack(self.take(fields.size))


def _packed(raw: bytes, compress: zstd.ZstdCompressor) -> bytes:
    """Compressed if that is shorter."""
    small = compress.compress(raw, compress.FLUSH_FRAME) if len(raw) > 32 else raw
    if len(small) < len(raw):
        return _LENGTH.pack(_ZSTD, len(small)) + small
    return _LENGTH.pack(_STORED, len(raw)) + raw


def _unpacked(source: _Source, size: int) -> bytes | memoryview:
    """The `size` bytes that were packed."""
    how, length = source.unpack(_LENGTH)
    body = source.take(length)
    if how == _STORED and length == size:
        return body
    if how != _ZSTD:
        raise Damaged("a column of the wrong length")
    try:
        # what a frame says of its size decides how much memory is taken for it
        if zstd.get_frame_info(body).decompressed_size != size:
            raise Damaged("a column of the wrong length")
        frame = zstd.ZstdDecompressor()
        found = frame.decompress(body, max_length=max(size, 1))
        if not frame.eof or len(found) != size:
            raise Damaged("a column of the wrong length")
        return found
    except zstd.ZstdError as ex:
        raise Damaged("a column that cannot be decompressed") from ex


def _encode_integers(values: Integers, compress: zstd.ZstdCompressor) -> tuple[int, bytes]:
    if not len(values) or (values == values[0]).all():
        return _CONSTANT, _VALUE.pack(int(values[0]) if len(values) else 0)
    return _PLANES, _planes(values, compress)


def _decode_integers(kind: int, source: _Source, rows: int) -> Integers:
    if kind == _CONSTANT:
        return np.full(rows, source.unpack(_VALUE)[0], np.int64)
    if kind == _PLANES:
        return _from_planes(source, rows)
    raise Damaged(f"a column of the unknown encoding {kind}")


def _pairs(key: Integers) -> tuple[Integers, Integers]:
    """Where values come from in the order of `key` and the one before it, and where pairs begin."""
    before = np.concatenate([key[:1], key[:-1]])
    if len(key) and int(key.min()) >= 0 and int(key.max()) < 1 << 8:
        order = np.argsort((before << 8 | key).astype(np.uint16), kind="stable")
    else:
        order = np.lexsort((key, before))
    changes = (np.diff(key[order]) != 0) | (np.diff(before[order]) != 0)
    return order, np.flatnonzero(changes) + 1


def _encode_pieces(
    values: Any, order: Integers, starts: Integers, name: str, compress: zstd.ZstdCompressor
) -> bytes:
    values = values.astype(np.int64, copy=False)
    bits = int(np.bitwise_or.reduce(values)) if len(values) else 0
    shift = (bits & -bits).bit_length() - 1 if bits else 0
    ordered = values[order] >> shift
    cuts = [0]
    for start in starts.tolist():
        if start - cuts[-1] >= _PIECE and len(values) - start >= _PIECE:
            cuts.append(start)
    pieces = np.split(ordered, cuts[1:])
    raw = name.encode("ascii")
    parts = [_HEAD.pack(len(raw), shift) + raw + _COUNT.pack(len(pieces))]
    parts += [_COUNT.pack(len(piece)) + _planes(piece, compress) for piece in pieces]
    return b"".join(parts)


def _decode_pieces(
    source: _Source, rows: int, columns: Mapping[str, Column], orders: dict[str, Integers]
) -> Integers:
    length, shift = source.unpack(_HEAD)
    name = str(source.take(length), "ascii", "replace")
    key = columns.get(name)
    if key is None or isinstance(key, list) or shift > 63:
        raise Damaged("a column in the order of one that is not there")
    if name not in orders:
        orders[name] = _pairs(key)[0]
    (pieces,) = source.unpack(_COUNT)
    parts, left = [], rows
    for _ in range(pieces):
        (length,) = source.unpack(_COUNT)
        if length > left:
            raise Damaged("pieces of another length than the rows")
        parts.append(_from_planes(source, length))
        left -= length
    if left:
        raise Damaged("pieces of another length than the rows")
    values = np.empty(rows, np.int64)
    if parts:
        values[orders[name]] = np.concatenate(parts) << shift
    return values


def _width(values: Integers) -> tuple[int, Integers]:
    """Bytes in which all but a few of the values fit, and where those few are."""
    for width in range(1, 8):
        outside = np.flatnonzero((values < 0) | (values >= 1 << 8 * width))
        if len(outside) <= _OUTLIERS * len(values):
            return width, outside
    return 8, np.zeros(0, np.int64)


def _planes(values: Integers, compress: zstd.ZstdCompressor) -> bytes:
    width, outliers = _width(values)
    kept = values.copy()
    kept[outliers] = 0
    octets = kept.astype("<i8").view(np.uint8).reshape(-1, 8)
    parts = [bytes([width]), _COUNT.pack(len(outliers))]
    parts += [outliers.astype("<u4").tobytes(), values[outliers].astype("<i8").tobytes()]
    parts += [_packed(octets[:, i].tobytes(), compress) for i in range(width)]
    return b"".join(parts)


def _from_planes(source: _Source, rows: int) -> Integers:
    (width,) = source.take(1)
    (apart,) = source.unpack(_COUNT)
    if not 1 <= width <= 8 or apart > rows:
        raise Damaged("a column of impossible width")
    where = np.frombuffer(source.take(4 * apart), "<u4")
    values = np.frombuffer(source.take(8 * apart), "<i8")
    if apart and int(where.max()) >= rows:
        raise Damaged("a value beyond the last row")
    octets = np.zeros((rows, 8), np.uint8)
    for i in range(width):
        octets[:, i] = np.frombuffer(_unpacked(source, rows), np.uint8)
    decoded = octets.view("<i8").reshape(rows).astype(np.int64, copy=False)
    decoded[where] = values
    return decoded


def _encode_bytes(values: Sequence[bytes], compress: zstd.ZstdCompressor) -> bytes:
    lengths = np.array([len(value) for value in values], np.int64)
    return _planes(lengths, compress) + _packed(b"".join(values), compress)


def _decode_bytes(source: _Source, rows: int) -> list[bytes]:
    lengths = _from_planes(source, rows)
    if rows and (int(lengths.min()) < 0 or int(lengths.max()) > MAX_BYTES):
        raise Damaged("a text of impossible length")
    total = int(lengths.sum())
    if total > MAX_BYTES:
        raise Damaged(f"texts of {total:,} bytes in one block")
    blob = bytes(_unpacked(source, total))
    ends = np.cumsum(lengths)
    return [blob[end - n : end] for end, n in zip(ends.tolist(), lengths.tolist(), strict=True)]
