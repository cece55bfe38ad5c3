"""The driver's two loops: bursts, in which its session never waits, and one with pauses."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.estimate.trial.bursts import BURST, PACED, RUN
from pgtare.estimate.trial.design import Design
from pgtare.weighing.outside.transactions import Source
from pgtare.weighing.outside.wire import Answers, Wire

#: With shorter transactions, a block of bursts takes the server no longer than this, in s.
_BLOCK_S = 0.25
#: And its answers are no larger than this: the client sleeps, and they have to wait in the socket.
_BLOCK_BYTES = 48_000
#: Transactions that tell how long one takes.
_PROBES = 3
#: The pause before each transaction of the other loop, in s, and of how many we know how long the
#: server saw them.
PAUSE_S, _PAUSES = 200e-6, 10_000
#: After a burst, its server rests for so many times as long, and at least so many seconds.
REST, LEAST_REST_S = 3.0, 5e-3
#: The longest time that a clock which runs steadily takes for a run, in µs.
_LONGEST_US = 2**31 - 1
_MISSING = "answers are missing"
_TOO_LARGE = (
    "a transaction returns {:,.0f} kB, more than a socket holds while the client sleeps, and the "
    "server would wait for it: weigh one that returns less (count(*), LIMIT, EXPLAIN ANALYZE)"
)


@dataclass(frozen=True)
class RunBlock:
    """What one block gave. rows: of dtype RUN; busy_s: of the server; error: if it failed."""

    rows: npt.NDArray[Any]
    busy_s: float
    rested_s: float  # since the server was done
    transactions: int
    error: str = ""
    sqlstate: str = ""


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
    def of(cls, transaction_s: float, runs: int, size: int) -> Lengths:
        """For transactions of this length, in blocks of so many runs: slow ones are in fewer.

        size: bytes that a transaction returns.
        """
        usual = cls()
        room = int(_BLOCK_S / max(transaction_s * runs, 1e-9))
        room = min(room, int(_BLOCK_BYTES / max(size * runs, 1)))
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
class Loops:
    """Makes blocks of runs, one of each arm in random order, in one session.

    settings: those of each arm, all of them of the same names.
    """

    wire: Wire
    source: Source
    design: Design
    settings: Sequence[Mapping[str, str]]
    rng: random.Random
    lengths: Lengths = Lengths()
    #: How long the server waited for us before each of the latest transactions with pauses.
    pauses_us: deque[int] = field(default_factory=lambda: deque(maxlen=_PAUSES))
    _in_force: dict[str, str] = field(default_factory=dict)
    _queued: list[tuple[str, str]] = field(default_factory=list)
    _written: dict[tuple[str, str], str] = field(default_factory=dict)
    _origin_us: int | None = None
    _number: int = 0
    _quickest_s: float = 0.0  # burst a transaction
    _paced_s: float = 0.0  # quickest transaction with its stamps

    def fit(self) -> RunBlock:
        """Find out how long a transaction takes, and how long runs are to be for that."""
        self._switch(0)
        answers = Answers()
        self.wire.measure = True
        for _ in range(_PROBES):
            self.wire.stamp()
            self.wire.transaction(self.source.next())
            self.wire.stamp()
            answers = self.wire.exchange()
            self._queued.clear()
            if answers.error:
                return self._failed(answers)
        self.wire.measure = False
        if answers.size > _BLOCK_BYTES:
            return self._failed(Answers(error=_TOO_LARGE.format(answers.size / 1000)))
        took_s = (answers.stamps_us[1] - answers.stamps_us[0]) / 1e6
        self.lengths = Lengths.of(took_s, len(self.design.block), answers.size)
        return RunBlock(np.empty(0, RUN), took_s, 0.0, 1)

    def burst(self) -> RunBlock:
        """A block of bursts, sent at once."""
        lengths = self.lengths
        length = self.rng.randint(lengths.shortest, lengths.longest)
        order = self._order()
        for arm in order:
            self._switch(arm)
            for _ in range(lengths.dropped):
                self.wire.transaction(self.source.next())
            self.wire.stamp()
            for _ in range(length):
                self.wire.transaction(self.source.next())
            self.wire.stamp()
            self.wire.stamp()
        count = len(order) * (length + lengths.dropped)
        self._ask(order[-1])
        began = time.monotonic()
        # The client sleeps until the server has surely done: one that is awake, or is woken by each
        # answer, doubles what a transaction takes. The rest is taken then, too.
        answers = self.wire.exchange(max(LEAST_REST_S, (1 + REST) * self._quickest_s * count))
        if not answers.error:
            answers.error = self._changed(order[-1], answers.values)
        if not answers.error and len(answers.stamps_us) != 3 * len(order):
            answers.error = _MISSING
        if answers.error:
            return self._failed(answers)
        stamps = np.array(answers.stamps_us, dtype=np.int64).reshape(-1, 3)
        busy_s = float(stamps[-1, -1] - stamps[0, 0]) / 1e6
        if busy_s > 0:
            known = self._quickest_s or busy_s / count
            self._quickest_s = min(known, busy_s / count)
        rested_s = time.monotonic() - began - busy_s
        return RunBlock(self._rows(stamps, order, length, BURST), max(busy_s, 0.0), rested_s, count)

    def paced(self) -> RunBlock:
        """A block of transactions, before each of which the server waits for its client."""
        order, found, busy_s = self._order(), [], 0.0
        began = time.monotonic()
        arms, last_us = [], 0
        for arm in order:
            self._switch(arm)
            for number in range(self.lengths.paced_dropped + self.lengths.paced):
                self.wire.stamp()
                self.wire.transaction(self.source.next())
                self.wire.stamp()
                self.wire.stamp()
                answers = self.wire.exchange(self._paced_s + PAUSE_S)
                self._queued.clear()
                if answers.error:
                    return self._failed(answers)
                if len(answers.stamps_us) != 3:
                    return self._failed(Answers(error=_MISSING))
                stamps = answers.stamps_us
                if number:
                    self.pauses_us.append(stamps[0] - last_us)
                last_us = stamps[-1]
                took_s = (stamps[-1] - stamps[0]) / 1e6
                if took_s > 0:
                    self._paced_s = min(self._paced_s or took_s, took_s)
                    busy_s += took_s
                if number >= self.lengths.paced_dropped:
                    found.append(stamps)
                    arms.append(arm)
        table = np.array(found, dtype=np.int64).reshape(-1, 3)
        rows = self._rows(table, arms, 1, PACED)
        rested_s = time.monotonic() - began - busy_s
        count = len(order) * (self.lengths.paced_dropped + self.lengths.paced)
        return RunBlock(rows, busy_s, rested_s, count)

    def _ask(self, arm: int) -> None:
        for name in self.settings[arm]:
            self.wire.value(name)

    def _changed(self, arm: int, values: Sequence[str]) -> str:
        """What is wrong if settings are not at a block's end as they were set, else nothing.

        values: as the server writes them, of all that were set in the block, and at last of all.
        """
        names = list(self.settings[arm])
        last = dict(zip(names, values[len(values) - len(names) :], strict=False))
        for (name, value), written in zip(self._queued, values, strict=False):
            self._written[name, value] = written
        self._queued.clear()
        for name, found in last.items():
            wanted = self._written.get((name, self.settings[arm][name]))
            if wanted is not None and found != wanted:
                return f"{name} is {found} instead of {wanted} at its end: the script changes it"
        return ""

    def recover(self) -> None:
        """Leave a failed transaction, and forget which settings are in force."""
        if self.wire.in_transaction:
            self.wire.simple(b"ROLLBACK")
            self.wire.exchange()
        self._in_force.clear()

    def _order(self) -> list[int]:
        order = list(self.design.block)
        self.rng.shuffle(order)
        return order

    def _switch(self, arm: int) -> None:
        for name, value in self.settings[arm].items():
            if self._in_force.get(name) != value:
                self.wire.setting(name, value)
                self._in_force[name] = value
                self._queued.append((name, value))

    def _failed(self, answers: Answers) -> RunBlock:
        self._in_force.clear()
        self._queued.clear()
        return RunBlock(np.empty(0, RUN), 0.0, 0.0, 0, answers.error, answers.sqlstate)

    def _rows(
        self, stamps: npt.NDArray[np.int64], arms: Sequence[int], length: int, loop: int
    ) -> npt.NDArray[Any]:
        """One row a run; none if the server's clock was set in the block."""
        self._number += 1
        run_us, stamp_us = np.diff(stamps, axis=1).T
        steady = (run_us > 0) & (stamp_us > 0) & (run_us < _LONGEST_US) & (stamp_us < _LONGEST_US)
        if not steady.all():
            return np.empty(0, RUN)
        if self._origin_us is None:
            self._origin_us = int(stamps[0, 0])
        rows = np.empty(len(stamps), RUN)
        rows["start_us"] = stamps[:, 0] - self._origin_us
        rows["run_us"], rows["stamp_us"] = run_us, stamp_us
        rows["block"], rows["position"] = self._number, np.arange(len(rows)) % 256
        rows["arm"], rows["transactions"], rows["loop"] = arms, length, loop
        return rows
