"""Reads what `perf script` prints, as it comes: events with their stacks, and what was lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from pgtare.seeing.flame import frames
from pgtare.seeing.flame.samples import Stack

_HEAD = re.compile(
    r"^\s*(.+?)\s+(-?\d+)(?:/(-?\d+))?\s+(?:\[\d+\]\s+)?(\d+)\.(\d+):\s+(\S+?):?\s(.*)$"
)
_LOST = re.compile(r"PERF_RECORD_LOST(?:_SAMPLES)? lost (\d+)")
_FRAME = re.compile(r"^\s*([0-9a-f]+) (.*?)(?: \((.*)\))?$")
_UNKNOWN = "[unknown]"
#: How many frames, and stacks of some kB each, are held as perf prints them: they repeat within
#: seconds.
_FRAMES, _STACKS = 100_000, 10_000

#: Names a function that perf has no name for: program file, offset in it.
Naming = Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of perf with its stack. fields: what a tracepoint tells, as perf prints it."""

    comm: str
    tid: int
    time_ns: int
    name: str
    fields: str
    stack: Stack


@dataclass
class Counts:
    """What a reader has seen: events, lost ones, and frames by whether they have a name."""

    events: int = 0
    lost: int = 0
    unreadable: int = 0
    #: the first of them
    example: str = ""
    #: frames by file, all of them and those without a name
    named: dict[str, int] = field(default_factory=dict)
    unnamed: dict[str, int] = field(default_factory=dict)


class Reader:
    """Turns lines into events. naming: for functions without a name; lost: called for each gap."""

    def __init__(self, naming: Naming, lost: Callable[[], None] = lambda: None) -> None:
        self.counts = Counts()
        self._naming = naming
        self._gap = lost
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
        if (lost := _LOST.search(head)) is not None:
            self.counts.lost += int(lost[1])
            self._gap()
            return None
        found = _HEAD.match(head)
        if found is None:
            self.counts.unreadable += 1
            self.counts.example = self.counts.example or head.strip()
            return None
        comm, first, second, seconds, fraction, name, details = found.groups()
        self.counts.events += 1
        time_ns = int(seconds) * 1_000_000_000 + int(fraction.ljust(9, "0")[:9])
        return Event(comm, int(second or first), time_ns, name, details, self._stack("".join(body)))

    def _read(self, body: str) -> Stack:
        names = [self._frame(line) for line in body.split("\n")]
        return tuple(name for name in reversed(names) if name is not None)

    def _named(self, line: str) -> str | None:
        """The name of a frame; None for what is none (where a copied stack ends)."""
        found = _FRAME.match(line.strip())
        if found is None:
            return None
        address, symbol, file = int(found[1], 16), found[2], found[3] or ""
        symbol = re.sub(r"\+0x[0-9a-f]+$", "", symbol)
        kernel = file.startswith(("[kernel", "[guest.kernel")) or (
            file.startswith("[") and file.endswith("]") and address >> 63
        )
        if file == _UNKNOWN and symbol == _UNKNOWN:
            return None
        if symbol == _UNKNOWN:
            self.counts.unnamed[file] = self.counts.unnamed.get(file, 0) + 1
            return "kernel" + frames.KERNEL if kernel else self._naming(file, address)
        self.counts.named[file] = self.counts.named.get(file, 0) + 1
        # a semicolon would end a frame in a folded stack
        return frames.plain(symbol.replace(";", ":")) + (frames.KERNEL if kernel else "")
