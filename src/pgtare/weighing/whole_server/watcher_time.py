"""What watchers take on the server themselves: their sessions' processor time, window by window.

The time of all of the server's processes is summed, those that came and went included, less that of
the application's sessions and of ours. Sessions of a kind (role, name, address) are the
application's if some are there in most of the windows in which every watcher is off. What is left
in by that varies in all windows alike: it makes intervals wider, and biases none. Where the
server's processes cannot be seen from here, the time that sessions are active is sampled instead.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil
import psycopg

from pgtare.kit import machine
from pgtare.postgres import pooler

#: A process of this machine is the session's if it began within so many seconds of it.
_SAME_START_S = 2.0
_OURS = """
SELECT pid, extract(epoch FROM backend_start)::float8 FROM pg_catalog.pg_stat_activity
WHERE pid = pg_catalog.pg_backend_pid()
"""
_NOW = "SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float8"
_SESSIONS = """
SELECT coalesce(leader.pid, one.pid), one.pid,
       extract(epoch FROM coalesce(leader.backend_start, one.backend_start))::float8,
       coalesce(leader.usename, one.usename)::text,
       coalesce(leader.application_name, one.application_name),
       host(coalesce(leader.client_addr, one.client_addr)),
       one.state = 'active'
FROM pg_catalog.pg_stat_activity AS one
LEFT JOIN pg_catalog.pg_stat_activity AS leader ON leader.pid = one.leader_pid
WHERE one.backend_type IN ('client backend', 'parallel worker', 'walsender')
"""
_MAY_SEE = "SELECT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')"

#: Sessions of a kind are the application's if some are there in this share of all windows without
#: watchers. Those that a watcher leaves behind are in the windows that follow it only.
_OF_APPLICATION = 0.75

#: Role, name and address of a session.
Kind = tuple[str, str, str]
#: While what it began: the arm and block of a window with something on, or one of these.
Origin = tuple[int, int]
#: Before anything was switched: it may be anybody's.
UNKNOWN: Origin = (-2, 0)
#: When all was tried out.
TRIED: Origin = (-3, 0)
#: In a window with everything off.
NOTHING_ON: Origin = (-1, 0)


class SessionSeen(NamedTuple):
    """A session, or a parallel worker of one. leader: the process that serves its client."""

    leader: int
    pid: int
    origin: Origin
    kind: Kind
    active: bool


@dataclass
class WindowTime:
    """One window. server_ns: of all of the server's processes but ours, None if not seen.

    kinds_ns: of these, sessions by their kind. active, there: sessions active, or there, at a time,
    by kind; seen: kinds of sessions that were there; began: while what such sessions began.
    processes_ns: of what the switches started here, by switch;
    unread_ns: what these may have taken more up to the end, as children that have ended count in
    whole ticks; unread_before_ns: up to the beginning, which is in processes_ns.
    """

    block: int
    arm: int
    seconds: float = 0.0
    server_ns: float | None = None
    kinds_ns: dict[Kind, float] = field(default_factory=lambda: defaultdict(float))
    active: dict[Kind, float] = field(default_factory=lambda: defaultdict(float))
    there: dict[Kind, float] = field(default_factory=lambda: defaultdict(float))
    seen: set[Kind] = field(default_factory=set)
    began: dict[Kind, set[Origin]] = field(default_factory=lambda: defaultdict(set))
    processes_ns: dict[int, float] = field(default_factory=dict)
    unread_ns: dict[int, float] = field(default_factory=dict)
    unread_before_ns: dict[int, float] = field(default_factory=dict)


class WatcherTime:
    """Reads what the server's processes take. ours: processes of the server that serve us."""

    def __init__(self, control: psycopg.Connection[Any], ours: Sequence[int]) -> None:
        self._control, self._ours = control, set(ours)
        ((may,),) = pooler.rows(control, _MAY_SEE)
        self.sees_sessions = bool(may)
        self._postmaster = _postmaster(control)
        self.windows: list[WindowTime] = []
        #: From when on sessions begin while what, by the server's clock.
        self._since: list[tuple[float, Origin]] = [(-math.inf, UNKNOWN)]
        #: Kinds of sessions that are there before anything is switched on.
        self.at_first = self._kinds_now()
        self._stay: set[Kind] = set()  # of sessions that were waited for in vain
        self._begins(TRIED)
        self._last: dict[int, tuple[Kind | None, int]] = {}  # of sessions: kind, time so far
        self._at_start: tuple[float, Mapping[int, OwnTime]] = (0.0, {})
        self._looks = 0

    @property
    def sees_processes(self) -> bool:
        """Whether the server runs on this machine."""
        return self._postmaster is not None

    def _sessions(self) -> Iterator[SessionSeen]:
        for leader, pid, start, *kind, active in pooler.rows(self._control, _SESSIONS):
            role, name, address = (one or "" for one in kind)
            yield SessionSeen(leader, pid, self._origin(start), (role, name, address), bool(active))

    def _origin(self, start: float | None) -> Origin:
        if start is None:  # its client has not said yet who it is
            return UNKNOWN
        return self._since[bisect.bisect_right(self._since, (start, (math.inf, 0))) - 1][1]

    def _kinds_now(self) -> set[Kind]:
        if not self.sees_sessions:
            return set()
        return {one.kind for one in self._sessions() if one.leader not in self._ours}

    def _begins(self, origin: Origin) -> None:
        if self.sees_sessions:
            ((now,),) = pooler.rows(self._control, _NOW)
            self._since.append((float(now), origin))

    def all_off(self) -> None:
        """What was on before the weighing is off: what went with it is not the application's."""
        self.at_first &= self._kinds_now()

    def switching(self, block: int, arm: int) -> None:
        """From now on the switch of this arm goes on, for a window."""
        self._begins((arm, block))

    def left_behind(self, arm: int) -> set[Kind]:
        """Kinds of sessions that began with an arm's watcher, and are still there.

        Without those of kinds that are there at other times as well. arm: that of TRIED for what
        began when all was tried out.
        """
        if not self.sees_sessions:
            return set()
        others = self.at_first | self._stay
        for window in self.windows:
            others |= {kind for kind, origins in window.began.items() if NOTHING_ON in origins}
        return {
            one.kind
            for one in self._sessions()
            if one.origin[0] == arm and one.leader not in self._ours and one.kind not in others
        }

    def wait_no_more(self, kinds: set[Kind]) -> None:
        """Sessions of these kinds stay."""
        self._stay |= kinds

    def begin(self, block: int, arm: int, leaders: Mapping[int, int], *, off: bool = False) -> None:
        """A window begins. leaders: first process of each switch that is one. off: all are off."""
        if off:
            self._begins(NOTHING_ON)
        self.windows.append(WindowTime(block, arm))
        self._last, self._looks = {}, 0
        self.look()
        self._at_start = self._totals(leaders)

    def look(self) -> None:
        """Called about once a second: who is there, and what each has taken."""
        if not self.sees_sessions:
            return
        window, now = self.windows[-1], {}
        for leader, pid, origin, kind, active in self._sessions():
            ours = leader in self._ours
            if not ours:
                window.seen.add(kind)
                window.began[kind].add(origin)
                window.active[kind] += active
                window.there[kind] += pid == leader
            spent = machine.schedstat(pid) if self._postmaster is not None else None
            if spent is None:
                continue
            _, before = self._last.get(pid, (None, spent[0] if not self._looks else 0))
            now[pid] = (None if ours else kind, spent[0])
            if ours:
                window.server_ns = (window.server_ns or 0.0) - (spent[0] - before)
            else:
                window.kinds_ns[kind] += spent[0] - before
        self._last, self._looks = now, self._looks + 1

    def end(self, seconds: float, leaders: Mapping[int, int]) -> None:
        """The window ends, so long after its beginning."""
        total, own = self._totals(leaders)
        self.look()
        window = self.windows[-1]
        window.seconds = seconds
        before, own_before = self._at_start
        if self._postmaster is not None and self.sees_sessions:
            window.server_ns = (window.server_ns or 0.0) + total - before
        for index, after in own.items():
            first = own_before.get(index, OwnTime())
            window.processes_ns[index] = after.ns - first.ns
            window.unread_ns[index], window.unread_before_ns[index] = (
                after.unread_ns,
                first.unread_ns,
            )
        for counted in (window.active, window.there):
            for kind in counted:
                counted[kind] /= max(self._looks, 1)

    def _totals(self, leaders: Mapping[int, int]) -> tuple[float, dict[int, OwnTime]]:
        """So far, in ns: all of the server's processes, and those of each switch."""
        found, tick_ns = machine.processes(), 1e9 * machine.tick_s()
        total = 0.0
        if self._postmaster is not None and self._postmaster in found:
            mine = found[self._postmaster]
            total = tick_ns * (mine.own + mine.outlived)
            for pid in _below(found, self._postmaster) - {self._postmaster}:
                total += _taken(found[pid], machine.cpu_ns(pid))
        own = {index: own_time(found, leader) for index, leader in leaders.items()}
        return total, own


