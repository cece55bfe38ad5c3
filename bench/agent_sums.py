"""Compares a spool with the counters that it was made from, by SQL of its own.

Nothing of the agent's own arithmetic is used. In each epoch, sums of rows must equal the last
reading less the first, in every column; both must lie between readings that somebody else took
before and after.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from pgtare.keeping.spool import manifest

BUCKETS = tuple(f"h{bucket:02}" for bucket in range(32))
#: Counters that only grow; and with the time that passes in waits in progress.
COUNTED = ("calls", "total_ns", *BUCKETS)
COLUMNS = ("calls", "total_ns", "active_ns", *BUCKETS)
WAITS_KEYS = ("backend_type", "type", "event")
STATEMENT_KEYS = ("role_oid", "database_oid", "query_id", "type", "event")
EVENT_KEYS = ("type", "event")
_READING = re.compile(r"(?P<spool>.+)-(?P<seq>\d{10})-server-(?P<part>[a-z-]+)\.parquet")
_PARTS = ("waits", "waits-info", "statements", "statements-info", "statements-waits")
_SEQ = r"CAST(regexp_extract(segment, '(\d+)$', 1) AS BIGINT)"
#: Differences that are listed in full.
_MOST_SHOWN = 5


class Origin(NamedTuple):
    """Since when counters count, µs since 1970; `resets` is how many resets began or ended."""

    started_us: int
    memory_us: int
    reset_us: int
    resets: int


class StoredMoment(NamedTuple):
    """A stored reading: its commit, and when it was taken by the server's clock and ours."""

    seq: int
    server_us: int
    agent_us: int
    origin: Origin


class OwnSample(NamedTuple):
    """A reading that the benchmark took itself, between two moments of the server's clock.

    waits, statements: columns of the keys, and COUNTED.
    """

    begun_us: int
    ended_us: int
    origin: Origin
    waits: pa.Table
    statements: pa.Table


@dataclass
class Comparison:
    """What was compared in one epoch of a table. pinned: cells that both own readings agree on."""

    table: str
    epoch: int
    began: str
    readings: int
    rows: int = 0
    cells: int = 0
    own_cells: int = 0
    pinned: int = 0
    carried: int = 0
    wrong: list[str] = field(default_factory=list)


