"""The agent: watches all servers, and commits the rows of their looks once a tick."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import psutil
import pyarrow as pa

from pgtare.errors import PgtareError, UsageError
from pgtare.keeping.agent import process_memory
from pgtare.keeping.agent.config import AgentConfig
from pgtare.keeping.agent.grid import LookGrid
from pgtare.keeping.agent.rows import EXACT, Batch, RowInterval
from pgtare.keeping.agent.server_looks import ServerLooks
from pgtare.keeping.agent.server_session import STATEMENT_TIMEOUT_S, AgentLocked, SessionIdentity
from pgtare.keeping.agent.server_watch import ServerWatch
from pgtare.keeping.agent_log import AgentLog
from pgtare.keeping.spool.held import Held
from pgtare.kit import files
from pgtare.postgres.inventory import InventoryServer

if TYPE_CHECKING:
    from pgtare.keeping.spool.writer import Spool

#: How long a new watch waits for a server that another agent watches, in s: the other may have been
#: killed without the server having noticed yet.
_LOCKED_S = 15.0
#: Commits come this much later than the looks, in s, so that they hold the newest.
_COMMIT_LATER_S = 1.0
#: Commits come at most this far apart, in s, however rarely waits are read: other looks go on.
_LONGEST_COMMIT_S = 60.0
#: Rows wait this long for a commit to end, in s, as it may not while a disk hangs.
_COLLECTED_S = 600.0
#: How often the agent checks whether to stop, in s.
_NAP_S = 0.5
#: Upkeep of the spool goes on for at most this share of an interval.
_UPKEEP_SHARE = 0.2
#: Rows about the agent itself are of no server.
_ALL_SERVERS = ""

#: Reads the configuration anew; None: there is no file.
Reload = Callable[[], AgentConfig]


class CommitFollower(Protocol):
    """What each commit is passed to, such as the metrics."""

    def grow(
        self, rows: Mapping[str, pa.Table], interval_s: float
    ) -> Mapping[tuple[str, str], pa.Table]:
        """Take the rows of a commit, and return the readings that must become part of it."""

    def committed(self, up: Mapping[str, bool], *, written: bool) -> None:
        """The commit has ended. up: servers, and whether each is connected."""


class Agent:
    """All watches, and the one writer of the spool."""

    def __init__(
        self,
        config: AgentConfig,
        spool: Spool,
        log: AgentLog,
        reload: Reload | None = None,
        follower: CommitFollower | None = None,
    ) -> None:
        self.config, self.spool, self.log = config, spool, log
        self.uuid = str(uuid.uuid4())
        self._reload, self._follower = reload, follower
        self._watches: dict[str, ServerWatch] = {}
        self._lock = threading.Lock()
        self._collected = Held()
        # set by handlers of signals: an Event's wait() holds the lock that its set() would wait for
        self._stopping = self._reloading = self._was_reloaded = False
        self._cpu_s = 0.0
        self._committed_at: float | None = None
        self._commit_s = 0.0

    def run(self) -> None:
        """Watch until a signal to stop comes.

        Raises PgtareError if no server can be watched and none ever will, or if the spool cannot be
        written.
        """
        with self._signals():
            self.log.write("info", "started", servers=len(self.config.servers), agent=self.uuid)
            process_memory.use_one_arena()
            files.raise_descriptor_limit()  # a server takes three, and commits take one
            self._adapt(self.config)
            try:
                self._until_stopped()
            finally:
                watched = list(self._watches)
                self._stop(watched)
                self._commit(watched)
                self.log.write("info", "stopped")

    def stop(self) -> None:
        """End after a last commit; may be called by any thread."""
        self._stopping = True

    def _until_stopped(self) -> None:
        due = time.monotonic() + self._grid().wait_s(time.time())
        while not self._stopping:
            if self._reloading:
                self._reloading = False
                self._read_again()
            self._give_up_if_hopeless()
            if time.monotonic() >= due:
                self._commit()
                grid = self._grid()
                self._maintain(grid.interval_s)
                process_memory.give_back()
                due = time.monotonic() + grid.wait_s(time.time(), 0.0)
            time.sleep(min(_NAP_S, max(0.0, due - time.monotonic())))

    def _grid(self) -> LookGrid:
        """When commits are due, by the configuration that is in force."""
        interval_s = min(self.config.intervals.waits, _LONGEST_COMMIT_S)
        return LookGrid(interval_s, min(_COMMIT_LATER_S, interval_s / 4))

    def _give_up_if_hopeless(self) -> None:
        """Raise what keeps every server from being watched, if trying again cannot help.

        A watch that was connected goes on: its service file may be replaced just now, and its own
        earlier session may hold the lock for a while. So does an agent whose configuration was read
        again.
        """
        if self._was_reloaded:
            return
        in_vain = [
            watch.failure
            for watch in self._watches.values()
            if not watch.was_connected
            and (
                isinstance(watch.failure, UsageError)
                or (
                    isinstance(watch.failure, AgentLocked)
                    and time.monotonic() - watch.began > _LOCKED_S
                )
            )
        ]
        if in_vain and len(in_vain) == len(self._watches):
            raise in_vain[0]

    # Servers

    def _adapt(self, config: AgentConfig) -> None:
        """Watch the servers of a configuration, and no others."""
        same_looks = (
            config.intervals == self.config.intervals
            and config.most_statements == self.config.most_statements
        )
        changed = [
            name
            for name, watch in self._watches.items()
            if not same_looks or config.servers.get(name) != watch.server
        ]
        earlier = {name: self._watches[name] for name in changed}
        self._stop(changed)
        self.config = config
        if changed:
            # a watch that begins again goes on from the last commit, also if that is only held
            self._commit()
        for name, server in config.servers.items():
            if name not in self._watches:
                self._begin(name, server, earlier.get(name))

    def _begin(self, name: str, server: InventoryServer, earlier: ServerWatch | None) -> None:
        looks = ServerLooks(
            name,
            self.uuid,
            lambda part: self.spool.reading(name, part),
            self.config.most_statements,
        )
        alone = len(self.config.servers) == 1
        watch = ServerWatch(
            looks,
            server,
            self.config.intervals,
            self._collect,
            self.log,
            alone=alone,
            earlier=earlier,
            sessions=self._sessions,
        )
        self._watches[name] = watch
        watch.start()

    def _sessions(self) -> list[tuple[str, SessionIdentity | None]]:
        watches = [(name, self._watches.get(name)) for name in self.config.servers]
        return [(name, watch.session) for name, watch in watches if watch is not None]

    def _stop(self, names: list[str]) -> None:
        for name in names:
            self._watches[name].stop.set()
        deadline = time.monotonic() + 2 * STATEMENT_TIMEOUT_S
        for name in names:
            self._watches.pop(name).join(max(0.0, deadline - time.monotonic()))

    def _read_again(self) -> None:
        if self._reload is None:
            self.log.write("warning", "reload", why="there is no configuration file to read again")
            return
        try:
            config = self._reload()
        except PgtareError as ex:
            self.log.write("error", "reload", why=f"{ex}; the old configuration stays in force")
            return
        for name in ("spool", "metrics", "store"):
            if getattr(config, name) != getattr(self.config, name):
                why = f"a change of [{name}] takes a restart of the agent"
                self.log.write("warning", "reload", why=why)
        self._was_reloaded = True
        self.log.write("info", "reload", servers=len(config.servers))
        self._adapt(config)

    # Commits

    def _collect(self, server: str, batch: Batch) -> None:
        """Take the rows of one look, with the reading that they end at."""
        rows = {name: pa.concat_tables(parts) for name, parts in batch.rows.items()}
        readings = {(server, part): reading for part, reading in batch.readings.items()}
        now_s = time.monotonic()
        with self._lock:
            self._collected.add(rows, readings, now_s)
            self._collected.expire(now_s - _COLLECTED_S)

    def _commit(self, ended: Sequence[str] = ()) -> None:
        """Publish the rows since the last commit. ended: servers whose last rows these are."""
        self._own_figures()
        with self._lock:
            collected, self._collected = self._collected, Held()
        began = time.monotonic()
        parts: dict[str, list[pa.Table]] = {}
        for name, table in collected.rows():
            parts.setdefault(name, []).append(table)
        rows = {name: pa.concat_tables(tables) for name, tables in parts.items()}
        readings = dict(collected.readings)
        if self._follower is not None:
            readings |= self._follower.grow(rows, self.config.intervals.waits)
        self.spool.commit(rows, readings)
        if self._follower is not None:
            up = dict.fromkeys(ended, False)
            up |= {name: watch.connected for name, watch in self._watches.items()}
            self._follower.committed(up, written=not self.spool.trouble)
        self._commit_s = time.monotonic() - began
        if self.spool.trouble:
            self.log.once("error", "spool", "", self.spool.trouble)
        else:
            self.log.forget("spool", "")
        for note in self.spool.take_notes():
            self.log.once("warning", "upkeep", "", note)

    def _maintain(self, interval_s: float) -> None:
        """Do all upkeep of the spool that is due, for at most a small part of the interval."""
        until = time.monotonic() + _UPKEEP_SHARE * interval_s
        while self.spool.maintain(datetime.now(UTC)):
            if time.monotonic() > until or self._stopping:
                return

    def _own_figures(self) -> None:
        """What the agent itself costs, as rows like all others."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s, now = usage.ru_utime + usage.ru_stime, time.monotonic()
        covered = 0 if self._committed_at is None else round(1e9 * (now - self._committed_at))
        with self._lock:
            count = sum(len(table) for _, table in self._collected.rows())
        connected = sum(watch.connected for watch in self._watches.values())
        figures = [
            ("cpu", cpu_s - self._cpu_s, "s"),
            ("memory", float(psutil.Process().memory_info().rss), "bytes"),
            ("commit", self._commit_s, "s"),
            ("rows", float(count), "rows"),
            ("servers", float(len(self._watches)), "servers"),
            ("connected", float(connected), "servers"),
        ]
        self._cpu_s, self._committed_at = cpu_s, now
        batch = Batch()
        ended = time.time_ns() // 1000
        batch.figures(RowInterval(_ALL_SERVERS, self.uuid, 0, ended, covered, EXACT), figures)
        self._collect(_ALL_SERVERS, batch)

    # Signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C stop after a last commit, SIGHUP reads the configuration again."""

        def stop(signum: int, frame: FrameType | None) -> None:
            self._stopping = True

        def reload(signum: int, frame: FrameType | None) -> None:
            self._reloading = True

        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        # one that came while the command started waits until now
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
