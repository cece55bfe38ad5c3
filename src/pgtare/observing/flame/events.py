"""Reads what `perf script` prints, as it comes: events with their stacks, and what was lost.

From the scheduler's events follows time off the processor: blocked, runnable, what ended the wait.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from pgtare.kit.terminal_text import plain
from pgtare.observing.flame import frames
from pgtare.observing.flame.frames import Stack
from pgtare.observing.flame.recording import BLOCKED, RUNNABLE, Collected

_HEAD = re.compile(
    r"^\s*(.+?)\s+(-?\d+)(?:/(-?\d+))?\s+(?:\[\d+\]\s+)?(\d+)\.(\d+):\s+(\S+?):?\s(.*)$"
)
_LOST = re.compile(r"PERF_RECORD_LOST(?:_SAMPLES)? lost (\d+)")
_FORK = re.compile(r"PERF_RECORD_FORK\((\d+):(\d+)\):\((\d+):\d+\)")
_FRAME = re.compile(r"^\s*([0-9a-f]+) (.*?)(?:\+0x[0-9a-f]+)?(?: \((.*)\))?$")
_UNKNOWN = "[unknown]"
#: How many frames, and stacks of some kB each, are held as perf prints them: they repeat within
#: seconds.
_FRAMES, _STACKS = 100_000, 10_000
# The fields of an event, and how perf prints them if it has libtraceevent's plugins.
_SWITCH = re.compile(r"prev_pid=(\d+) .*prev_state=(\S+) ==> .*next_pid=(\d+) ")
_SWITCH_SHORT = re.compile(r"^.*:(\d+) \[\d+\] (\S+) ==> .*:(\d+) \[\d+\]")
_WAKING = re.compile(r"(?:^|\s)pid=(\d+)\s|^.*?:(\d+) \[\d+\]")
# Below these a stack is that of an interrupt, not of the process it interrupted.
_INTERRUPT = re.compile(
    r"^(asm_)?(sysvec_|common_interrupt|__?do_softirq|handle_softirqs|irq_exit|__irq_exit|"
    r"el1h?_.*irq|el0t?_.*irq|do_interrupt|call_on_irq_stack)"
)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of perf with its stack. fields: what a tracepoint tells, as perf prints it."""

    comm: str
    tid: int
    time_ns: int
    name: str
    fields: str
    stack: Stack


class Reader:
    """Turns lines into events, and counts them, and what was lost.

    naming: for functions that perf has no name for, by program file and offset in it; gap: called
    where events were lost; forked: where a task began, with its number, its process and the process
    that made it; wanted: whose events are given, by number and program.
    """

    def __init__(
        self,
        naming: Callable[[str, int], str],
        gap: Callable[[], None] = lambda: None,
        forked: Callable[[int, int, int], None] = lambda task, pid, parent: None,
        wanted: Callable[[int, str], bool] = lambda task, program: True,
    ) -> None:
        self.events_read = self.lost = self.unreadable = 0
        #: the first line that could not be read
        self.example = ""
        #: frames by file, those with a name and those without
        self.named, self.unnamed = Counter[str](), Counter[str]()
        self._naming = naming
        self._gap = gap
        self._forked = forked
        self._wanted = wanted
        self._frame = lru_cache(_FRAMES)(self._named)
        self._stack = lru_cache(_STACKS)(self._read)

    def events(self, lines: Iterable[str]) -> Iterator[Event]:
        """The events in these lines: a head, and a line for each frame."""
        head = ""
        body: list[str] = []
        for line in chain(lines, ["\n"]):
            if line[0] == "\t":  # not by spaces: a short program's name is padded with them
                body.append(line)
                continue
            if head and (event := self._event(head, body)) is not None:
                yield event
            head, body = "" if line == "\n" else line, []

    def _event(self, head: str, body: list[str]) -> Event | None:
        if "PERF_RECORD_" in head:
            if (lost := _LOST.search(head)) is not None:
                self.lost += int(lost[1])
                self._gap()
            elif (fork := _FORK.search(head)) is not None:
                pid, task, parent = map(int, fork.groups())
                self._forked(task, pid, parent)
            return None
        found = _HEAD.match(head)
        if found is None:
            self.unreadable += 1
            self.example = self.example or head.strip()
            return None
        comm, first, second, seconds, fraction, name, details = found.groups()
        self.events_read += 1
        task = int(second or first)
        if not self._wanted(task, comm):
            return None
        time_ns = int(seconds) * 1_000_000_000 + int(fraction.ljust(9, "0")[:9])
        return Event(comm, task, time_ns, name, details, self._stack("".join(body)))

    def _read(self, body: str) -> Stack:
        names = [self._frame(line) for line in body.split("\n")]
        return tuple(name for name in reversed(names) if name is not None)

    def _named(self, line: str) -> str | None:
        """The name of a frame; None for what is none (where a copied stack ends)."""
        found = _FRAME.match(line.strip())
        if found is None or found[2] == found[3] == _UNKNOWN:
            return None
        address, symbol, file = int(found[1], 16), found[2], found[3] or ""
        kernel = file.startswith(("[kernel", "[guest.kernel")) or (
            file.startswith("[") and file.endswith("]") and address >> 63
        )
        if symbol == _UNKNOWN:
            self.unnamed[file] += 1
            return "kernel" + frames.KERNEL if kernel else self._naming(file, address)
        self.named[file] += 1
        # a semicolon would end a frame in a folded stack
        return frames.plain(symbol.replace(";", ":")) + (frames.KERNEL if kernel else "")