class SpoolSums:
    """The tables of a spool, and its stored readings, in a DuckDB of their own.

    readings: directory with every stored reading that a commit has published.
    """

    def __init__(self, spool: Path, readings: Path) -> None:
        self.db = duckdb.connect()
        content, _ = manifest.read(spool)
        assert content is not None
        for table in ("waits", "statements", "ticks", "gaps", "agent"):
            files = [str(spool / one.name) for one in content.of_table(table)]
            self.db.execute(
                f"CREATE TABLE {table} AS SELECT *, {_SEQ} AS seq, epoch_us(ts) AS ts_us "
                f"FROM read_parquet({files}, union_by_name = true)"
            )
        for part in _PARTS:
            found = [
                f"SELECT {int(name['seq'])} AS seq, * FROM read_parquet('{path}')"
                for path in sorted(readings.iterdir())
                if (name := _READING.fullmatch(path.name)) and name["part"] == part
            ]
            self.db.execute(f"CREATE TABLE {_stored(part)} AS {' UNION ALL BY NAME '.join(found)}")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer to a query."""
        return self.db.execute(sql).fetchall()

    def epochs(self, part: str) -> list[list[StoredMoment]]:
        """Stored readings of a part, split where their origin changes."""
        found: list[list[StoredMoment]] = []
        for seq, server_us, agent_us, *origin in self.rows(
            "SELECT seq, server_us, agent_us, started_us, memory_us, reset_us, resets "
            f"FROM {_stored(part + '-info')} ORDER BY seq"
        ):
            moment = StoredMoment(seq, server_us, agent_us, Origin(*origin))
            if not found or found[-1][0].origin != moment.origin:
                found.append([])
            found[-1].append(moment)
        return found

    def compare(self, part: str, samples: Sequence[OwnSample]) -> list[Comparison]:
        """One comparison for each epoch of "waits" or "statements"."""
        found = []
        before: StoredMoment | None = None
        for number, moments in enumerate(self.epochs(part)):
            began = _began(before, moments[0])
            done = Comparison(part, number + 1, began, len(moments))
            if part == "waits":
                self._waits(done, before, moments, samples)
            else:
                self._statements(done, before, moments, samples)
            found.append(done)
            before = moments[-1]
        return found

    # One epoch

    def _waits(
        self,
        done: Comparison,
        before: StoredMoment | None,
        moments: list[StoredMoment],
        samples: Sequence[OwnSample],
    ) -> None:
        first, last = moments[0], moments[-1]
        after = first.seq if done.began in ("start", "process reset") else _seq(before)
        rows = f"SELECT * FROM waits WHERE seq > {after} AND seq <= {last.seq}"
        self._book(done, rows, "epoch")
        waiting = f"SELECT * FROM ({rows}) WHERE type <> 'CPU'"
        since = _seq(first) if done.began in ("start", "process reset") else None
        grown = _grown("waits_stored", last.seq, since, WAITS_KEYS, "key_type <> ''")
        self._same(done, waiting, grown, WAITS_KEYS, self._carried(done, before, first, last))
        highest = f"""
          SELECT r.* FROM (SELECT backend_type, type, event, max(max_ns) AS rose
            FROM ({waiting}) GROUP BY ALL) r
          JOIN (SELECT key_backend_type AS backend_type, key_type AS type, key_event AS event,
            max_ns FROM waits_stored WHERE seq = {last.seq}) USING (backend_type, type, event)
          WHERE rose <> max_ns"""
        self._note(done, "max_ns", self.rows(highest))
        # time on a processor is what is left of the time that processes were captured
        whole = first.seq if done.began != "restart" else None
        times = _grown("waits_stored", last.seq, whole, ("backend_type",), "key_type = ''")
        spent = _grown("waits_stored", last.seq, whole, ("backend_type",), "key_type <> ''")
        booked = f"""SELECT backend_type, sum(active_ns) AS ns FROM waits WHERE type = 'CPU'
          AND seq > {whole if whole is not None else after} AND seq <= {last.seq} GROUP BY ALL"""
        left = f"""SELECT backend_type, sum(ns) AS ns FROM (
            SELECT backend_type, value AS ns FROM ({times}) WHERE cell = 'total_ns'
            UNION ALL SELECT backend_type, -value FROM ({spent}) WHERE cell = 'active_ns')
          GROUP BY ALL"""
        odd = self.rows(
            f"SELECT backend_type, 'CPU', b.ns, l.ns FROM ({booked}) b FULL JOIN ({left}) l "
            "USING (backend_type) WHERE coalesce(b.ns, 0) <> coalesce(l.ns, 0)"
        )
        self._note(done, "CPU", odd)
        self._covered(done, before, moments, after)
        own = f"SELECT * FROM ({waiting})"
        self._within(done, own, WAITS_KEYS, "waits", moments, samples)

    def _statements(
        self,
        done: Comparison,
        before: StoredMoment | None,
        moments: list[StoredMoment],
        samples: Sequence[OwnSample],
    ) -> None:
        first, last = moments[0], moments[-1]
        anew = done.began in ("start", "process reset")
        after = first.seq if anew else _seq(before)
        rows = f"SELECT * FROM statements WHERE seq > {after} AND seq <= {last.seq}"
        self._book(done, rows, "epoch")
        own = f"SELECT * FROM ({rows}) WHERE kind = 'statement'"
        # an identity is never given twice, so one that a reset left in place is the same entry
        earlier = first.seq if anew else _seq(before) if done.began == "reset" else None
        entries = (*STATEMENT_KEYS, "identity")
        named = ", ".join(f"key_{key} AS {key}" for key in entries)
        sums = ", ".join(COUNTED)
        negative = ", ".join(f"-{column} AS {column}" for column in COUNTED)
        lasts = f"SELECT {named}, {sums} FROM statements_stored WHERE seq = {last.seq}"
        firsts = f"""SELECT {named}, {negative} FROM statements_stored WHERE seq = {earlier or -1}
          AND key_identity IN (SELECT key_identity FROM statements_stored WHERE seq = {last.seq})"""
        both = _long(f"{lasts} UNION ALL {firsts}", STATEMENT_KEYS, COUNTED)
        self._same(done, own, both, STATEMENT_KEYS, None, COUNTED)
        gone = self.rows(
            f"SELECT count(*) FROM statements_stored WHERE seq = {first.seq} AND calls > 0 AND key_"
            f"identity NOT IN (SELECT key_identity FROM statements_stored WHERE seq = {last.seq})"
        )
        if gone != [(0,)]:
            done.wrong.append(f"{gone[0][0]} entries were evicted: the comparison does not hold")
        # with the waits of no statement, the rows add up to all waits
        since = first.seq if anew else None
        waits = _grown("statements_waits_stored", last.seq, since, EVENT_KEYS, "key_type <> ''")
        carried = self._carried(done, before, first, last, "statements_waits_stored", EVENT_KEYS)
        self._same(done, rows, waits, EVENT_KEYS, carried)
        self._within(done, own, STATEMENT_KEYS, "statements", moments, samples)

    def _book(self, done: Comparison, rows: str, column: str) -> None:
        ((done.rows, epochs),) = self.rows(
            f"SELECT count(*), count(DISTINCT {column}) FROM ({rows})"
        )
        if epochs > 1:
            done.wrong.append(f"rows have {epochs} epochs, readings have one")

    def _same(
        self,
        done: Comparison,
        rows: str,
        grown: str,
        keys: Sequence[str],
        carried: dict[tuple[str, ...], tuple[int, int]] | None,
        columns: Sequence[str] = COLUMNS,
    ) -> None:
        """Sums of rows are what the readings grew by. carried: ranges of what may be left out."""
        using = ", ".join(keys)
        joined = f"""SELECT {using}, cell, coalesce(r.value, 0) AS summed,
            coalesce(g.value, 0) AS grew
          FROM ({_long(rows, keys, columns)}) r FULL JOIN ({grown}) g USING ({using}, cell)"""
        ((cells,),) = self.rows(f"SELECT count(*) FROM ({joined})")
        done.cells += cells
        odd = []
        for *key, cell, summed, grew in self.rows(f"SELECT * FROM ({joined}) WHERE summed <> grew"):
            least, most = (carried or {}).get(tuple(key), (0, 0))
            if cell == "active_ns" and least <= grew - summed <= most:
                done.carried += 1
            else:
                odd.append((*key, cell, summed, grew))
        self._note(done, "rows and readings", odd)

    def _carried(
        self,
        done: Comparison,
        before: StoredMoment | None,
        first: StoredMoment,
        last: StoredMoment,
        table: str = "waits_stored",
        keys: Sequence[str] = WAITS_KEYS,
    ) -> dict[tuple[str, ...], tuple[int, int]] | None:
        """Of waits in progress as all counters were reset: what of them is of the time before.

        It is at least what they had lasted in the last reading before the reset, and at most that
        and the time from then to the reset.
        """
        if done.began != "reset" or before is None:
            return None
        named = ", ".join(f"key_{key}" for key in keys)
        longer = 1000 * (last.origin.reset_us - before.server_us) + 1_000_000
        return {
            tuple(key): (0 if not running else int(lasted), int(lasted + running * longer))
            for *key, lasted, running in self.rows(
                f"SELECT {named}, sum(active_ns - total_ns), sum(running) FROM {table} "
                f"WHERE seq = {before.seq} AND active_ns > total_ns GROUP BY ALL"
            )
        }

    def _covered(
        self, done: Comparison, before: StoredMoment | None, moments: list[StoredMoment], after: int
    ) -> None:
        """Ticks cover the time from the first reading, or from the counters' begin, to the last."""
        first, last = moments[0], moments[-1]
        origin = last.origin
        began = max(origin.started_us, origin.memory_us, origin.reset_us)
        since = first.server_us if done.began in ("start", "process reset") else began
        ((covered,),) = self.rows(
            "SELECT coalesce(sum(covered_ns), 0) FROM ticks WHERE source = 'waits' "
            f"AND seq > {after} AND seq <= {last.seq}"
        )
        if covered != 1000 * (last.server_us - since):
            done.wrong.append(
                f"ticks cover {covered / 1e9:.6f} s of {(last.server_us - since) / 1e6:.6f} s"
            )

    def _within(
        self,
        done: Comparison,
        rows: str,
        keys: Sequence[str],
        part: str,
        moments: list[StoredMoment],
        samples: Sequence[OwnSample],
    ) -> None:
        """Sums of rows lie between what the benchmark's own readings, before and after, allow."""
        last = _around(moments[-1], samples)
        first = None
        if done.began in ("start", "process reset"):
            first = _around(moments[0], samples)
            if first is None:
                last = None
        if last is None or (done.began == "reset" and part == "statements"):
            # a reset can leave a busy part of the table of statements, so it has no certain zero
            if last is None:
                done.wrong.append("no own readings around the agent's")
            return
        tables = {
            "last_before": getattr(last[0], part),
            "last_after": getattr(last[1], part),
            "first_before": getattr(first[0], part) if first else None,
            "first_after": getattr(first[1], part) if first else None,
        }
        names = []
        for name, table in tables.items():
            self.db.execute(f"DROP TABLE IF EXISTS {name}")
            source = getattr(last[0], part).slice(0, 0) if table is None else table
            self.db.register("given", source)
            self.db.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
            self.db.unregister("given")
            names.append(name)
        using = ", ".join((*keys, "cell"))
        summed = _long(rows, keys, COUNTED)
        own = [_long(f"SELECT * FROM {name}", keys, COUNTED) for name in names]
        joined = f"""SELECT {using}, coalesce(r.value, 0) AS summed,
            coalesce(lb.value, 0) - coalesce(fa.value, 0) AS least,
            coalesce(la.value, 0) - coalesce(fb.value, 0) AS most
          FROM ({summed}) r FULL JOIN ({own[0]}) lb USING ({using})
          FULL JOIN ({own[1]}) la USING ({using}) FULL JOIN ({own[2]}) fb USING ({using})
          FULL JOIN ({own[3]}) fa USING ({using})"""
        ((done.own_cells, done.pinned),) = self.rows(
            f"SELECT count(*), count(*) FILTER (least = most) FROM ({joined})"
        )
        odd = self.rows(f"SELECT * FROM ({joined}) WHERE summed < least OR summed > most")
        self._note(done, "rows and own readings", odd)

    def _note(self, done: Comparison, what: str, odd: list[tuple[Any, ...]]) -> None:
        if odd:
            shown = "; ".join(" ".join(map(str, row)) for row in odd[:_MOST_SHOWN])
            done.wrong.append(f"{what} differ in {len(odd)} cells: {shown}")


