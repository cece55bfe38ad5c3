"""What a store has of a spool: counts of rows by commit, and which of them are partial."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pgtare.keeping.spool import segments
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store.connection import StoreConnection, StoreError, quoted
from pgtare.keeping.store.push_memory import FILE, PartialPush


@dataclass(frozen=True)
class Presence:
    """Commits of a unit by what a store has of them: all rows, none, or some."""

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

    def expected(self) -> dict[int, int]:
        """How many rows each commit has."""
        numbers, counts = np.unique(segments.seqs(self.rows), return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))

    def only(self, seqs: Collection[int]) -> PushUnit:
        """The rows of some of its commits."""
        inside = np.isin(segments.seqs(self.rows), sorted(seqs))
        return self if inside.all() else replace(self, rows=self.rows.filter(pa.array(inside)))

    def token(self, repairs: int) -> str:
        """What tells the server that a second insert has the same rows, to leave it out.

        repairs: rows that were deleted get another token, or they would be left out as well.
        """
        seqs = sorted(self.expected())
        digest = hashlib.sha256(" ".join(map(str, seqs)).encode()).hexdigest()[:16]
        repaired = f"-r{repairs}" if repairs else ""
        return f"{self.spool}-{seqs[0]}-{seqs[-1]}-{digest}-{self.table}-{self.day}{repaired}"


def presence(connection: StoreConnection, unit: PushUnit, replica: str | None) -> Presence:
    """What a store has of a unit.

    replica: the server that the rows went to; another one may not have them yet. Raises StoreError.
    """
    times = segments.times_us(unit.rows)
    expected = unit.expected()
    found = connection.rows(
        "SELECT toString(serverUUID()) AS host, seq, count() AS number "
        f"FROM {connection.database}.{unit.table} "
        "WHERE spool = {spool:String} AND seq >= {first:Int64} AND seq <= {last:Int64} "
        "AND ts >= fromUnixTimestamp64Micro({first_us:Int64}, 'UTC') "
        "AND ts <= fromUnixTimestamp64Micro({last_us:Int64}, 'UTC') GROUP BY host, seq",
        {
            "spool": unit.spool,
            "first": min(expected),
            "last": max(expected),
            "first_us": int(times.min()),
            "last_us": int(times.max()),
        },
    )
    if not found:
        check_replica(connection, replica)
    elif replica not in (None, str(found[0][0])):
        raise _other_replica(replica, str(found[0][0]))
    counted = {int(row[1]): int(row[2]) for row in found}
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
    connection: StoreConnection, unit: PushUnit, seqs: Collection[int], *, partial: bool
) -> None:
    """Note in the store that commits of a unit are partial, or no longer."""
    known = repairs(connection, unit.spool) if seqs else {}
    values = [
        f"({quoted(unit.spool)}, {seq}, {quoted(unit.table)}, {quoted(unit.day)}, {int(partial)}, "
        f"{known.get((unit.table, unit.day, seq), 0)})"
        for seq in sorted(seqs)
    ]
    insert_marks(connection, values)


def insert_marks(connection: StoreConnection, values: Iterable[str]) -> None:
    """Insert rows of partial_segments."""
    if listed := ", ".join(values):
        connection.command(
            f"INSERT INTO {connection.database}.partial_segments "
            f"(spool, seq, table_name, day, state, repairs) VALUES {listed}",
            {"async_insert": 0},
        )


def repairs(connection: StoreConnection, spool: str) -> dict[tuple[str, str, int], int]:
    """How often rows of a table, day and commit were deleted to be sent again."""
    found = connection.rows(
        "SELECT table_name, toString(day), seq, max(repairs) "
        f"FROM {connection.database}.partial_segments WHERE spool = {{spool:String}} "
        "GROUP BY table_name, day, seq",
        {"spool": spool},
    )
    return {(str(table), str(day), int(seq)): int(number) for table, day, seq, number in found}


def ever_partial(connection: StoreConnection, spool: str, to: int) -> tuple[PartialPush, ...]:
    """Commits up to one that were ever partial: they may have been deleted since then."""
    days: dict[tuple[str, str], list[int]] = {}
    for table, day, seq in sorted(repairs(connection, spool)):
        if seq <= to and table in TABLES:
            days.setdefault((table, day), []).append(seq)
    return tuple(PartialPush(table, day, tuple(seqs)) for (table, day), seqs in days.items())


def last_push(connection: StoreConnection, spool: str) -> tuple[int, dict[str, int]] | None:
    """The last commit that was sent whole, and up to where the rolled-up tables go then."""
    found = connection.rows(
        f"SELECT argMax(seq, at), argMax(rolled_us, at) FROM {connection.database}.pushes "
        "WHERE spool = {spool:String} GROUP BY spool",
        {"spool": spool},
    )
    if not found:
        return None
    return int(found[0][0]), {str(name): int(us) for name, us in dict(found[0][1]).items()}


def note_push(
    connection: StoreConnection, spool: str, seq: int, rolled_us: dict[str, int], unsent: int
) -> None:
    """Note in the store up to which commit it has everything."""
    rolled = ", ".join(f"{quoted(name)}: {us}" for name, us in sorted(rolled_us.items()))
    connection.command(
        f"INSERT INTO {connection.database}.pushes (spool, seq, rolled_us, unsent_rows) VALUES "
        f"({quoted(spool)}, {seq}, {{{rolled}}}, {unsent})",
        {"async_insert": 0},
    )


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


def commits_after(connection: StoreConnection, spool: str, seq: int) -> list[tuple[str, str, int]]:
    """Tables, days and commits after one, of which a store has rows."""
    found: list[tuple[str, str, int]] = []
    for table in TABLES:
        rows = connection.rows(
            f"SELECT DISTINCT toString(toDate(ts)), seq FROM {connection.database}.{table} "
            "WHERE spool = {spool:String} AND seq > {seq:Int64}",
            {"spool": spool, "seq": seq},
        )
        found += [(table, str(day), int(number)) for day, number in rows]
    return found
