"""Sends the commits of a spool to a store: each at least once, and none twice.

Commits go in windows, all tables of a window one after the other, one insert for a table and day.
The server leaves out an insert whose token it knows; that is the first line of defence. The second:
after an error, and at the start, the rows of each commit are counted in the store. All there: done.
None there: sent. Some there: kept and marked, until `pgtare store repair` has deleted them. At the
start, and after an error, the last commits are compared with those of the store: a copy of a spool
gives the same numbers to other rows. If rows came of late, it is a clone, and another agent sends;
else it is a spool that was restored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pgtare.keeping.agent_log import LogLevel
from pgtare.keeping.spool import reader
from pgtare.keeping.spool.manifest import SpoolManifest
from pgtare.keeping.spool.segments import DamagedFile, times_us
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.spool.volume import Volume
from pgtare.keeping.store import push_memory, pushed_rows, store_schema
from pgtare.keeping.store.commit_rows import CommitReader, next_window
from pgtare.keeping.store.connection import StoreConnection, StoreError
from pgtare.keeping.store.push_memory import PartialPush, PushMemory
from pgtare.keeping.store.pushed_rows import Presence, PushUnit

#: A window of late commits has at most about this many rows of a table.
MOST_ROWS = 50_000
#: This many of the last commits are compared with the store.
_COMPARED = 64
#: Another agent has gone if the store had no rows of the spool for this long, s.
QUIET_S = 600.0
_LAST = (1 << 63) - 1
#: How many times to look again for a file that was replaced while it was read.
_TRIES = 3
#: How many tokens are tried: under one that it knows, the server ignores rows, even deleted ones.
_MOST_TOKENS = 5

#: Takes a level and a sentence, for a log.
Report = Callable[[LogLevel, str], None]


class SpoolPusher:
    """Sends one window a call. commits: how many a window has."""

    def __init__(
        self,
        root: Path,
        connect: Callable[[], StoreConnection],
        commits: int,
        report: Report,
    ) -> None:
        self._root, self._connect, self._commits, self._report = root, connect, commits, report
        self._volume = Volume(root)
        self._reader = CommitReader(root)
        self._connection: StoreConnection | None = None
        #: Up to this commit the store may have rows that nobody remembers.
        self._unsure_to = 0
        #: The commit up to which it was sent last, as far as is known here.
        self._pushed_to = 0
        #: None before the store was asked what it has: at the start, and after an error.
        self.memory: PushMemory | None = None
        #: Whether the file says the same.
        self._written = True
        #: Commits of the spool that are not sent yet.
        self.behind = 0

    @property
    def kept_seq(self) -> int:
        """Rows of later commits are still needed."""
        memory = self.memory or push_memory.read(self._root)
        if memory is None or memory.rewound_to is not None:
            return 0
        return memory.kept_seq

    def step(self) -> bool:
        """Send the next window; whether another one is due. Raises StoreError."""
        try:
            return self._step()
        except BaseException:
            self.memory = None
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    @property
    def _store(self) -> StoreConnection:
        """The connection of a step."""
        assert self._connection is not None
        return self._connection

    def _step(self) -> bool:
        content, _ = reader.newest(self._root)
        if self._connection is None:
            self._connection = self._connect()
            if wrong := store_schema.fault(store_schema.version(self._connection)):
                raise StoreError(f"the store cannot be used: {wrong}")
        unsure = self.memory is None
        memory = self._note(self.memory or self._at_start(content))
        to = memory.sending_to or self._next(content, memory.sent_seq)
        self.behind = content.seq - memory.sent_seq
        if to is None:
            return False
        self._send_window(content, memory, to, unsure=unsure)
        self.behind = content.seq - to
        self._reader.forget_others(content)
        return self._next(content, to) is not None

    def _next(self, content: SpoolManifest, sent: int) -> int | None:
        return next_window(content, sent, self._commits, MOST_ROWS)

    def look_at_partial(self) -> None:
        """Ask the store about what it had only in part, in the next step."""
        self.memory = None

    # What was sent

    def _at_start(self, content: SpoolManifest) -> PushMemory:
        """What was sent, by the file and the store. Raises StoreError if nothing may be sent."""
        memory = push_memory.read(self._root)
        last = pushed_rows.last_push(self._store, content.uuid)
        if memory is None or memory.spool != content.uuid:
            seq, rolled_us = (last.seq, last.rolled_us) if last else (0, {})
            partial = pushed_rows.ever_partial(self._store, content.uuid, seq)
            memory = PushMemory(content.uuid, seq, rolled_us=rolled_us, partial=partial)
            if last is not None:
                self._report("warning", f"{push_memory.FILE} was lost: the store was asked")
        pushed_rows.check_replica(self._store, memory.replica)
        self._pushed_to = last.seq if last else 0
        self._unsure_to = pushed_rows.newest_seq(self._store, content.uuid, memory.sent_seq)
        back = memory.rewound_to
        if back is None:
            back = self._lost_after(content)
        if back is None:
            newest = max(memory.sending_to or 0, self._unsure_to)
            back = self._parted_after(content, min(newest, content.seq))
            if back is None and newest > content.seq:
                back = content.seq
            if back is not None and last is not None and last.age_s < QUIET_S:
                raise _another_agent()
        if back is not None:
            memory = self._rewound(content, memory, back)
        return self._try_partial(content, memory) if memory.partial else memory

    def _lost_after(self, content: SpoolManifest) -> int | None:
        """The commit before one that the spool has lost and the store has; None: there is none."""
        for first, last in content.lost:
            if pushed_rows.commits_between(self._store, content.uuid, first - 1, last):
                return first - 1
        return None

    def _parted_after(self, content: SpoolManifest, to: int) -> int | None:
        """The commit after which spool and store have different rows; None: they are the same.

        to: the last one that both have. A file or rows that are missing are no difference.
        """
        back = None
        while to > 0:
            others, after = [], max(to - _COMPARED, 0)
            for table in TABLES:
                there = pushed_rows.rows_of(self._store, content.uuid, table, after, to)
                here = {
                    (unit.day, seq): rows
                    for unit in (self._units(content, table, after, to) if there else ())
                    for seq, rows in unit.expected().items()
                }
                for (day, seq), rows in there.items():
                    ours = here.get((day, seq), rows)
                    if not (rows.within(ours) or ours.within(rows)) or _other_days(
                        _days(here, seq), _days(there, seq)
                    ):
                        others.append(seq)
            if not others:
                return back
            back = to = min(others) - 1
        return back

    def _note(self, memory: PushMemory) -> PushMemory:
        """Remember, on the disk too if it has room: else the next start asks the store."""
        if memory != self.memory or not self._written:
            try:
                push_memory.write(self._volume, memory)
                self._written = True
            except OSError as ex:
                if self._written:
                    self._report("warning", f"{push_memory.FILE} was not written: {ex.strerror}")
                self._written = False
        self.memory = memory
        return memory

    def _rewound(self, content: SpoolManifest, memory: PushMemory, back: int) -> PushMemory:
        """The spool lost its last commits, and uses their numbers again. Raises StoreError."""
        left = pushed_rows.commits_between(self._store, content.uuid, back, _LAST)
        if not left:
            partial = tuple(one for one in memory.partial if max(one.seqs) <= back)
            self._unsure_to = self._pushed_to
            sent = min(memory.sent_seq, back)
            return replace(memory, sent_seq=sent, sending_to=None, partial=partial, rewound_to=None)
        if memory.rewound_to is None:
            pushed_rows.mark(self._store, content.uuid, left, partial=True)
            self._note(replace(memory, rewound_to=back))
        raise StoreError(
            f"the spool went back to commit {back}, as if restored from a copy, and the store has "
            "later ones: nothing is sent until `pgtare store repair` has deleted these; if another "
            "agent goes on with the original, let this one begin a new spool"
        )

    def _try_partial(self, content: SpoolManifest, memory: PushMemory) -> PushMemory:
        """Look again at what the store had in part: deleted, or complete after all?"""
        left = []
        for one in memory.partial:
            unit = self._partial_unit(content, one)
            if unit is None:
                self._report(
                    "warning",
                    f"{one.table} of {one.day} cannot be completed in the store: the spool has "
                    "dropped the rows",
                )
                continue
            found = self._complete(unit, memory)
            pushed_rows.mark(self._store, content.uuid, unit.places(found.full), partial=False)
            if found.part:
                left.append(replace(one, seqs=tuple(sorted(found.part))))
            else:
                self._report("info", f"{one.table} of {one.day} is complete in the store now")
        return replace(memory, partial=tuple(left))

    def _partial_unit(self, content: SpoolManifest, one: PartialPush) -> PushUnit | None:
        for unit in self._units(content, one.table, min(one.seqs) - 1, max(one.seqs)):
            if unit.day == one.day:
                rest = unit.only(one.seqs)
                return rest if rest.rows.num_rows else None
        return None

    # Windows

    def _send_window(
        self, content: SpoolManifest, memory: PushMemory, to: int, *, unsure: bool
    ) -> None:
        """unsure: whether the store may have some of its rows already."""
        last = pushed_rows.last_push(self._store, content.uuid)
        if last is not None and last.seq > max(self._pushed_to, memory.sending_to or 0):
            raise _another_agent()
        rolled_us, partial = dict(memory.rolled_us), list(memory.partial)
        memory = self._note(
            replace(memory, sending_to=to, replica=memory.replica or self._store.replica())
        )
        unsure = unsure or memory.sent_seq < self._unsure_to
        for name, table in TABLES.items():
            for unit in self._units(content, name, memory.sent_seq, to):
                if unsure:
                    partial += self._send_missing(unit, memory)
                else:
                    self._insert(unit)
                if table.source is not None:
                    last_us = int(times_us(unit.rows).max())
                    rolled_us[name] = max(rolled_us.get(name, last_us), last_us)
        # a watermark may have been set back: beyond it, rows are read as they were
        rolled_us = {
            name: min(us, content.rolled_us.get(name, us)) for name, us in rolled_us.items()
        }
        pushed_rows.note_push(self._store, content.uuid, to, rolled_us)
        self._pushed_to = max(self._pushed_to, to)
        self._note(
            replace(
                memory, sent_seq=to, sending_to=None, rolled_us=rolled_us, partial=tuple(partial)
            )
        )

    def _send_missing(self, unit: PushUnit, memory: PushMemory) -> list[PartialPush]:
        """Send the commits that the store has nothing of; those that it has in part are left."""
        found = self._complete(unit, memory)
        if not found.part:
            return []
        pushed_rows.mark(self._store, unit.spool, unit.places(found.part), partial=True)
        seqs = tuple(sorted(found.part))
        self._report(
            "error",
            f"the store has some rows of {unit.table} of {unit.day} but not all, of commits "
            f"{seqs[0]} to {seqs[-1]}: `pgtare store repair` deletes them, and they are sent again",
        )
        return [PartialPush(unit.table, unit.day, seqs)]

    def _complete(self, unit: PushUnit, memory: PushMemory) -> Presence:
        """Send what the store has nothing of, and return what it has then."""
        found = pushed_rows.presence(self._store, unit, memory.replica)
        for number in range(_MOST_TOKENS):
            if not found.none:
                break
            self._insert(unit.only(found.none), number)
            found = pushed_rows.presence(self._store, unit, memory.replica)
        return found

    def _insert(self, unit: PushUnit, number: int = 0) -> None:
        rows = store_schema.stored(unit.table, unit.rows)
        self._store.insert(unit.table, rows, unit.token(number))

    def _units(self, content: SpoolManifest, table: str, after: int, to: int) -> Iterator[PushUnit]:
        for left in reversed(range(_TRIES)):
            try:
                found = list(self._reader.rows(content, table, after, to))
                break
            except DamagedFile as ex:
                if left:
                    content, _ = reader.newest(self._root)  # it may only have been replaced
                    continue
                self._report("error", f"{ex}: the rows of {ex.name} are not sent")
                lost = content.segments.get(ex.name)
                rest = {n: s for n, s in content.segments.items() if s is not lost}
                yield from self._units(replace(content, segments=rest), table, after, to)
                return
        for day, rows in found:
            yield PushUnit(content.uuid, table, day, rows)


def _days(places: Iterable[tuple[str, int]], seq: int) -> set[str]:
    return {day for day, of in places if of == seq}


def _other_days(here: set[str], there: set[str]) -> bool:
    """Whether the rows of a commit are of other days altogether: then they are other rows.

    Some of a day may be missing: a spool drops its oldest ones.
    """
    return bool(here) and not here & there


def _another_agent() -> StoreError:
    return StoreError(
        "another agent sends the same spool, or did within the last ten minutes: one of the two "
        "is a copy, as of a cloned machine; stop one of them, and let it begin a new spool. If "
        "this spool was restored from a copy, it goes on once these minutes are over"
    )