def _began(before: StoredMoment | None, first: StoredMoment) -> str:
    """How an epoch began: start, restart, reset (of everything) or process reset."""
    if before is None:
        return "start"
    old, new = before.origin, first.origin
    if old[:2] != new[:2]:
        return "restart"
    return "reset" if old.reset_us != new.reset_us else "process reset"


def _around(
    moment: StoredMoment, samples: Sequence[OwnSample]
) -> tuple[OwnSample, OwnSample] | None:
    """The own readings next before and after a stored one, of the same origin."""
    alike = [sample for sample in samples if sample.origin == moment.origin]
    before = [sample for sample in alike if sample.ended_us < moment.server_us]
    after = [sample for sample in alike if sample.begun_us > moment.server_us]
    return (before[-1], after[0]) if before and after else None


def _seq(moment: StoredMoment | None) -> int:
    return -1 if moment is None else moment.seq


def _stored(part: str) -> str:
    return f"{part.replace('-', '_')}_stored"


def _long(source: str, keys: Iterable[str], columns: Iterable[str]) -> str:
    """Columns as rows (keys, cell, value), summed by key."""
    names = ", ".join(columns)
    return f"""SELECT {", ".join(keys)}, cell, sum(value) AS value FROM (
        UNPIVOT (SELECT {", ".join(keys)}, {names} FROM ({source}))
        ON {names} INTO NAME cell VALUE value) GROUP BY ALL"""


def _grown(table: str, last: int, first: int | None, keys: Sequence[str], where: str) -> str:
    """What a stored reading has more than another one, or than nothing; by key and cell."""
    named = ", ".join(f"key_{key} AS {key}" for key in keys)
    sums = ", ".join(COLUMNS)
    negative = ", ".join(f"-{column} AS {column}" for column in COLUMNS)
    return _long(
        f"SELECT {named}, {sums} FROM {table} WHERE seq = {last} AND {where} UNION ALL "
        f"SELECT {named}, {negative} FROM {table} "
        f"WHERE seq = {-1 if first is None else first} AND {where}",
        keys,
        COLUMNS,
    )
