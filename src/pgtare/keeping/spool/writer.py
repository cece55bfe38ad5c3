"""The spool as its one writer sees it: commits, the baseline to go on from, and upkeep."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from pgtare.errors import MeasurementError, UsageError
from pgtare.keeping.spool import compaction, manifest, retention, rollup, segments
from pgtare.keeping.spool.believed_clock import BelievedClock
from pgtare.keeping.spool.held import Held
from pgtare.keeping.spool.lock import LOCK, Lock
from pgtare.keeping.spool.manifest import DIRECTORIES, KIND, SpoolManifest
from pgtare.keeping.spool.publication import Publication, segment_id
from pgtare.keeping.spool.retention import SpoolLimits
from pgtare.keeping.spool.segments import DamagedFile, Segment
from pgtare.keeping.spool.tables import TABLES, SpoolTable
from pgtare.keeping.spool.volume import Volume
from pgtare.kit import artefact, files, numbers

DAMAGED = "damaged"
#: Space reserved early: a full disk must have room for the manifest that says what was dropped.
_ROOM, _ROOM_BYTES = "room", 1 << 20
#: Segments that one step drops, at most.
_MOST_DROPS = 50
#: A spool that is too large is made smaller than it may be, to this share. Each drop has rows in
#: `gaps`, which stay: a drop at each commit would fill the spool with them within a year.
_LEFT_SHARE = 0.99
#: If drops give the disk less than half of their size back, as with snapshots, or on a file system
#: that frees later, nothing more is dropped for others for so long, s.
_DROP_WAIT_S = 30
#: Losses of commits that the manifest keeps.
_MOST_LOST = 10
_US = 1_000_000
#: A clock that jumped ahead counts for roll-ups after this, s.
_ROLL_UP_WAIT_S = 600
#: Watermarks that are this far ahead of the clock are set back, s.
_AHEAD_S = 600
#: While the clock is ahead of the rows, at most one day of data an hour is dropped by age.
_AGE_WAIT_S, _AGE_STEP_S = 3600, 23 * 3600  # the hour itself comes to it


class Spool:
    """A directory that this process alone writes. Open it by `open`; a context manager closes it.

    trouble: why rows could not be written, as long as they are held in memory; else None.
    sent_seq: commits up to this one were sent to a store; rows of later ones do not go by age, only
    for room. None: nothing is sent.
    """

    def __init__(self, volume: Volume, lock: Lock, limits: SpoolLimits, found: str) -> None:
        self.uuid = found
        self.trouble: str | None = None
        self.sent_seq: int | None = None
        self._volume, self._lock, self._limits = volume, lock, limits
        self._notes: list[str] = []
        self._held = Held()
        newest, faults = manifest.read(volume.root)
        self._notes += [fault.sentence for fault in faults]
        self._manifest = newest or SpoolManifest(found)
        if self._manifest.uuid != found:
            why = f"{KIND.document} and {manifest.NEWEST} are of different spools"
            raise artefact.damaged(volume.root, why, manifest.REMEDY)
        known_us = retention.known_us(self._manifest)
        self._roll_up_clock = BelievedClock(known_us, _ROLL_UP_WAIT_S, math.inf)
        self._grace_us = int(limits.grace_s * _US)
        self._age_clock = BelievedClock(known_us, _AGE_WAIT_S, _AGE_STEP_S)
        self._earlier = self._earlier_files()
        self._seq = self._manifest.seq
        self._drops_wait_until_s = -math.inf
        if any(fault.name == manifest.NEWEST for fault in faults):
            self._lose_newest()
        for fault in faults:  # or the next commit would replace the previous manifest by it
            self._set_aside(DamagedFile(fault.name, fault.why))
        self._remove_left_overs()
        self._check_segments()
        self._keep_room()

    @staticmethod
    def open(
        directory: Path, limits: SpoolLimits | None = None, volume: Volume | None = None
    ) -> Spool:
        """Open a spool to write, or begin one in a directory that is new or empty.

        Raises UsageError if another process writes it or the directory cannot be used, PgtareError
        if it is damaged as a whole, and MeasurementError if it cannot be written.
        """
        # Arrow's own allocator keeps twice the memory after the sums of an hour
        pa.set_memory_pool(pa.system_memory_pool())
        volume = volume or Volume(directory)
        lock = None
        try:
            if not directory.exists():
                files.check_directory(directory)
            elif not directory.is_dir():
                raise artefact.other_kind(directory, KIND.what, "it is not a directory")
            volume.make_directory()
            _check_purpose(directory)
            lock = Lock(directory)
            for name in DIRECTORIES:
                volume.make_directory(name)
            return Spool(volume, lock, limits or SpoolLimits(), _identity(volume))
        except BaseException as ex:
            if lock is not None:
                lock.release()
            if isinstance(ex, OSError):
                raise files.failure(f"{directory} could not be written", ex) from ex
            raise

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is held, if that is possible now, and let others write."""
        if not self._held.empty:
            self._seek_room()
            if not self.trouble:
                self._write_held()
        self._lock.release()

    @property
    def held(self) -> int:
        """Commits that are in memory only, because they could not be written."""
        return len(self._held)

    def take_notes(self) -> list[str]:
        """Take the sentences on what was set aside or dropped since the last call, for a log."""
        taken, self._notes = self._notes, []
        return taken

    def reading(self, server: str, part: str) -> pa.Table | None:
        """The reading that the rows of the newest commit end at; None if there is none.

        A commit that is held counts. A reading that is damaged is set aside, and counts as none.
        """
        if (server, part) in self._held.readings:
            return self._held.readings[server, part]
        found = self._manifest.readings.get((server, part))
        if found is None:
            return None
        try:
            return segments.read_file(self._volume.root, found.name)
        except DamagedFile as ex:
            self._set_aside(ex)
            return None

    def commit(
        self,
        rows: Mapping[str, pa.Table],
        readings: Mapping[tuple[str, str], pa.Table | None],
    ) -> str:
        """Publish rows of any tables and the readings that they end at, together; the segment id.

        rows: by table, without the column `segment`. readings: by server and part, for this and
        earlier commits; None: there is no such reading any more. What cannot be written is held
        and written with a later commit, whose id it gets; `trouble` says why. So no rows appear
        later with the id of a commit that readers know already.
        """
        self._seek_room()
        segment = segment_id(self.uuid, self._seq + 1)
        complete = {name: some.select(TABLES[name].row_schema.names) for name, some in rows.items()}
        self._held.add(complete, readings, time.monotonic())
        if self.trouble:
            self._seq += 1
        else:
            self._write_held()
        if self.trouble:
            self._held.expire(time.monotonic() - self._limits.held_s)
        return segment

    def maintain(self, now: datetime, monotonic_s: float | None = None) -> bool:
        """One small step of upkeep; whether there may be more to do.

        First what is urgent: room, roll-ups, rows that are too old, and merging small segments.
        A `now` that is far ahead of the rows rolls nothing up for ten minutes, and makes rows old
        by at most one day an hour. monotonic_s: of a clock that is never set; the system's if None.
        """
        if monotonic_s is None:
            monotonic_s = time.monotonic()
        try:
            return self._maintain(now, monotonic_s)
        except DamagedFile as ex:
            return self._set_aside(ex)
        except OSError as ex:
            self._notes.append(_cause(self._volume.root, ex))
            return False

    def _maintain(self, now: datetime, monotonic_s: float) -> bool:
        now_us = int(now.timestamp() * _US)
        roll_up_us = self._roll_up_clock.read(now_us, monotonic_s)
        age_us = self._age_clock.read(now_us, monotonic_s)
        if self._remove_retired(now):
            return True
        with contextlib.suppress(OSError):
            self._make_room()
        if self._set_back(roll_up_us):
            return True
        for table in TABLES.values():
            if table.source and self._roll_up(table, roll_up_us):
                return True
        old = retention.too_old(self._manifest, age_us, self._limits.kept_s, self.sent_seq)
        if old := old[:_MOST_DROPS]:
            self._expire(old)
            return True
        if chosen := compaction.choose(self._manifest.segments.values(), now):
            with self._publication() as publication:
                compaction.merge(self._volume, publication, chosen, now.timestamp())
            return True
        self._keep_room()
        return False

    def _set_back(self, now_us: int) -> bool:
        """Set watermarks back that are far ahead of the clock, which was ahead itself."""
        limit_us = now_us + _AHEAD_S * _US
        ahead = [table for table, us in self._manifest.rolled_us.items() if us > limit_us]
        if not ahead:
            return False
        with self._publication() as publication:
            for name in ahead:
                closed_us = rollup.last_closed(now_us - self._grace_us, TABLES[name])
                publication.set_rolled(name, closed_us)
        return True

    def _roll_up(self, table: SpoolTable, now_us: int) -> bool:
        assert table.source is not None
        done_us = self._manifest.rolled_us.get(table.name, 0)
        to_us = rollup.last_closed(now_us - self._grace_us, table)
        origin = TABLES[table.source].source
        if origin is not None:  # hours wait for minutes, if there is a tick that makes one
            source_us = self._manifest.rolled_us.get(table.source, 0)
            if not all(
                self._manifest.is_rolled_up(segment, table.source)
                for segment in self._manifest.of_table(origin)
            ):
                to_us = min(to_us, rollup.last_closed(source_us, table))
        some = [
            segment
            for segment in self._manifest.of_table(table.source)
            if segment.first_us <= to_us and not self._manifest.is_rolled_up(segment, table.name)
        ]
        if to_us <= done_us or not some:
            return False
        first_us = max(min(segment.first_us for segment in some), done_us + 1)
        width_us = table.bucket_s * _US * rollup.MOST_BUCKETS
        to_us = min(to_us, rollup.bucket_end(first_us, table) + width_us)
        some = [segment for segment in some if segment.first_us <= to_us]
        # a large segment may have few rows that are due, and an hour of statements has very many:
        # never all at once
        early = self._manifest.rolled_early.get(table.name, ())
        groups = (
            rollup.without(rollup.between(group, done_us, to_us), early)
            for segment in some
            for group in segments.groups(self._volume.root, segment)
        )
        rows = rollup.summed_groups(groups, table)
        with self._publication() as publication:
            publication.set_rolled(table.name, to_us)
            publication.add_rows(table.name, rows)
        return True

    def _expire(self, old: list[Segment]) -> None:
        """Drop what is too old: it is counted, and is no gap, as it was meant to go."""
        with self._publication() as publication:
            for segment in old:
                publication.drop(segment)
        for segment in old:
            self._remove(segment.name)

    def _drop(self, segment: Segment, now: datetime) -> None:
        """Drop a segment for room."""
        rows = None
        with contextlib.suppress(DamagedFile):
            rows = segments.read(self._volume.root, segment, ["server", "segment", "ts"])
        unsent = retention.unsent_rows(segment, rows, self.sent_seq)
        of_store = f", {unsent} of them not sent to the store" if unsent else ""
        why = f"for room{of_store}"
        with self._publication() as publication:
            publication.drop(segment)
            for gap in retention.gaps_of(segment, rows, "dropped", why, now):
                publication.add_rows("gaps", gap)
        self._remove(segment.name)
        self._notes.append(f"dropped {segment.rows} rows of {segment.table} {why}")

    def _make_room(self) -> str | None:
        """Drop segments until the limits are kept. If the reserve cannot be reached, return why.

        Raises OSError if what is dropped cannot be written down.
        """
        most_bytes: float = self._limits.most_bytes
        short = first_short = self._short_bytes()
        waits = time.monotonic() < self._drops_wait_until_s
        for _ in range(_MOST_DROPS):
            too_large = retention.total_bytes(self._manifest) > most_bytes
            if not too_large and (short <= 0 or waits):
                break
            if too_large:
                most_bytes = _LEFT_SHARE * self._limits.most_bytes
            retired = [name for name in self._manifest.retired if self._replaced_before(name)]
            if retired:
                short -= sum(self._manifest.retired[name].bytes for name in retired)
                with self._publication() as publication:
                    publication.forget_retired(retired)
                for name in retired:
                    self._remove(name)
                continue
            if too_large:
                victim = retention.first_to_go(self._manifest)
            else:
                victim = retention.first_for_others(self._manifest, short)
            if victim is None:
                break
            self._drop_for_room(victim)
            short -= victim.bytes
        left = self._short_bytes()
        if left <= 0:
            return None
        dropped = first_short - short
        if dropped and first_short - left < dropped / 2:
            self._drops_wait_until_s = time.monotonic() + _DROP_WAIT_S
        return self._reserve_reached()

    def _short_bytes(self) -> int:
        """Bytes that are missing from the room left free for others."""
        return self._limits.reserve_bytes - self._volume.free_bytes()

    def _reserve_reached(self) -> str:
        reserve = numbers.volume(self._limits.reserve_bytes)
        return (
            f"{self._volume.root} was not written: less than {reserve} of its disk is free, which "
            f"the spool leaves to others; {files.MAKE_ROOM}"
        )

    def _drop_for_room(self, victim: Segment) -> None:
        now = datetime.now(UTC)
        try:
            self._drop(victim, now)
        except OSError as ex:
            if not files.is_full(ex):
                raise
            self._remove(_ROOM)
            self._drop(victim, now)

    def _seek_room(self) -> None:
        try:
            self.trouble = self._make_room()
        except OSError as ex:
            self.trouble = _cause(self._volume.root, ex)

    def _write_held(self) -> None:
        try:
            try:
                self._publish_held()
            except OSError as ex:
                victim = retention.first_to_go(self._manifest)
                if not files.is_full(ex) or victim is None:
                    raise
                self._drop_for_room(victim)
                self._publish_held()
        except OSError as ex:
            self.trouble = _cause(self._volume.root, ex)

    def _publish_held(self) -> None:
        with self._publication() as publication:
            self._held.put_into(publication)
        self._held.clear()

    @contextlib.contextmanager
    def _publication(self) -> Iterator[Publication]:
        """Changes, published at the end; if that fails there were none."""
        self._seq += 1
        publication = Publication(self._volume, self._manifest, self._seq)
        try:
            yield publication
            newest = publication.publish()
        except Exception:
            publication.abandon()
            raise
        before, self._manifest = self._manifest, newest
        with contextlib.suppress(OSError):  # readers have it; only a power failure could undo it
            self._volume.sync()
        for name in self._earlier - before.files() - newest.files():
            self._remove(name)
        self._earlier = before.files()

    def _remove_retired(self, now: datetime) -> bool:
        due = [
            name
            for name, retired in self._manifest.retired.items()
            if abs(now.timestamp() - retired.at_s) >= self._limits.reader_s  # the clock may be set
            and self._replaced_before(name)
        ]
        for name in due:
            self._remove(name)
        if due:
            with self._publication() as publication:
                publication.forget_retired(due)
        return bool(due)

    def _replaced_before(self, name: str) -> bool:
        """Whether the previous manifest can do without a retired file, too."""
        return self._manifest.retired[name].seq < self._manifest.seq

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._volume.remove(name)

    def _set_aside(self, damage: DamagedFile) -> bool:
        """Move a damaged file out of the way and go on without it; whether that was written."""
        name, now = damage.name, datetime.now(UTC)
        kept = f"{DAMAGED}/{Path(name).name}"
        damaged = f"{self._volume.path(name)} is damaged ({damage.why})"
        try:
            if self._volume.path(name).exists():
                self._volume.make_directory(DAMAGED)
                self._volume.replace(name, kept)
            with self._publication() as publication:
                publication.set_aside(name, damage.why)
                for gap in retention.gaps_of_file(self._manifest, name, damage.why, now):
                    publication.add_rows("gaps", gap)
        except OSError as ex:
            self._notes.append(f"{damaged}, and was not set aside: {_cause(self._volume.root, ex)}")
            return False
        self._notes.append(f"{damaged}: set aside as {kept}")
        return True

    def _lose_newest(self) -> None:
        """The newest commit is lost: its number is not used again, as a store may know it."""
        used = manifest.commits(self._volume.root)
        before, self._seq = self._seq, max({self._seq + 1, *used})
        lost = (*self._manifest.lost, (before + 1, self._seq))
        self._manifest = replace(self._manifest, lost=lost[-_MOST_LOST:])

    def _earlier_files(self) -> set[str]:
        with contextlib.suppress(Exception):
            return manifest.read_previous(self._volume.root).files()
        return set()

    def _remove_left_overs(self) -> None:
        """Files of commits that were not completed."""
        known = self._manifest.files() | self._earlier
        for directory in DIRECTORIES:
            for name in os.listdir(self._volume.path(directory)):
                if f"{directory}/{name}" not in known:
                    self._volume.remove(f"{directory}/{name}")

    def _check_segments(self) -> None:
        for segment in list(self._manifest.segments.values()):
            try:
                segments.check(self._volume.root, segment)
            except DamagedFile as ex:
                self._set_aside(ex)

    def _keep_room(self) -> None:
        if self._volume.path(_ROOM).exists():
            return
        if self._volume.free_bytes() < self._limits.reserve_bytes + 2 * _ROOM_BYTES:
            return
        with contextlib.suppress(OSError):
            self._volume.write(_ROOM, bytes(_ROOM_BYTES))


def _check_purpose(directory: Path) -> None:
    """Raise UsageError if a directory holds anything other than a spool."""
    names = set(os.listdir(directory))
    if KIND.document in names:
        KIND.read(directory / KIND.document)
    elif names - {LOCK, f"{KIND.document}.new", *DIRECTORIES}:
        raise UsageError(
            f"{directory} is not empty and holds no {KIND.what}: it lacks {KIND.document}; name "
            "a directory that is new or empty"
        )


def _identity(volume: Volume) -> str:
    """The UUID of the spool, which is a new one if there is none."""
    place = volume.path(KIND.document)
    if not place.exists():
        document = {"schema": KIND.schema, "uuid": str(uuid.uuid4())}
        volume.write(f"{KIND.document}.new", (json.dumps(document) + "\n").encode())
        volume.replace(f"{KIND.document}.new", KIND.document)
        volume.sync()
    found = KIND.read(place).get("uuid")
    if not isinstance(found, str):
        raise artefact.damaged(place, "it has no uuid", manifest.REMEDY)
    return found


def _cause(directory: Path, ex: OSError) -> str:
    error: MeasurementError = files.failure(f"{directory} could not be written", ex)
    return str(error)