@dataclass(frozen=True)
class OwnTime:
    """What the processes of a switch have taken, and may have taken more, in ns."""

    ns: float = 0.0
    unread_ns: float = 0.0


def own_time(found: Mapping[int, machine.ProcessTimes], leader: int) -> OwnTime:
    """So far, of a leader, of all that it started, and of what is left of its session.

    What detaches itself (`setsid`, a daemon) is adopted by the leader, which keeps it.
    """
    tick_ns = 1e9 * machine.tick_s()
    ns = unread_ns = 0.0
    below = _below(found, leader)
    for pid, each in found.items():
        if each.session != leader and pid not in below:
            continue
        exact = machine.cpu_ns(pid)
        ns += _taken(each, exact)
        unread_ns += 2 * tick_ns * (each.has_outlived + (exact is None))
    return OwnTime(ns, unread_ns)


def _taken(process: machine.ProcessTimes, exact_ns: int | None) -> float:
    """By a process and what it ran (archive_command, COPY PROGRAM), in ns.

    exact_ns: by itself, where that can be read; else it counts in ticks.
    """
    tick_ns = 1e9 * machine.tick_s()
    own_ns = exact_ns if exact_ns is not None else tick_ns * process.own
    return own_ns + tick_ns * process.outlived


def _below(found: Mapping[int, machine.ProcessTimes], leader: int) -> set[int]:
    """A process, its children, their children, and so on."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, each in found.items():
        children[each.parent].append(pid)
    below, left = set[int](), [leader]
    while left:
        pid = left.pop()
        if pid not in below:
            below.add(pid)
            left += children[pid]
    return below


def kinds_of_application(windows: Sequence[WindowTime], reference: Sequence[int]) -> set[Kind]:
    """Kinds of sessions that are there while every watcher is off, and did not begin with one."""
    off = [window for window in windows if window.arm in reference]
    there = Counter(kind for window in off for kind in window.seen)
    arms = {window.arm for window in windows} - set(reference)
    theirs = [came_with(windows, arm) for arm in arms]
    return {
        kind
        for kind, n in there.items()
        if n >= _OF_APPLICATION * len(off) and not any(kind in each for each in theirs)
    }


def came_with(windows: Sequence[WindowTime], arm: int) -> set[Kind]:
    """Kinds of which sessions began in most of an arm's windows, and in none without watchers."""
    most = sum(window.arm == arm for window in windows) / 2
    return {
        kind
        for kind, began in _origins(windows).items()
        if NOTHING_ON not in began and sum(origin[0] == arm for origin in began) > most
    }


