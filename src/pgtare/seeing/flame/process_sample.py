"""Which processes are watched if all would switch more often than can be read: some, by lot."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pgtare.seeing.flame import processes

#: For so long switches are counted before, in s.
_LOOK_S = 0.2
#: Up to this part of what can be read goes to those who switch least: all of them are watched.
_QUIET_PART = 0.3


@dataclass(frozen=True)
class Watched:
    """The processes watched, and of how many.

    weights: how many of all processes each represents, itself included; 1 if not given.
    rate: switches a second of all of them, watched or not.
    """

    pids: list[int]
    processes: int
    weights: dict[int, float] = field(default_factory=dict)
    rate: float = 0.0

    @property
    def all(self) -> bool:
        """Whether every process is watched."""
        return len(self.pids) == self.processes

    @property
    def drawn(self) -> tuple[int, int]:
        """How many were drawn by lot, and of how many."""
        drawn = [times for times in self.weights.values() if times > 1]
        return len(drawn), round(sum(drawn))


def rates(pids: Sequence[int], seconds: float = _LOOK_S) -> dict[int, float]:
    """How often each process leaves the processor to wait, a second, by the kernel's count."""
    before = {pid: processes.switches(pid) for pid in pids}
    began = time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - began
    return {pid: max(0, processes.switches(pid) - before[pid]) / spent for pid in pids}


def choose(found: Mapping[int, float], most: float, room: int, draw: random.Random) -> Watched:
    """All processes; or those who switch least, and some of the others by lot.

    found: switches a second by process; most: how many a second can be read; room: how many
    processes can be distinguished, if not all are watched.
    """
    total = sum(found.values())
    if total <= most:
        return Watched(list(found), len(found), rate=total)
    quiet: list[int] = []
    spent = 0.0
    for pid in sorted(found, key=lambda pid: found[pid]):
        if spent + found[pid] > _QUIET_PART * most:
            break
        spent += found[pid]
        quiet.append(pid)
    busy = [pid for pid in found if pid not in set(quiet)]
    each = (total - spent) / len(busy)
    number = max(1, min(len(busy), int((most - spent) / each), room // 2))
    weights: dict[int, float] = {}
    for group, wanted in ((quiet, min(len(quiet), room - number)), (busy, number)):
        chosen = draw.sample(group, wanted)
        weights |= dict.fromkeys(chosen, len(group) / max(wanted, 1))
    return Watched(list(weights), len(found), weights, total)
