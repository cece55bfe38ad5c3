"""Which rings are taken: by a recording those of sessions that it means, traced meanwhile.

A session keeps its ring as long as it lives, and the server keeps those of sessions that have
ended: what was traced before is still there to be read, whether it was requested or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pgtare.observing.trace.capture.before_recording import Earlier
from pgtare.observing.trace.capture.target import Target

#: What a session that ends writes in any case, in bytes.
_END = 32

Key = tuple[int, datetime]


@dataclass(frozen=True)
class Traced:
    """A ring on the server, of calls or of waits alone.

    bytes: written to it so far; None: not known, of waits. session_started: of a live session; a
    ring has one session, and a session one ring.
    """

    pid: int
    started: datetime
    ended: datetime | None
    user: str | None
    database: str | None
    application: str | None
    client: str | None
    level: int
    reason: str | None
    bytes: int | None
    session_started: datetime | None

    @property
    def key(self) -> Key:
        """The process and when its ring began: numbers of processes come again."""
        return self.pid, self.started


@dataclass(frozen=True)
class Start:
    """Where the calls of a ring begin that are taken: the first record's place, number, begin."""

    position: int
    number: int
    begin_ns: int

    def moment(self, key: Key) -> datetime:
        """When that was, of the ring with this key."""
        return key[1] + timedelta(microseconds=self.begin_ns // 1000)


@dataclass
class HeldRings:
    """Rings that are taken as they are, from where on. began: no call is older."""

    began: datetime
    starts: dict[Key, Start]

    def takes(self, ring: Traced) -> bool:
        """Whether a ring is taken."""
        return ring.key in self.starts

    def earlier(self, key: Key) -> Earlier:
        """What keeps out what it held before that."""
        start = self.starts[key]
        last = (start.number - 1, start.begin_ns) if start.number > 1 else None
        return Earlier(start.position, last)

    def of_waits(self, key: Key) -> tuple[datetime | None, datetime | None]:
        """From when on its calls are taken; all sessions belonged to it at once."""
        return self.starts[key].moment(key), None


@dataclass
class Choice:
    """The sessions that a recording means, and their rings.

    before: up to which position a ring is not for the recording, by what was written earlier.
    _joined: up to when one of waits is not, if its session took its name later.
    """

    target: Target
    began: datetime
    before: dict[Key, int] = field(default_factory=dict)
    _joined: dict[Key, datetime] = field(default_factory=dict)
    _meant: dict[Key, Key | None] = field(default_factory=dict)
    _others: set[Key] = field(default_factory=set)
    _traced: set[Key] = field(default_factory=set)
    _taken: set[Key] = field(default_factory=set)

    def earlier(self, key: Key) -> Earlier:
        """What keeps that out of it."""
        return Earlier(self.before.get(key, 0))

    def of_waits(self, key: Key) -> tuple[datetime | None, datetime | None]:
        """All begin as the recording; when a session with a ring of waits came to belong to it."""
        return None, self._joined.get(key)

    def means(
        self,
        pid: int,
        started: datetime,
        role: str | None,
        database: str | None,
        application: str | None,
    ) -> bool:
        """Whether a live session is meant: it matches, now or earlier."""
        session = pid, started
        if session in self._meant:
            return True
        if not self.target.matches(pid, role, database, application):
            self._others.add(session)  # an application may take its name later
            return False
        # the number of a process that has ended comes again: that is another's session
        if pid in self.target.pids and any(pid == p for p, _ in self._meant):
            return False
        self._meant[session] = None
        return True

    def found(
        self, session: Key, ring_started: datetime | None, held: int | datetime | None
    ) -> None:
        """A session belongs to the recording from now on; held: what its ring has already.

        If it did not belong until now (it had another application's name), that is left out. Of
        waits alone held is the time.
        """
        if ring_started is None or session not in self._others:
            return
        ring = session[0], ring_started
        if isinstance(held, datetime):
            self._joined[ring] = held
        else:
            self.before[ring] = held or 0

    def takes(self, ring: Traced) -> bool:
        """Whether a ring is recorded: its session belongs here and was traced during it."""
        if ring.key in self._taken:
            return True
        if ring.key not in self.before and ring.started < self.began:
            self.before[ring.key] = ring.bytes or 0
        if not (self._by_ring(ring) if self.target.armed_only else self._by_session(ring)):
            return False
        least = _END if ring.ended else 0
        if ring.bytes is not None and ring.bytes - self.before.get(ring.key, 0) <= least:
            return False
        self._taken.add(ring.key)
        return True

    def _by_ring(self, ring: Traced) -> bool:
        """Nothing is requested: what settings have traced."""
        if ring.ended is not None:  # the server tells no level of it any more
            return ring.key in self._traced or ring.started >= self.began
        if ring.level > 0:
            self._traced.add(ring.key)
        else:
            self._traced.discard(ring.key)
        return ring.key in self._traced

    def _by_session(self, ring: Traced) -> bool:
        if ring.ended is None:
            if ring.session_started is None or ring.started < ring.session_started:
                return False
            session = ring.pid, ring.session_started
            if session in self._meant:
                self._meant[session] = ring.key
            return session in self._meant
        if ring.key in self._meant.values():
            return True
        return ring.started >= self.began and self._was_meant(ring)

    def _was_meant(self, ring: Traced) -> bool:
        """Of a session whose ring began and ended between two looks."""
        earlier = [
            session
            for session in self._meant
            if session[0] == ring.pid and session[1] <= ring.started
        ]
        session = max(earlier, default=None)
        if session is not None and self._meant[session] is None:
            self._meant[session] = ring.key
            return True
        # between two looks it came, too; its number tells nothing then
        return not self.target.pids and self.means(
            *ring.key, ring.user, ring.database, ring.application
        )
