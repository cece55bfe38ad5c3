"""The windows of a weighing: which is now, what is on in it, and what the server took in each."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pgtare.estimate.inference import MISSING, Estimate
from pgtare.estimate.trial.design import LEAST_WINDOWS, Design
from pgtare.estimate.trial.windows import difference
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.outside.loops import Loops
from pgtare.weighing.switches import Switch
from pgtare.weighing.weigh import schema
from pgtare.weighing.windows import watcher_time
from pgtare.weighing.windows.guard import SwitchGuard
from pgtare.weighing.windows.watcher_time import WatcherTime

#: After a switch so much is left out, in s: sessions notice it, a watcher starts.
SETTLE_S = 1.0
#: A window is so long at least, in s: each change of a server's configuration wakes every session.
SHORTEST_S = 15.0
#: Sessions of a kind that is there without a watcher, too, may be its own if they take so much more
#: while it is on, in percent of one processor.
_SHARED_PCT = 0.5
#: How often it is looked who is there, in s.
_LOOK_S = 1.0


def window_s(asked_s: float | None, period_s: float | None) -> float:
    """The length of a window: whole periods of the watcher, and no shorter than SHORTEST_S."""
    shortest = SHORTEST_S if asked_s is None else asked_s
    return shortest if period_s is None else period_s * math.ceil(shortest / period_s - 1e-9)


def blocks_in(duration_s: float, arms: int, each_s: float) -> int:
    """Whole blocks of windows in so much time."""
    return int(duration_s // (arms * (each_s + SETTLE_S)))


def least_s(arms: int, each_s: float) -> float:
    """What the fewest blocks for an answer take."""
    return LEAST_WINDOWS * arms * (each_s + SETTLE_S)


@dataclass
class Schedule:
    """Leads a weighing through its windows. Each block has one of each arm, in random order."""

    loops: Loops
    guard: SwitchGuard
    watch: WatcherTime
    design: Design
    switches: Sequence[Switch]
    window_s: float
    blocks: int
    rng: random.Random
    _left: list[tuple[int, int]] = field(default_factory=list)  # (block, arm), the next one last
    _began: float | None = None
    _next_look: float = 0.0

    def __post_init__(self) -> None:
        for block in range(self.blocks):
            order = list(range(len(self.design.arms)))
            self.rng.shuffle(order)
            self._left += [(block, arm) for arm in order]
        self._left.reverse()

    @property
    def seconds(self) -> float:
        """How long it takes, without what switching takes."""
        return self.blocks * len(self.design.arms) * (self.window_s + SETTLE_S)

    def try_out(self, say: Callable[[str], None]) -> None:
        """Switch each on and off once, so that what fails does so before anything is measured."""
        for index, switch in enumerate(self.switches):
            say(f"trying {switch.name}: on and off")
            if switch.is_left_on:
                self.guard.try_on(index)
            states = [False for _ in self.switches]
            self.guard.set([i == index for i in range(len(states))])
            self.guard.set(states)

    def advance(self) -> bool:
        """Called before each block of runs; False if there are no more windows.

        Raises MeasurementError, UsageError if something cannot be switched.
        """
        self.guard.check()
        now = time.monotonic()
        if self._began is not None and now - self._began < self.window_s:
            if now >= self._next_look:
                self.watch.look()
                self._next_look = now + _LOOK_S
            return True
        if self._began is not None:
            self.watch.end(now - self._began, self.guard.leaders)
            self._began = None
        if not self._left:
            return False
        block, arm = self._left.pop()
        self.guard.set([index == arm - 2 for index in range(len(self.switches))])
        time.sleep(SETTLE_S)
        self.loops.window, self.loops.epoch = arm, block
        self.watch.begin(block, arm, self.guard.leaders)
        self._began = time.monotonic()
        self._next_look = self._began + _LOOK_S
        return True

    def proofs(self, ran: Sequence[int]) -> list[Proof | None]:
        """The proof of each arm; None for the base. ran: transactions of each arm."""
        found: list[Proof | None] = [None]
        for arm, transactions in list(enumerate(ran))[1:]:
            if not transactions:
                found.append(Proof(state="missing", evidence="the arm has no transactions"))
            elif arm == 1:
                found.append(Proof(state="active", evidence="nothing was switched on"))
            else:
                found.append(self._proof(arm))
        return found

    def _proof(self, arm: int) -> Proof:
        switch, kinds = self.switches[arm - 2], self._kinds(arm)
        if kinds:
            return Proof(state="active", evidence=f"only then there were sessions {_named(kinds)}")
        if self._processes(arm - 2).lo > 0:
            return Proof(state="active", evidence="its processes took processor time")
        if switch.setting:
            text = f"{switch.setting} = {switch.value} was in force"
        else:
            text = "its commands were carried out" if switch.off else "its process ran"
        return Proof(state="idle", evidence=text, unproven="unseen")

    def described(self) -> schema.WindowsInfo:
        """The windows, and what each watcher took itself."""
        return schema.WindowsInfo(
            window_s=self.window_s,
            watchers=[self._watcher(index) for index in range(len(self.switches))],
        )

    def _kinds(self, arm: int) -> list[watcher_time.Kind]:
        """Kinds of sessions that were there in most of this arm's windows, and in no others."""
        mine: Counter[watcher_time.Kind] = Counter()
        others: set[watcher_time.Kind] = set()
        for window in self._ended:
            if window.arm == arm:
                mine.update(window.seen)
            else:
                others |= window.seen
        most = sum(window.arm == arm for window in self._ended) / 2
        return sorted(kind for kind, n in mine.items() if n > most and kind not in others)

    def _shared(self, arm: int) -> list[watcher_time.Kind]:
        """Kinds of sessions taken for the application's that may well be the watcher's."""
        reference = self.design.reference
        found = watcher_time.stayed(self._ended, self.watch.at_first, arm, reference)
        for kind in watcher_time.kinds_of_application(self._ended, reference) - found:
            shares = [watcher_time.kind_share(window, kind) for window in self._ended]
            if self._difference(arm, shares).lo > _SHARED_PCT:
                found.add(kind)
        return sorted(found)

    def _watcher(self, index: int) -> schema.WatcherInfo:
        switch, arm = self.switches[index], index + 2
        server, by = self._server_share(arm)
        processes = self._processes(index)
        return schema.WatcherInfo(
            name=switch.name,
            kind=switch.kind,
            setting=switch.setting or None,
            value=switch.value or None,
            sessions=[_named([kind]) for kind in self._kinds(arm)],
            shared=[_named([kind]) for kind in self._shared(arm)],
            by=by,
            server_pct=schema.interval(server),
            processes_pct=schema.interval(processes) if switch.kind == "process" else None,
        )

    @property
    def _ended(self) -> list[watcher_time.WindowTime]:
        return [window for window in self.watch.windows if window.seconds]

    def _server_share(self, arm: int) -> tuple[Estimate, schema.WatchedBy]:
        """What the server took more, in percent of one processor or of a session's time."""
        if not self.watch.sees_sessions:
            return MISSING, "unseen"
        windows = self._ended
        known = watcher_time.kinds_of_application(windows, self.design.reference)
        if self.watch.sees_processes:
            shares = [watcher_time.server_share(window, known) for window in windows]
            return self._difference(arm, shares), "processor"
        shares = [watcher_time.active_share(window, known) for window in windows]
        return self._difference(arm, shares), "active"

    def _processes(self, index: int) -> Estimate:
        """What a switch's own processes took, in percent of one processor."""
        shares = [
            window.processes_ns.get(index, 0.0) / (1e9 * window.seconds) for window in self._ended
        ]
        return self._difference(index + 2, shares)

    def _difference(self, arm: int, shares: Sequence[float]) -> Estimate:
        windows = self._ended
        return difference(
            100 * np.array(shares, dtype=np.float64),
            np.array([window.block for window in windows], dtype=np.int64),
            np.array([window.arm for window in windows], dtype=np.int64),
            arm,
            self.design.reference,
        )


def _named(kinds: Sequence[watcher_time.Kind]) -> str:
    """Sessions by their application, or their role if they have none."""
    return ", ".join(dict.fromkeys(name or f"of {role}" for role, name, _ in kinds))