def lingered(windows: Sequence[WindowTime], arm: int, reference: Sequence[int]) -> set[Kind]:
    """Kinds that came with an arm, of which sessions went on in windows with everything off."""
    return came_with(windows, arm) & _went_on(windows, arm, reference)


def stayed(
    windows: Sequence[WindowTime], at_first: set[Kind], arm: int, reference: Sequence[int]
) -> set[Kind]:
    """Kinds of which sessions began in a few of an arm's windows, and went on without it."""
    began = {kind for kind, one in _origins(windows).items() if NOTHING_ON in one}
    return _went_on(windows, arm, reference) - at_first - began - came_with(windows, arm)


def _origins(windows: Sequence[WindowTime]) -> dict[Kind, set[Origin]]:
    """While what sessions of each kind began."""
    origins: dict[Kind, set[Origin]] = defaultdict(set)
    for window in windows:
        for kind, began in window.began.items():
            origins[kind] |= began
    return origins


def _went_on(windows: Sequence[WindowTime], arm: int, reference: Sequence[int]) -> set[Kind]:
    """Kinds of which sessions that began with an arm were there with everything off."""
    off = [window for window in windows if window.arm in reference]
    return {
        kind for kind, began in _origins(off).items() if any(origin[0] == arm for origin in began)
    }


def kind_share(window: WindowTime, kind: Kind) -> float:
    """Share of one processor that sessions of a kind took in a window.

    Where the server's processes are not seen: sessions of it active at a time.
    """
    if window.server_ns is None:
        return window.active.get(kind, 0.0)
    return window.kinds_ns.get(kind, 0.0) / (1e9 * window.seconds)


def server_share(window: WindowTime, application: set[Kind]) -> float:
    """Share of one processor that the server took in a window, without the application's sessions.

    NaN if it was not seen.
    """
    if window.server_ns is None or not window.seconds:
        return float("nan")
    theirs = sum(ns for kind, ns in window.kinds_ns.items() if kind in application)
    return (window.server_ns - theirs) / (1e9 * window.seconds)


def active_share(window: WindowTime, application: set[Kind]) -> float:
    """Sessions active at a time in a window, without the application's."""
    return sum(n for kind, n in window.active.items() if kind not in application)


def _postmaster(control: psycopg.Connection[Any]) -> int | None:
    """The server's first process, if the server runs here."""
    ((pid, started),) = pooler.rows(control, _OURS)
    try:
        process = psutil.Process(int(pid))
        same = abs(process.create_time() - float(started)) < _SAME_START_S
        parent = process.parent()
        same &= parent is not None and parent.name() == process.name()
    except psutil.Error:
        return None
    postmaster = parent.pid if same and parent is not None else None
    return postmaster if machine.schedstat(int(pid)) is not None else None
