"""The driver's two loops: bursts, in which its sessions never wait, and one with pauses."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.errors import MeasurementError
from pgtare.estimate.trial.bursts import BURST, PACED, RUN
from pgtare.estimate.trial.design import LEAST_BATCHES, LEAST_BLOCKS, Design
from pgtare.kit import numbers
from pgtare.weighing.outside.transactions import Source
from pgtare.weighing.outside.wire import PATIENCE_S, Answers, Wire

#: With shorter transactions, a block of bursts takes the server no longer than this, in s.
_BLOCK_S = 0.25
#: And its answers are no larger than this: the client sleeps, and they have to wait in the socket.
_BLOCK_BYTES = 48_000
#: With many arms, one transaction of each may be more than that. A local socket has room for 158 kB
#: in all, and for 277 answers however small they are; these are the most that a block has.
_SOCKET_BYTES, _SOCKET_SENDS = 150_000, 240
#: Transactions that tell how long one takes.
_PROBES = 3
#: The pause before each transaction of the other loop, in s, and of how many we know how long the
#: server saw them.
PAUSE_S, _PAUSES = 200e-6, 10_000
#: After a burst, its server rests for so many times as long, and at least so many seconds.
REST, LEAST_REST_S = 3.0, 5e-3
#: Transactions a second that are sent at most, all arms together.
MOST_TPS = 12_000
#: Sessions last so many times as long as it takes to connect, or longer.
_CONNECTED = 9.0
#: What is slept after a run that others follow, as a multiple of the quickest so far.
_SURELY = 1.5
#: The longest time that a clock which runs steadily takes for a run, in µs.
_LONGEST_US = 2**31 - 1
#: Of a run.
_STAMPS = 3
#: No transaction is waited for longer than this, in s.
_LONGEST_S = 3600.0
#: Blocks of each loop that a session is to hold at least, if servers are compared.
BLOCKS_OF_A_SESSION = 4
#: Plans of prepared statements and of functions stay as they were made in another arm.
_PLAN_ANEW = b"DISCARD PLANS"
_MISSING = "answers are missing"
_TOO_LARGE = (
    "a transaction returns {:,.0f} kB, more than a socket holds while the client sleeps ({:,.0f} "
    "kB with so many arms), and the server would wait for it: weigh one that returns less "
    "(count(*), LIMIT, EXPLAIN ANALYZE), or fewer arms"
)


def _too_slow(transaction_s: float, block_s: float, least: int) -> str:
    """block_s: of one transaction in each run; least: blocks of each kind for an answer."""
    least_s = 2 * (1 + REST) * block_s * least
    return (
        f"a transaction takes {numbers.seconds(transaction_s)}, and the fewest blocks for an "
        f"answer, {least} of each kind, take about {numbers.seconds(least_s)}; raise "
        "--duration, or weigh a quicker statement"
    )


@dataclass(frozen=True)
class RunBlock:
    """What one block gave. rows: of dtype RUN; busy_s: of the server; error: if it failed.

    failed_arm: in whose run the server reported the first error.
    """

    rows: npt.NDArray[Any]
    busy_s: float
    rested_s: float  # since the server was done
    error: str = ""
    sqlstate: str = ""
    failed_arm: int | None = None
    #: Of bursts: how long a transaction took, in s, by the names of the servers.
    each_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Lengths:
    """Transactions of a run that count, from shortest to longest, and so many before them.

    paced, paced_dropped: of a run with pauses, the same. The session stays warm, so runs are short.
    """

    shortest: int = 4
    longest: int = 12
    dropped: int = 3
    paced: int = 4
    paced_dropped: int = 2

    @classmethod
    def of(cls, transaction_s: float, runs: int, size: int, *, apart: bool = False) -> Lengths:
        """For transactions of this length, in blocks of so many runs: slow ones are in fewer.

        size: bytes that a transaction returns. apart: each run is in a session of its own, which
        cools while the others run, and is sent apart from them.
        """
        usual = cls(12, 24, 8, 6, 2) if apart else cls()
        room = int(_BLOCK_S / max(transaction_s * runs, 1e-9))
        room = min(room, int(_BLOCK_BYTES / max(size * (1 if apart else runs), 1)))
        if not apart:
            room = min(room, _SOCKET_SENDS // runs - _STAMPS)
        if room >= usual.longest + usual.dropped:
            return usual
        dropped = 0 if room < 3 else 1 if room < 9 else usual.dropped
        longest = max(1, room - dropped)
        paced_dropped = min(dropped, usual.paced_dropped)
        return cls(
            shortest=max(1, longest // 3),
            longest=longest,
            dropped=dropped,
            paced=max(1, min(usual.paced, room - paced_dropped)),
            paced_dropped=paced_dropped,
        )


@dataclass
class Seat:
    """A session in which arms run, and what is known of it. name: of its server, if several are."""

    wire: Wire
    name: str = ""
    in_force: dict[str, str] = field(default_factory=dict)
    queued: list[tuple[str, str]] = field(default_factory=list)
    origin_us: int | None = None  # the first stamp, by its server's clock
    quickest_s: float = 0.0  # burst a transaction

    def renewed(self, wire: Wire) -> Seat:
        """The same in a new session."""
        wire.patience_s = self.wire.patience_s
        return replace(self, wire=wire, in_force={}, queued=[])

    def switch(self, settings: Mapping[str, str], *, plan_anew: bool = False) -> None:
        """Queue what is not in force yet; plan_anew: and have each statement planned anew."""
        for name, value in settings.items():
            if self.in_force.get(name) != value:
                self.wire.setting(name, value)
                self.in_force[name] = value
                self.queued.append((name, value))
        if plan_anew:
            self.wire.simple(_PLAN_ANEW)


@dataclass
class Loops:
    """Makes blocks of runs, one of each arm in random order.

    seats: by arm; arms that differ in settings share one. settings: those of each arm, those of one
    seat all of the same names. anew: makes new sessions in the place of these, every anew_s seconds
    or more; epoch: how often that was; connecting_s: what it took, and to make the first ones.
    plan_anew: the arms' settings decide about plans, so each run of any arm makes its own.
    """

    seats: Sequence[Seat]
    source: Source
    design: Design
    settings: Sequence[Mapping[str, str]]
    rng: random.Random
    lengths: Lengths = Lengths()
    anew: Callable[[Sequence[Seat]], Sequence[Seat]] | None = None
    anew_s: float = 0.0
    epoch: int = 0
    connecting_s: float = 0.0
    plan_anew: bool = False
    #: The arm of all runs now, if arms are switched for the whole server and not by us.
    window: int | None = None
    #: What two blocks, one of each loop, take with their rests, by the first transactions.
    pair_s: float = 0.0
    #: By arm: the quickest transaction with pauses, with its stamps.
    paced_s: dict[int, float] = field(default_factory=dict)
    #: How long the server waited for us before each of the latest transactions with pauses.
    pauses_us: deque[int] = field(default_factory=lambda: deque(maxlen=_PAUSES))
    _written: dict[tuple[str, str], str] = field(default_factory=dict)
    _number: int = 0
    _renewed_s: float = 0.0

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was left open, or failed."""
        return any(seat.wire.in_transaction for seat in self.seats)

    @property
    def connect_s(self) -> float:
        """What it takes to make all sessions anew."""
        return self.connecting_s / (self.epoch + 1)

    @property
    def session_s(self) -> float:
        """How long sessions last: a tenth of the time at most is for connecting."""
        return max(self.anew_s, _CONNECTED * self.connect_s)

    def renew(self, seconds: float) -> list[RunBlock]:
        """New sessions if it is time for them, and a block of each loop that counts for nothing.

        For the server it is work to connect: that comes first, as a block without runs.
        """
        if self.anew is None or seconds < self._renewed_s + self.session_s:
            return []
        began = time.monotonic()
        self.seats = self.anew(self.seats)
        took_s = time.monotonic() - began
        self.epoch += 1
        self.connecting_s += took_s
        self._renewed_s = seconds + took_s
        blocks = [self.burst(), self.paced()]
        if any(block.error for block in blocks):
            self.recover()
        return [RunBlock(np.empty(0, RUN), took_s, 0.0), *blocks]

    def fit(self, at_most_s: float = math.inf) -> RunBlock:
        """Find out how long a transaction of each arm takes, and how long runs are to be for that.

        It fails if two blocks, one of each loop, would take longer than at_most_s.
        """
        began, size = time.monotonic(), 0
        took_s: dict[int, float] = {}
        kinds = self._kinds()
        runs, apart = len(self.design.block), len(self._apart()) > 1
        most = min(_BLOCK_BYTES, _SOCKET_BYTES // (1 if apart else runs))
        for arm in dict.fromkeys(kinds):
            seat = self.seats[arm]
            seat.wire.patience_s = max(PATIENCE_S, min(at_most_s, _LONGEST_S))
            seat.switch(self.settings[arm], plan_anew=self.plan_anew)
            largest, each_s = 0, []
            seat.wire.measure = True
            for number in range(_PROBES):
                seat.wire.stamp()
                seat.wire.transaction(self.source.next())
                seat.wire.stamp()
                answers = self._exchange(seat)
                if answers.error:
                    return self._failed(answers, seat)
                largest = max(largest, answers.size)
                one_s = (answers.stamps_us[1] - answers.stamps_us[0]) / 1e6
                each_s.append(one_s)
                # the first one may have been slow because nothing was in the cache
                again_s = time.monotonic() - began + one_s
                if one_s > _BLOCK_S and (number or again_s > at_most_s):
                    break
            took_s[arm] = statistics.median_low(each_s)
            seat.wire.measure = False
            if largest > most:
                wrong = _TOO_LARGE.format(largest / 1000, most / 1000)
                return self._failed(Answers(error=wrong), seat)
            if wrong := self._asked(seat, arm):
                return self._failed(Answers(error=wrong), seat)
            size = max(size, largest)
            block_s = sum(took_s.get(kinds[each], 0.0) for each in self.design.block)
            if 2 * (1 + REST) * block_s > at_most_s:
                least = LEAST_BATCHES * BLOCKS_OF_A_SESSION if self.anew else LEAST_BLOCKS
                return self._failed(Answers(error=_too_slow(took_s[arm], block_s, least)), seat)
        lengths = self.lengths = Lengths.of(block_s / runs, runs, size, apart=apart)
        burst = lengths.dropped + lengths.longest
        self.pair_s = (1 + REST) * block_s * (burst + lengths.paced_dropped + lengths.paced)
        for seat in self.seats:
            seat.wire.patience_s = PATIENCE_S + self.pair_s
        return RunBlock(np.empty(0, RUN), max(took_s.values()), 0.0)

    def _kinds(self) -> list[int]:
        """By arm: the first arm of the same seat and settings."""
        each = [
            (id(seat), tuple(sorted(settings.items())))
            for seat, settings in zip(self.seats, self.settings, strict=True)
        ]
        return [each.index(kind) for kind in each]

    def burst(self) -> RunBlock:
        """A block of bursts. What one session runs of it is sent at once."""
        lengths = self.lengths
        length = self.rng.randint(lengths.shortest, lengths.longest)
        order = self._order()
        began = time.monotonic()
        table, busy_s, each_s = [], 0.0, {}
        groups = [
            list(arms) for _, arms in itertools.groupby(order, lambda arm: id(self.seats[arm]))
        ]
        for arms in groups:
            seat, count = self.seats[arms[0]], len(arms) * (length + lengths.dropped)
            answers = self._burst_of(arms, length, alone=len(groups) == 1)
            if answers.error:
                number = min(answers.stamps_before // _STAMPS, len(arms) - 1)
                return self._failed(answers, seat, arms[number], time.monotonic() - began)
            stamps = np.array(answers.stamps_us, dtype=np.int64).reshape(-1, 3)
            took_s = float(stamps[-1, -1] - stamps[0, 0]) / 1e6
            if took_s > 0:
                seat.quickest_s = min(seat.quickest_s or took_s / count, took_s / count)
                busy_s += took_s
                each_s[seat.name] = took_s / count
            table.append(self._since_origin(seat, stamps))
        rested_s = time.monotonic() - began - busy_s
        rows = self._rows(np.concatenate(table), order, length, BURST)
        return RunBlock(rows, busy_s, rested_s, each_s=each_s)

    def _burst_of(self, arms: Sequence[int], length: int, *, alone: bool) -> Answers:
        """Bursts of these arms, which share a seat. alone: nothing follows before the rest."""
        seat = self.seats[arms[0]]
        for arm in arms:
            seat.switch(self.settings[arm], plan_anew=self.plan_anew)
            for _ in range(self.lengths.dropped):
                seat.wire.transaction(self.source.next())
            seat.wire.stamp()
            for _ in range(length):
                seat.wire.transaction(self.source.next())
            seat.wire.stamp()
            seat.wire.stamp()
        self._ask(seat, arms[-1])
        # The client sleeps until the server has surely done: one that is awake, or is woken by each
        # answer, doubles what a transaction takes. The rest is taken then, too.
        surely_s = seat.quickest_s * len(arms) * (length + self.lengths.dropped)
        sleep_s = max(LEAST_REST_S, (1 + REST) * surely_s) if alone else _SURELY * surely_s
        answers = self._exchange(seat, sleep_s)
        if not answers.error:
            answers.error = self._changed(arms[-1], answers.values)
        if not answers.error and len(answers.stamps_us) != 3 * len(arms):
            answers.error = _MISSING
        return answers

    def paced(self) -> RunBlock:
        """A block of transactions, before each of which the server waits for its client."""
        order, found, busy_s = self._order(), [], 0.0
        began = time.monotonic()
        arms, last_of = [], {}
        for arm in order:
            seat, last_us = self.seats[arm], 0
            last_of[id(seat)] = arm
            seat.switch(self.settings[arm], plan_anew=self.plan_anew)
            for number in range(self.lengths.paced_dropped + self.lengths.paced):
                seat.wire.stamp()
                seat.wire.transaction(self.source.next())
                seat.wire.stamp()
                seat.wire.stamp()
                answers = self._exchange(seat, self.paced_s.get(arm, 0.0) + PAUSE_S)
                if answers.error:
                    return self._failed(answers, seat, arm, time.monotonic() - began)
                if len(answers.stamps_us) != 3:
                    return self._failed(Answers(error=_MISSING), seat)
                stamps = answers.stamps_us
                if number:
                    self.pauses_us.append(stamps[0] - last_us)
                last_us = stamps[-1]
                took_s = (stamps[-1] - stamps[0]) / 1e6
                if took_s > 0:
                    self.paced_s[arm] = min(self.paced_s.get(arm, took_s), took_s)
                    busy_s += took_s
                if number >= self.lengths.paced_dropped:
                    found.append(self._since_origin(seat, np.array([stamps], dtype=np.int64)))
                    arms.append(arm)
        for arm in last_of.values():
            if wrong := self._asked(self.seats[arm], arm):
                return self._failed(Answers(error=wrong), self.seats[arm])
        rows = self._rows(np.concatenate(found), arms, 1, PACED)
        rested_s = time.monotonic() - began - busy_s
        return RunBlock(rows, busy_s, rested_s)

    def _apart(self) -> list[tuple[int, Seat]]:
        """Each seat once, with its first arm."""
        first: dict[int, tuple[int, Seat]] = {}
        for arm, seat in enumerate(self.seats):
            first.setdefault(id(seat), (arm, seat))
        return list(first.values())

    def _exchange(self, seat: Seat, sleep_s: float = 0.0) -> Answers:
        """Send what is queued, and learn how the server writes the values that were set."""
        try:
            answers = seat.wire.exchange(sleep_s)
        except MeasurementError as ex:
            raise MeasurementError(f"{seat.name}: {ex}" if seat.name else str(ex)) from ex
        for (name, value), written in zip(seat.queued, answers.values, strict=False):
            self._written[name, value] = written
        seat.queued.clear()
        return answers

    def _ask(self, seat: Seat, arm: int) -> None:
        for name in self.settings[arm]:
            seat.wire.value(name)

    def _asked(self, seat: Seat, arm: int) -> str:
        """As `_changed`, by a question of its own."""
        self._ask(seat, arm)
        answers = self._exchange(seat)
        return answers.error or self._changed(arm, answers.values)

    def _changed(self, arm: int, values: Sequence[str]) -> str:
        """What is wrong if settings are not at a block's end as they were set, else nothing.

        values: as the server writes them, at last of all that the arm sets.
        """
        names = list(self.settings[arm])
        last = dict(zip(names, values[len(values) - len(names) :], strict=False))
        for name, found in last.items():
            wanted = self._written.get((name, self.settings[arm][name]))
            if wanted is not None and found != wanted:
                return f"{name} is {found} instead of {wanted} at its end: the script changes it"
        return ""

    def is_on(self, name: str) -> bool:
        """Whether a setting is on in any session."""
        found = []
        for _, seat in self._apart():
            seat.wire.value(name)
            found += self._exchange(seat).values
        return "on" in found

    def recover(self) -> None:
        """Leave a failed transaction, and forget which settings are in force."""
        for _, seat in self._apart():
            if seat.wire.in_transaction:
                seat.wire.simple(b"ROLLBACK")
                seat.wire.exchange()
            seat.in_force.clear()

    def _order(self) -> list[int]:
        if self.window is not None:
            return [self.window] * len(self.design.block)
        order = list(self.design.block)
        self.rng.shuffle(order)
        return order

    def _failed(
        self, answers: Answers, at: Seat, arm: int | None = None, took_s: float = 0.0
    ) -> RunBlock:
        """A block without runs. took_s: for which the server may have been at work."""
        for seat in self.seats:
            seat.in_force.clear()
            seat.queued.clear()
        error = f"{at.name}: {answers.error}" if at.name else answers.error
        whose = arm if answers.sqlstate else None
        return RunBlock(np.empty(0, RUN), took_s, 0.0, error, answers.sqlstate, whose)

    @staticmethod
    def _since_origin(seat: Seat, stamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Stamps (R, 3) since the first one of the seat's server."""
        if seat.origin_us is None:
            seat.origin_us = int(stamps[0, 0])
        return np.asarray(stamps - seat.origin_us)

    def _rows(
        self, stamps: npt.NDArray[np.int64], arms: Sequence[int], length: int, loop: int
    ) -> npt.NDArray[Any]:
        """One row a run; none if a server's clock was set in the block."""
        self._number += 1
        run_us, stamp_us = np.diff(stamps, axis=1).T
        steady = (run_us > 0) & (stamp_us > 0) & (run_us < _LONGEST_US) & (stamp_us < _LONGEST_US)
        if not steady.all():
            return np.empty(0, RUN)
        rows = np.empty(len(stamps), RUN)
        rows["start_us"] = stamps[:, 0]
        rows["run_us"], rows["stamp_us"] = run_us, stamp_us
        rows["block"], rows["position"] = self._number, np.arange(len(rows)) % 256
        rows["arm"], rows["transactions"], rows["loop"] = arms, length, loop
        rows["epoch"] = self.epoch
        return rows
