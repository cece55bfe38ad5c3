"""What a store has of a spool: counts of rows by commit, and which of them are partial."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pgtare.keeping.spool import segments
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store.connection import StoreConnection, StoreError, quoted
from pgtare.keeping.store.push_memory import FILE, PartialPush


class CommitRows(NamedTuple):
    """Rows of a commit in one table: how many, and the earliest and latest ts, µs since 1970."""

    number: int
    first_us: int
    last_us: int

    def within(self, other: CommitRows) -> bool:
        """Whether these may be rows of the other."""
        return (
            self.number <= other.number
            and self.first_us >= other.first_us
            and self.last_us <= other.last_us
        )


@dataclass(frozen=True)
class Presence:
    """Commits of a unit by what a store has of them: all rows, none, or some or others."""

    full: frozenset[int]
    none: frozenset[int]
    part: frozenset[int]


@dataclass(frozen=True)
class PushUnit:
    """Rows of one table and day, of some commits: one insert."""

    spool: str
    table: str
    day: str
    rows: pa.Table

    def expected(self) -> dict[int, CommitRows]:
        """What each commit has."""
        found = pa.table({"seq": segments.seqs(self.rows), "us": segments.times_us(self.rows)})
        counted = found.group_by("seq", use_threads=False).aggregate(
            [("us", "count"), ("us", "min"), ("us", "max")]
        )
        names = ("us_count", "us_min", "us_max")
        values = zip(*(counted[name].to_pylist() for name in names), strict=True)
        return dict(zip(counted["seq"].to_pylist(), map(CommitRows._make, values), strict=True))

    def only(self, seqs: Collection[int]) -> PushUnit:
        """The rows of some of its commits."""
        inside = np.isin(segments.seqs(self.rows), sorted(seqs))
        return self if inside.all() else replace(self, rows=self.rows.filter(pa.array(inside)))

    def places(self, seqs: Collection[int]) -> list[tuple[str, str, int]]:
        """Table, day and number of some of its commits."""
        return [(self.table, self.day, seq) for seq in sorted(seqs)]

    def token(self, number: int) -> str:
        """What tells the server that a second insert has the same rows, to leave it out.

        Times are part of it: a spool that was restored from a copy uses numbers of commits again.
        number: another one has another token, for rows that were deleted since.
        """
        expected = self.expected()
        seqs = sorted(expected)
        content = " ".join(f"{seq} {' '.join(map(str, expected[seq]))}" for seq in seqs)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        again = f"-r{number}" if number else ""
        return f"{self.spool}-{seqs[0]}-{seqs[-1]}-{digest}-{self.table}-{self.day}{again}"


def presence(connection: StoreConnection, unit: PushUnit, replica: str | None) -> Presence:
    """What a store has of a unit.

    replica: the server that the rows went to; another one may not have them yet. Raises StoreError.
    """
    expected = unit.expected()
    there = rows_of(connection, unit.spool, unit.table, min(expected) - 1, max(expected), replica)
    counted = {seq: rows for (day, seq), rows in there.items() if day == unit.day}
    full = frozenset(seq for seq, rows in expected.items() if counted.get(seq) == rows)
    none = frozenset(seq for seq in expected if seq not in counted)
    return Presence(full, none, frozenset(expected) - full - none)


def check_replica(connection: StoreConnection, replica: str | None) -> None:
    """Raise StoreError if another server answers than the one that was written to."""
    if replica is not None and (other := connection.replica()) != replica:
        raise _other_replica(replica, other)


def _other_replica(replica: str | None, other: str) -> StoreError:
    return StoreError(
        f"rows went to the server with the UUID {replica}, and now {other} answers, which may not "
        "have them yet: let url name one server, not several; if the first one is gone for good, "
        f"remove {FILE} from the spool"
    )


def mark(
    connection: StoreConnection,
    spool: str,
    places: Iterable[tuple[str, str, int]],
    *,
    partial: bool,
) -> None:
    """Note in the store that commits of a table and day are partial, or no longer."""
    values = ", ".join(
        f"({quoted(spool)}, {seq}, {quoted(table)}, {quoted(day)}, {int(partial)})"
        for table, day, seq in places
    )
    if values:
        connection.command(
            f"INSERT INTO {connection.database}.partial_segments "
            f"(spool, seq, table_name, day, state) VALUES {values}",
            {"async_insert": 0},
        )


def ever_partial(connection: StoreConnection, spool: str, to: int) -> tuple[PartialPush, ...]:
    """Commits up to one that were ever partial: they may have been deleted since then."""
    found = connection.rows(
        "SELECT table_name, toString(day), arraySort(groupUniqArray(seq)) "
        f"FROM {connection.database}.partial_segments "
        "WHERE spool = {spool:String} AND seq <= {to:Int64} "
        "GROUP BY table_name, day ORDER BY table_name, day",
        {"spool": spool, "to": to},
    )
    return tuple(
        PartialPush(str(table), str(day), tuple(map(int, seqs)))
        for table, day, seqs in found
        if table in TABLES
    )


class Push(NamedTuple):
    """What was sent of a spool: all commits up to seq, the last of them age_s ago.

    rolled_us: up to where the rolled-up tables go then.
    """

    spool: str
    seq: int
    rolled_us: dict[str, int]
    age_s: float


def pushes(
    connection: StoreConnection,
    spool: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Push]:
    """What was sent of a spool, or of each; the newest first."""
    where = "" if spool is None else f"WHERE spool = {quoted(spool)} "
    found = connection.rows(
        "SELECT spool, argMax(seq, at), argMax(rolled_us, at), "
        "toFloat64(dateDiff('second', max(at), now64(3))) "
        f"FROM {connection.database}.pushes {where}GROUP BY spool ORDER BY max(at) DESC",
        settings=settings,
    )
    return [
        Push(str(name), int(seq), {str(k): int(us) for k, us in dict(rolled).items()}, age)
        for name, seq, rolled, age in found
    ]


def last_push(connection: StoreConnection, spool: str) -> Push | None:
    """What was sent of a spool; None: nothing."""
    return next(iter(pushes(connection, spool)), None)


def note_push(connection: StoreConnection, spool: str, seq: int, rolled_us: dict[str, int]) -> None:
    """Note in the store up to which commit it has everything."""
    rolled = ", ".join(f"{quoted(name)}: {us}" for name, us in sorted(rolled_us.items()))
    connection.command(
        f"INSERT INTO {connection.database}.pushes (spool, seq, rolled_us) VALUES "
        f"({quoted(spool)}, {seq}, {{{rolled}}})",
        {"async_insert": 0},
    )


def rows_of(
    connection: StoreConnection,
    spool: str,
    table: str,
    after: int,
    to: int,
    replica: str | None = None,
) -> dict[tuple[str, int], CommitRows]:
    """By day and commit, what a store has in a table of the commits after one, up to another.

    replica: the server that must answer, if that matters.
    """
    found = connection.rows(
        "SELECT toString(serverUUID()) AS host, toString(toDate(ts)) AS day, seq, count(), "
        "toUnixTimestamp64Micro(min(ts)), toUnixTimestamp64Micro(max(ts)) "
        f"FROM {connection.database}.{table} WHERE spool = {{spool:String}} "
        "AND seq > {after:Int64} AND seq <= {to:Int64} GROUP BY host, day, seq",
        {"spool": spool, "after": after, "to": to},
    )
    if not found:
        check_replica(connection, replica)
    elif replica not in (None, str(found[0][0])):
        raise _other_replica(replica, str(found[0][0]))
    return {(str(day), int(seq)): CommitRows(*map(int, rows)) for _, day, seq, *rows in found}


def newest_seq(connection: StoreConnection, spool: str, seq: int) -> int:
    """The latest commit of which a store has any row, if it is after another one; else that."""
    newest = seq
    for table in TABLES:
        (row,) = connection.rows(
            f"SELECT max(seq) FROM {connection.database}.{table} "
            "WHERE spool = {spool:String} AND seq > {seq:Int64}",
            {"spool": spool, "seq": seq},
        )
        newest = max(newest, int(row[0] or 0))
    return newest


def commits_between(
    connection: StoreConnection, spool: str, after: int, to: int
) -> list[tuple[str, str, int]]:
    """Tables, days and commits after one, up to another, of which a store has rows."""
    return [
        (table, *place)
        for table in TABLES
        for place in rows_of(connection, spool, table, after, to)
    ]
