"""The driver's two loops: bursts, in which its session never waits, and one with pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.estimate.trial.bursts import BURST, PACED, RUN
from pgtare.estimate.trial.design import Design
from pgtare.weighing.outside.transactions import Source
from pgtare.weighing.outside.wire import Answers, Wire

#: Runs of a driver's session, which stays warm: this many transactions count, and so many before
#: them do not.
SHORTEST, LONGEST, DROPPED = 4, 12, 3
#: Transactions of a run with pauses: those that count, and those before them.
PACED_KEPT, PACED_DROPPED = 4, 2
#: The pause before each of these, in s.
PAUSE_S = 200e-6
#: After a burst, its server rests for so many times as long, and at least so many seconds.
REST, LEAST_REST_S = 3.0, 5e-3
#: The longest time that a clock which runs steadily takes for a run, in µs.
_LONGEST_US = 2**31 - 1


@dataclass(frozen=True)
class Block:
    """What one block gave. rows: of dtype RUN; busy_s: of the server; error: if it failed."""

    rows: npt.NDArray[Any]
    busy_s: float
    rested_s: float  # since the server was done
    transactions: int
    error: str = ""
    sqlstate: str = ""


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
    _in_force: dict[str, str] = field(default_factory=dict)
    _origin_us: int | None = None
    _number: int = 0
    _quickest_s: float = 0.0  # burst a transaction
    _paced_s: float = 0.0  # quickest transaction with its stamps

    def burst(self) -> Block:
        """A block of bursts, sent at once."""
        length = self.rng.randint(SHORTEST, LONGEST)
        order = self._order()
        for arm in order:
            self._switch(arm)
            for _ in range(DROPPED):
                self.wire.transaction(self.source.next())
            self.wire.stamp()
            for _ in range(length):
                self.wire.transaction(self.source.next())
            self.wire.stamp()
            self.wire.stamp()
        count = len(order) * (length + DROPPED)
        began = time.monotonic()
        # The client sleeps until the server has surely done: one that is awake, or is woken by each
        # answer, doubles what a transaction takes. The rest is taken then, too.
        answers = self.wire.exchange(max(LEAST_REST_S, (1 + REST) * self._quickest_s * count))
        if answers.error:
            return self._failed(answers)
        stamps = np.array(answers.stamps_us, dtype=np.int64).reshape(-1, 3)
        busy_s = float(stamps[-1, -1] - stamps[0, 0]) / 1e6
        if busy_s > 0:
            known = self._quickest_s or busy_s / count
            self._quickest_s = min(known, busy_s / count)
        rested_s = time.monotonic() - began - busy_s
        return Block(self._rows(stamps, order, length, BURST), max(busy_s, 0.0), rested_s, count)

    def paced(self) -> Block:
        """A block of transactions, before each of which the server waits for its client."""
        order, found, busy_s = self._order(), [], 0.0
        began = time.monotonic()
        arms = []
        for arm in order:
            self._switch(arm)
            for number in range(PACED_DROPPED + PACED_KEPT):
                self.wire.stamp()
                self.wire.transaction(self.source.next())
                self.wire.stamp()
                self.wire.stamp()
                answers = self.wire.exchange(self._paced_s + PAUSE_S)
                if answers.error:
                    return self._failed(answers)
                stamps = answers.stamps_us
                took_s = (stamps[-1] - stamps[0]) / 1e6
                if took_s > 0:
                    self._paced_s = min(self._paced_s or took_s, took_s)
                    busy_s += took_s
                if number >= PACED_DROPPED:
                    found.append(stamps)
                    arms.append(arm)
        table = np.array(found, dtype=np.int64).reshape(-1, 3)
        rows = self._rows(table, arms, 1, PACED)
        rested_s = time.monotonic() - began - busy_s
        return Block(rows, busy_s, rested_s, len(order) * (PACED_DROPPED + PACED_KEPT))

    def recover(self) -> None:
        """Leave a failed transaction, and forget which settings are in force."""
        if self.wire.in_transaction:
            self.wire.simple(b"ROLLBACK")
            self.wire.exchange()
        self._in_force.clear()

    def put_back(self, values: Mapping[str, str]) -> None:
        """The session's own values again."""
        for name, value in values.items():
            self.wire.setting(name, value)

    def _order(self) -> list[int]:
        order = list(self.design.block)
        self.rng.shuffle(order)
        return order

    def _switch(self, arm: int) -> None:
        for name, value in self.settings[arm].items():
            if self._in_force.get(name) != value:
                self.wire.setting(name, value)
                self._in_force[name] = value

    def _failed(self, answers: Answers) -> Block:
        self._in_force.clear()
        return Block(np.empty(0, RUN), 0.0, 0.0, 0, answers.error, answers.sqlstate)

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


def turns(seed: int) -> Iterator[int]:
    """Which loop is next: one of each in each pair, in random order."""
    rng = random.Random(seed)
    while True:
        pair = [BURST, PACED]
        rng.shuffle(pair)
        yield from pair