@dataclass
class _Away:
    """A process off the processor: since when, in what stack, and when and by what it was woken.

    read_ns: when that was read of a process that was off already; 0 if its leaving was seen.
    """

    since_ns: int
    stack: Stack
    runnable: bool
    read_ns: int = 0
    woken_ns: int = 0
    waker: Stack = ()


@dataclass
class Scheduler:
    """Follows the processes that `wanted` tells; pids are those of the machine.

    wake: keep what woke a process, as frames on top of what waited. weights: how many processes one
    that is watched represents, itself included, if not all are.
    """

    wanted: Callable[[int], bool]
    collected: Collected
    wake: bool = False
    weights: dict[int, float] = field(default_factory=dict)
    #: a process came back whose leaving was not seen: events are missing
    unmatched: int = 0
    switches: int = 0
    _last_ns: int = 0
    _away: dict[int, _Away] = field(default_factory=dict)
    #: our number of a process by the kernel's, if they differ (in a pid namespace)
    _ours: dict[int, int] = field(default_factory=dict)
    #: when a process last came by the kernel's number, and was not known to be away
    _came_ns: dict[int, int] = field(default_factory=dict)

    def begin(self, time_ns: int, standing: dict[int, tuple[int, Stack]]) -> None:
        """The recording began. standing: stacks of processes that waited when these were read.

        By the time of reading, which is after the beginning: nothing that they did in between is
        missing. Called before the first event is taken.
        """
        for pid, (read_ns, stack) in standing.items():
            self._away[pid] = _Away(time_ns, stack, runnable=False, read_ns=read_ns)

    def take(self, event: Event) -> None:
        """One event, in order of time."""
        self._last_ns = event.time_ns
        if event.name.endswith("sched_switch"):
            self._switch(event)
        elif event.name.endswith("sched_waking"):
            self._woken(event)

    def gap(self) -> None:
        """Events were lost: an absent process may have come back unseen; its wait ends here."""
        self.end(self._last_ns)

    def end(self, time_ns: int) -> None:
        """The recording ends: waits under way end here as well."""
        for pid, away in self._away.items():
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
                came_ns = self._came_ns.pop(leaving, None)
                if came_ns is not None and event.tid in self._away:  # since the beginning
                    self._came(event.tid, came_ns)
            leaving = event.tid
            if leaving and self.wanted(leaving):
                self.switches += 1
                if state[:1] in "XZ":  # it has exited, and waits for nothing
                    self._away.pop(leaving, None)
                    return
                self._away[leaving] = _Away(
                    event.time_ns, frames.own(event.stack), runnable=state.startswith("R")
                )
            return
        ours = self._ours.get(coming, coming)
        if ours not in self._away:
            self._came_ns[coming] = event.time_ns
        if ours and self.wanted(ours):
            self._came(ours, event.time_ns)

    def _came(self, pid: int, time_ns: int) -> None:
        away = self._away.pop(pid, None)
        if away is None or time_ns < away.read_ns:  # what was read is of a later wait
            self.unmatched += 1
        else:
            self._back(pid, away, time_ns)

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
        """One stretch, of all the processes that it represents."""
        ns = round(self.weights.get(pid, 1.0) * max(0, until_ns - since_ns))
        self.collected.add(since_ns, pid, stack, kind, ns)


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
