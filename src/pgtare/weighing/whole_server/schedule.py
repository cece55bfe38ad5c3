"""The windows of a weighing: which is now, what is on in it, and what the server took in each."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.errors import MeasurementError
from pgtare.estimate.arrays import Floats, Ints
from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.design import LEAST_WINDOWS, Design
from pgtare.estimate.trial.windows import (
    acts_seldom,
    difference,
    held_up,
    windows_that_stand_out,
)
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.outside.loops import Loops
from pgtare.weighing.switches import COMMAND_S, Switch
from pgtare.weighing.weigh import outside_schema, schema
from pgtare.weighing.whole_server import watcher_time
from pgtare.weighing.whole_server.configuration import is_secret
from pgtare.weighing.whole_server.guardian_client import SwitchGuard
from pgtare.weighing.whole_server.watcher_time import WatcherTime

#: After a switch so much is left out, in s: sessions notice it, a watcher starts.
SETTLE_S = 1.0
#: So much after a command has switched something off: it returns before the watcher has ended.
AFTER_OFF_S = 10.0
#: A window is so long at least, in s: each change of a server's configuration wakes every session.
SHORTEST_S = 15.0
#: So long the sessions of a watcher that is off are waited for, in s: a query goes on when its
#: client has gone.
GONE_S = 30.0
_POLL_S = 0.2
#: How often it is looked who is there, in s, on average. At random times: a watcher that acts each
#: second would be seen always or never.
_LOOK_S = 1.0
#: How often it is looked whether the guardian is there, in s, while nothing is measured.
_CHECK_S = 1.0


def window_s(asked_s: float | None, period_s: float | None) -> float:
    """The length of a window: whole periods of the watcher, and no shorter than SHORTEST_S."""
    shortest = SHORTEST_S if asked_s is None else asked_s
    return shortest if period_s is None else period_s * math.ceil(shortest / period_s - 1e-9)


def block_s(switches: Sequence[Switch], each_s: float) -> float:
    """What a block of windows takes on average: one of each switch, and two without any."""
    settling = sum(_settling_s(switch, each_s) for switch in switches)
    return (len(switches) + 2) * (each_s + SETTLE_S) + settling


def blocks_in(duration_s: float, switches: Sequence[Switch], each_s: float) -> int:
    """Whole blocks of windows in so much time."""
    return int(duration_s // block_s(switches, each_s))


def least_s(switches: Sequence[Switch], each_s: float) -> float:
    """What the fewest blocks for an answer take."""
    return LEAST_WINDOWS * block_s(switches, each_s)


def _settling_s(switch: Switch, each_s: float) -> float:
    """What is left out of a block because of a switch, besides SETTLE_S, on average."""
    return each_s / 2 + (AFTER_OFF_S if switch.kind == "commands" else 0.0)


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
    _on: int | None = None  # the switch that is on
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
        return self.blocks * block_s(self.switches, self.window_s)

    def try_out(self, say: Callable[[str], None], pair_s: float) -> None:
        """Switch each on and off once, so that what fails does so before anything is measured.

        pair_s: what two blocks of runs take, in which nothing is asked of the guardian.
        """
        self.guard.allow(2 * pair_s)
        none = [False for _ in self.switches]
        minutes = f"{COMMAND_S / 60:.0f} minutes"
        waits = f"; each command must return, and is given up after {minutes}"
        for index, switch in enumerate(self.switches):
            if switch.kind == "commands":  # before any is another way than it was
                say(f"trying the command that switches {switch.name} {switch.as_it_was[1]}{waits}")
                self.guard.try_as_it_is(index)
        for index, switch in enumerate(self.switches):
            say(f"trying {switch.name}: on and off{waits if switch.kind == 'commands' else ''}")
            if switch.is_left_on and switch.setting:
                self.guard.set(none)  # so that the server shows what the command on does
            self.guard.set([i == index for i in range(len(none))])
            self.guard.set(none)

    def advance(self) -> bool:
        """Called before each block of runs; False if there are no more windows.

        Raises MeasurementError, UsageError if something cannot be switched.
        """
        self.guard.check()
        now = time.monotonic()
        if self._began is not None and now - self._began < self.window_s:
            if now >= self._next_look:
                self.watch.look()
                self._next_look = now + self._pause_s()
            return True
        if self._began is not None:
            self.watch.end(now - self._began, self.guard.leaders)
            self._began = None
        if not self._left:
            return False
        if not self.watch.windows:
            self._after_trying()
        block, arm = self._left.pop()
        on = arm - 2 if arm >= 2 else None
        self._switch_to(on, block)
        self.loops.window, self.loops.epoch = arm, block
        self.watch.begin(block, arm, self.guard.leaders, off=on is None)
        self._began = time.monotonic()
        self._next_look = self._began + self._pause_s()
        return True

    def end(self) -> None:
        """Put everything back: the analysis may take long. The guard says again what failed."""
        with contextlib.suppress(MeasurementError):
            self.guard.put_back()

    def _after_trying(self) -> None:
        """Wait until all that was tried out is off: the first window may be one without it."""
        kinds = {switch.kind for switch in self.switches}
        if "commands" in kinds:
            self._settle(AFTER_OFF_S)
        if kinds != {"setting"}:
            self._wait_until_gone(watcher_time.TRIED[0])
        if "commands" in kinds:
            self.watch.all_off()

    def _switch_to(self, on: int | None, block: int) -> None:
        """Have one switch on, or none, and wait until its window may begin."""
        settling_s, before = SETTLE_S, self._on
        if before not in (None, on) and self.switches[before].kind == "commands":
            settling_s += AFTER_OFF_S
        if on is not None and on != before:
            self.watch.switching(block, on + 2)
        self.guard.set([index == on for index in range(len(self.switches))])
        if on is not None:
            # It begins anew in each window, a worker of the server at the reload: without this
            # always at the same point of its period.
            settling_s += self.rng.uniform(0.0, self.window_s)
        self._on = on
        self._settle(settling_s)
        if before not in (None, on) and self.switches[before].kind != "setting":
            self._wait_until_gone(before + 2)

    def _settle(self, seconds: float) -> None:
        while seconds > 0:
            self.guard.check()
            time.sleep(min(seconds, _CHECK_S))
            seconds -= _CHECK_S

    def _wait_until_gone(self, arm: int) -> None:
        """Wait for the end of sessions that began with an arm's watcher; not for ever."""
        until = time.monotonic() + GONE_S
        while left := self.watch.left_behind(arm):
            if time.monotonic() > until:
                self.watch.wait_no_more(left)
                return
            self.guard.check()
            time.sleep(_POLL_S)

    def _pause_s(self) -> float:
        return _LOOK_S * self.rng.uniform(0.5, 1.5)

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
            return Proof(state="active", evidence=f"only then sessions began: {_named(kinds)}")
        # 1 - alpha over all of them: with ten intervals one in six trials has one without cause
        if self._processes(arm - 2, 0.05 / len(self.switches)).lo > 0:
            return Proof(state="active", evidence="its processes took processor time")
        if switch.setting:
            shown = "" if is_secret(switch.setting) else f" = {switch.value}"
            text = f"{switch.setting}{shown} was in force"
        else:
            text = "its commands were carried out" if switch.off else "its process ran"
        return Proof(state="idle", evidence=text, unproven="unseen")

    def described(self, rows: npt.NDArray[Any]) -> outside_schema.WindowsInfo:
        """The windows, and what each watcher took itself. rows: the runs, of dtype RUN."""
        ended = [(window.block, window.arm, window.seconds) for window in self._ended]
        held = held_up(rows, ended, self.design.reference)
        return outside_schema.WindowsInfo(
            window_s=self.window_s,
            watchers=[self._watcher(index, held) for index in range(len(self.switches))],
        )

    def _kinds(self, arm: int) -> list[watcher_time.Kind]:
        """Kinds of sessions that were there in most of this arm's windows, and in no others.

        Or began there only.
        """
        mine: Counter[watcher_time.Kind] = Counter()
        others: set[watcher_time.Kind] = set()
        for window in self._ended:
            if window.arm == arm:
                mine.update(window.seen)
            else:
                others |= window.seen
        most = sum(window.arm == arm for window in self._ended) / 2
        found = {kind for kind, n in mine.items() if n > most and kind not in others}
        if self.switches[arm - 2].kind != "setting":
            found |= watcher_time.came_with(self._ended, arm)
        return sorted(found)

    def _shared(self, arm: int) -> list[watcher_time.Kind]:
        """Kinds of sessions taken for the application's that may well be the watcher's.

        They took clearly more while it was on, or there were more of them: by intervals of 95 %
        over all kinds.
        """
        ended, found = self._ended, self._stayed(arm)
        kinds = watcher_time.kinds_of_application(ended, self.design.reference)
        for kind in kinds - found:
            readings = [[watcher_time.kind_share(one, kind) for one in ended]]
            if self.switches[arm - 2].kind != "setting":
                readings.append([one.there.get(kind, 0.0) for one in ended])
            for each in readings:
                more = self._difference(arm, np.array(each), 0.05 / len(kinds))
                # one session more in each window does not vary, and so has no interval
                if more.lo > 0 or (math.isnan(more.lo) and more.estimate > 0):
                    found.add(kind)
        return sorted(found)

    def _stayed(self, arm: int) -> set[watcher_time.Kind]:
        return watcher_time.stayed(self._ended, self.watch.at_first, arm, self.design.reference)

    def _took_more(self, arm: int, kinds: Sequence[watcher_time.Kind]) -> Estimate:
        """What sessions of these kinds took more while an arm was on, in percent."""
        shares = [sum(watcher_time.kind_share(one, kind) for kind in kinds) for one in self._ended]
        return self._difference(arm, np.array(shares))

    def _watcher(self, index: int, held: Floats) -> outside_schema.WatcherInfo:
        switch, arm = self.switches[index], index + 2
        shares, by = self._server_shares(arm)
        server = self._difference(arm, shares)
        acted = windows_that_stand_out(shares, *self._places(), arm, self.design.reference)
        lingered = set[watcher_time.Kind]()
        if switch.kind != "setting":
            lingered = watcher_time.lingered(self._ended, arm, self.design.reference)
        if acted is not None or lingered:
            server = _without_interval(server)
        shared = self._shared(arm)
        processes = None
        if switch.kind == "process":
            processes = self._processes(index)
            if acts_seldom(self._process_shares(index), self._places()[1], arm):
                processes = _without_interval(processes)
        return outside_schema.WatcherInfo(
            name=switch.name,
            kind=switch.kind,
            setting=switch.setting or None,
            value=None if is_secret(switch.setting) else switch.value or None,
            sessions=[_named([kind]) for kind in self._kinds(arm)],
            shared=[_named([kind]) for kind in shared],
            shared_pct=schema.interval(self._took_more(arm, shared)) if shared else None,
            lingered=[_named([kind]) for kind in sorted(lingered)],
            by=by,
            windows=sum(window.arm == arm for window in self._ended),
            acted_in=acted,
            server_pct=schema.interval(server),
            processes_pct=schema.interval(processes) if processes is not None else None,
            held_up_pct=schema.interval(self._difference(arm, held)),
        )

    @property
    def _ended(self) -> list[watcher_time.WindowTime]:
        return [window for window in self.watch.windows if window.seconds]

    def _server_shares(self, arm: int) -> tuple[Floats, outside_schema.WatchedBy]:
        """What the server took in each window, of one processor or of a session's time.

        Without the application's sessions, and those that came with an arm and stayed.
        """
        windows = self._ended
        if not self.watch.sees_sessions:
            return np.full(len(windows), math.nan), "unseen"
        known = watcher_time.kinds_of_application(windows, self.design.reference)
        known |= self._stayed(arm)
        if self.watch.sees_processes:
            return np.array([watcher_time.server_share(one, known) for one in windows]), "processor"
        return np.array([watcher_time.active_share(one, known) for one in windows]), "active"

    def _processes(self, index: int, alpha: float = 0.05) -> Estimate:
        """What a switch's own processes took, in percent of one processor.

        The interval holds what ticks leave unread at both ends of a window, which more windows do
        not make less.
        """
        found = self._difference(index + 2, self._process_shares(index), alpha)
        mine = [one for one in self._ended if one.arm == index + 2]
        if not mine or math.isnan(found.estimate):
            return found
        before, after = (
            100 * float(np.mean([ns.get(index, 0) / one.seconds for one, ns in each])) / 1e9
            for each in (
                [(one, one.unread_before_ns) for one in mine],
                [(one, one.unread_ns) for one in mine],
            )
        )
        lo, hi = found.lo, found.hi
        if before + after and math.isnan(lo):  # nothing varies: it may be all in what was not read
            lo = hi = found.estimate
        return Estimate(found.estimate + (after - before) / 2, found.se, lo - before, hi + after)

    def _process_shares(self, index: int) -> Floats:
        """Share of one processor that a switch's own processes took, of each window."""
        return np.array(
            [one.processes_ns.get(index, 0.0) / (1e9 * one.seconds) for one in self._ended]
        )

    def _difference(self, arm: int, shares: Floats, alpha: float = 0.05) -> Estimate:
        return difference(100 * shares, *self._places(), arm, self.design.reference, alpha)

    def _places(self) -> tuple[Ints, Ints]:
        """Block and arm of each window."""
        windows = self._ended
        blocks = np.array([window.block for window in windows], dtype=np.int64)
        return blocks, np.array([window.arm for window in windows], dtype=np.int64)


def _without_interval(found: Estimate) -> Estimate:
    return Estimate(found.estimate, math.nan, math.nan, math.nan)


def _named(kinds: Sequence[watcher_time.Kind]) -> str:
    """Sessions by their application, or their role if they have none."""
    return ", ".join(dict.fromkeys(name or f"of {role}" for role, name, _ in kinds))
