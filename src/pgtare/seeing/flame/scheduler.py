"""From scheduler events to time off the processor: blocked, runnable, and what ended the wait."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pgtare.kit.terminal_text import plain
from pgtare.seeing.flame import frames
from pgtare.seeing.flame.samples import BLOCKED, RUNNABLE, Collected, Stack
from pgtare.seeing.flame.script import Event

_SWITCH = re.compile(r"prev_pid=(\d+) .*prev_state=(\S+) ==> .*next_pid=(\d+) ")
_SWITCH_SHORT = re.compile(r"^.*:(\d+) \[\d+\] (\S+) ==> .*:(\d+) \[\d+\]")
_WAKING = re.compile(r"(?:^|\s)pid=(\d+)\s|^.*?:(\d+) \[\d+\]")
# Below these a stack is that of an interrupt, not of the process it interrupted.
_INTERRUPT = re.compile(
    r"^(asm_)?(sysvec_|common_interrupt|__?do_softirq|handle_softirqs|irq_exit|__irq_exit|"
    r"el1h?_.*irq|el0t?_.*irq|do_interrupt|call_on_irq_stack)"
)


@dataclass
class _Away:
    """A process off the processor: since when, in what stack, and when and by what it was woken."""

    since_ns: int
    stack: Stack
    runnable: bool
    woken_ns: int = 0
    waker: Stack = ()


@dataclass
class Scheduler:
    """Follows the processes that `wanted` tells; pids are those of the machine.

    wake: keep what woke a process, as frames on top of what waited. standing: stacks of processes
    that were waiting when the recording began. weights: how many processes one that is watched
    represents, itself included, if not all are.
    """

    wanted: Callable[[int], bool]
    collected: Collected
    wake: bool = False
    standing: dict[int, Stack] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    #: a process came back whose leaving was not seen: events are missing
    unmatched: int = 0
    switches: int = 0
    _last_ns: int = 0
    _away: dict[int, _Away] = field(default_factory=dict)
    _lot: random.Random = field(default_factory=lambda: random.Random(1))
    #: our number of a process by the kernel's, if they differ (in a pid namespace)
    _ours: dict[int, int] = field(default_factory=dict)

    def begin(self, time_ns: int) -> None:
        """The recording begins: standing waits count from here."""
        for pid, stack in self.standing.items():
            self._away[pid] = _Away(time_ns, stack, runnable=False)

    def take(self, event: Event) -> None:
        """One event, in order of time."""
        self._last_ns = event.time_ns
        if event.name.endswith("sched_switch"):
            self._switch(event)
        elif event.name.endswith(("sched_waking", "sched_wakeup", "sched_wakeup_new")):
            self._woken(event)

    def gap(self) -> None:
        """Events were lost: an absent process may have come back unseen; its wait ends here."""
        self.end(self._last_ns)

    def end(self, time_ns: int) -> None:
        """The recording ends: waits under way end here as well."""
        for pid, away in list(self._away.items()):
            self._back(pid, away, time_ns)
        self._away.clear()

    def _switch(self, event: Event) -> None:
        found = _SWITCH.search(event.fields) or _SWITCH_SHORT.match(event.fields)
        if found is None:
            return
        leaving, state, coming = int(found[1]), found[2], int(found[3])
        # perf is asked for each event twice: with the stack of what leaves, without what comes
        if event.stack:
            if event.tid != leaving:
                self._ours[leaving] = event.tid
            leaving = event.tid
            if leaving and self.wanted(leaving):
                self.switches += 1
                self._away[leaving] = _Away(
                    event.time_ns, frames.own(event.stack), runnable=state.startswith("R")
                )
            return
        coming = self._ours.get(coming, coming)
        if coming and self.wanted(coming):
            away = self._away.pop(coming, None)
            if away is None:
                self.unmatched += 1
            else:
                self._back(coming, away, event.time_ns)

    def _woken(self, event: Event) -> None:
        found = _WAKING.search(event.fields)
        if found is None:
            return
        woken = int(found[1] or found[2])
        away = self._away.get(self._ours.get(woken, woken))
        if away is not None and not away.woken_ns and not away.runnable:
            away.woken_ns = event.time_ns
            away.waker = waker(event) if self.wake else ()

    def _back(self, pid: int, away: _Away, time_ns: int) -> None:
        if away.runnable:
            self._add(away.since_ns, pid, away.stack, RUNNABLE, time_ns)
            return
        woken, stack = away.woken_ns or time_ns, away.stack
        if self.wake:
            stack += away.waker or (f"{frames.WAKER}nobody seen",)
        self._add(away.since_ns, pid, stack, BLOCKED, woken)
        if time_ns > woken:
            self._add(woken, pid, away.stack, RUNNABLE, time_ns)

    def _add(self, since_ns: int, pid: int, stack: Stack, kind: int, until_ns: int) -> None:
        """One stretch, as often as there are processes that it represents, on average."""
        times, rest = divmod(self.weights.get(pid, 1.0), 1)
        for _ in range(int(times) + (rest > 0 and self._lot.random() < rest)):
            self.collected.add(since_ns, pid, stack, kind, max(0, until_ns - since_ns))


def waker(event: Event) -> Stack:
    """What woke it, as frames that go on top of what waited: the innermost first, the program last.

    An interrupt is nobody's doing: what it interrupted is left out.
    """
    stack = event.stack
    for i in range(len(stack) - 1, -1, -1):
        name = stack[i]
        if name.endswith(frames.KERNEL) and _INTERRUPT.match(name.removesuffix(frames.KERNEL)):
            return (f"{frames.WAKER}interrupt", *reversed(stack[i:]))
    own = frames.own(stack)
    who = own[0] if own[0] != "process" else plain(event.comm).replace(";", ":")
    return (f"{frames.WAKER}{who}", *reversed(own[1:]))
