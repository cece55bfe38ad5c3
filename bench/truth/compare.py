"""The module's figures and the witness's, wait event by wait event."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import psycopg

from bench.truth.calibrate import Calibration
from bench.truth.witness import Announcement, Log, Word
from pgtare.errors import MeasurementError

Connection = psycopg.Connection[tuple[Any, ...]]

LONG_NS = 10_000
# In waits of these classes a process has shown all earlier ones, and before it answered its client.
SHOWN = ("Lock", "BufferPin", "Buffer", "Activity", "Extension", "Timeout")
IDLE = ("Activity", "Client")

_OF_PROCESS = """
    SELECT pid::text, wait_event_type, wait_event, waits, calls, total_time
    FROM pg_stat_wait_event_timing WHERE pid = %s
"""
_OF_KIND = """
    SELECT backend_type, wait_event_type, wait_event, waits, calls, total_time
    FROM pg_stat_wait_event_timing_system WHERE backend_type = %s
"""


class NeverCalm(MeasurementError):
    """A process was busy at each look, or the store that began its wait was not heard."""


@dataclass(frozen=True)
class Watched:
    """A process that both look at, or, if pid is 0, all of a backend type: they come and go."""

    word: int
    pid: int
    kind: str  # backend type

    @property
    def as_word(self) -> Word:
        """What the witness needs."""
        return Word(self.word, self.pid)


@dataclass(frozen=True)
class Snapshot:
    """What the module showed, and between which two moments it was asked."""

    begin_ns: int
    end_ns: int
    figures: dict[tuple[str, str, str], tuple[int, int, float]]  # who, class, event


def snapshot(connection: Connection, watched: Iterable[Watched]) -> Snapshot:
    """Ask the module."""
    begin = monotonic_ns()
    figures = {}
    for one in watched:
        cursor = (
            connection.execute(_OF_PROCESS, (one.pid,))
            if one.pid
            else connection.execute(_OF_KIND, (one.kind,))
        )
        for who, kind, event, waits, calls, ms in cursor.fetchall():
            figures[str(who), str(kind), str(event)] = (int(waits), int(calls), float(ms))
    return Snapshot(begin, monotonic_ns(), figures)


@dataclass
class Row:
    """One event of one kind of process. Times are ms."""

    who: str
    kind: str  # class
    event: str
    announced: int = 0  # by the witness: pairs of stores
    waits: int = 0  # by the witness: those with a system call
    long: int = 0  # of them, over 10 us
    calls: int = 0
    stores_ms: float = 0.0
    calls_ms: float = 0.0
    away_ms: float = 0.0  # off the processor, after the first call
    calls_seen: dict[str, int] = field(default_factory=dict)
    ours: int = 0
    ours_calls: int = 0
    ours_ms: float = 0.0

    @property
    def idle(self) -> bool:
        """Waits for something to do."""
        return self.kind in IDLE

    @property
    def found_pct(self) -> float:
        """Share of the witness's waits that the module has, too.

        Of heavyweight locks the calls are compared: those for one lock are one wait to the module,
        and the witness does not know for which lock they are.
        """
        theirs, ours = self.waits, self.ours
        if self.kind == "Lock":
            theirs, ours = self.calls, self.ours_calls
        return 100 * min(ours / theirs, 1) if theirs else 100.0

    @property
    def allowed_ms(self) -> tuple[float, float]:
        """The least and the most that both of the witness's times allow.

        It can be away from the processor before or after the module has taken the time.
        """
        low, high = sorted((self.calls_ms, self.stores_ms))
        return low, max(high, self.calls_ms + self.away_ms)

    @property
    def width_pct(self) -> float:
        """How far the witness leaves the time open: what is allowed, as a share of our time."""
        low, high = self.allowed_ms
        return 100 * (high - low) / self.ours_ms if self.ours_ms else 0.0

    @property
    def off_pct(self) -> float:
        """How far our time lies outside what the witness allows."""
        low, high = self.allowed_ms
        if low <= self.ours_ms <= high or not high:
            return 0.0
        near = low if self.ours_ms < low else high
        return 100 * (self.ours_ms - near) / near if near else 100.0


def name_events(
    connection: Connection, spare: Watched, events: Iterable[int]
) -> dict[int, tuple[str, str]]:
    """Class and name of each event, by the server itself.

    The number is put into the word of an idle session, and the server asked what that waits for.
    """
    names = {}
    with open(f"/proc/{spare.pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(spare.word)
        before = memory.read(4)
        try:
            for event in events:
                memory.seek(spare.word)
                memory.write(struct.pack("<I", event))
                row = connection.execute(
                    "SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = %s",
                    (spare.pid,),
                ).fetchone()
                assert row is not None
                names[event] = (str(row[0]), str(row[1]))
        finally:
            memory.seek(spare.word)
            memory.write(before)
    return names


def compare(
    log: Log,
    watched: Sequence[Watched],
    before: Sequence[Snapshot],
    after: Sequence[Snapshot],
    names: Mapping[int, tuple[str, str]],
    calibration: Calibration,
) -> list[Row]:
    """A row for each kind of process and event with waits between the snapshots."""
    rows: dict[tuple[str, str, str], Row] = {}
    pids = {one.pid for one in watched if one.pid}
    for one in watched:
        if one.pid == 0 and any(other.kind == one.kind for other in watched[: watched.index(one)]):
            continue  # the words of one kind are compared together
        seen = [
            a for a in log.announcements if (a.pid == one.pid if one.pid else a.pid not in pids)
        ]
        still = {pid: last for pid, last in log.open.items() if pid == one.pid}
        first = _calm(before, one, seen, still, names)
        last = _calm(after, one, seen, still, names)

        def row(kind: str, event: str, who: str = one.kind) -> Row:
            return rows.setdefault((who, kind, event), Row(who, kind, event))

        for a in seen:
            if first.end_ns <= a.end_ns <= last.begin_ns:
                _add(row(*names[a.event]), a, calibration)
        whose = str(one.pid) if one.pid else one.kind
        for (who, kind, event), figures in last.figures.items():
            if who == whose:
                base = first.figures.get((who, kind, event), (0, 0, 0.0))
                entry = row(kind, event)
                entry.ours += figures[0] - base[0]
                entry.ours_calls += figures[1] - base[1]
                entry.ours_ms += figures[2] - base[2]
    return [found for found in rows.values() if found.announced or found.ours]


def _add(row: Row, a: Announcement, calibration: Calibration) -> None:
    row.announced += 1
    if not a.waits:
        return
    row.waits += a.waits
    row.calls += a.calls
    row.long += 1 if a.call_ns > LONG_NS else 0
    row.stores_ms += (a.ns - calibration.trap_ns) / 1e6
    row.calls_ms += (a.call_ns + a.calls * calibration.entry_ns) / 1e6
    row.away_ms += a.off_ns / 1e6
    row.calls_seen[a.kind] = row.calls_seen.get(a.kind, 0) + 1


def _calm(
    snapshots: Sequence[Snapshot],
    one: Watched,
    seen: Sequence[Announcement],
    still: Mapping[int, tuple[int, int]],
    names: Mapping[int, tuple[str, str]],
) -> Snapshot:
    """A snapshot during which the process waited on, with all earlier waits shown.

    Of processes that come and go: during which there was none.
    """
    shown = {number for number, (k, event) in names.items() if k in SHOWN or event == "ClientRead"}
    waited = [(a.begin_ns, a.end_ns, a.event) for a in seen]
    waited += [(begin, 1 << 63, event) for event, begin in still.values()]
    for shot in snapshots:
        if one.pid == 0:
            if not any(begin < shot.end_ns and end > shot.begin_ns for begin, end, _ in waited):
                return shot
        elif any(
            begin < shot.begin_ns and end > shot.end_ns and event in shown
            for begin, end, event in waited
        ):
            return shot
    raise NeverCalm(f"{one.kind} {one.pid or ''} was never calm while the module was asked")
