"""What the machine did while something was measured: one context manager for every stretch."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pgtare.kit import machine
from pgtare.kit.machine import Usage

Reading = TypeVar("Reading")


@dataclass(frozen=True)
class ProcessorShares:
    """Shares of all processor time, from 0 to 1. other: of programs that are not ours."""

    idle: float
    steal: float
    other: float


def processor_shares(before: Usage, after: Usage, our_ticks: int) -> ProcessorShares:
    """What had the processors between two readings.

    our_ticks: CPU time of the servers, the load and ourselves in between, in clock ticks.
    """
    total = max(after.total - before.total, 1)
    kernel = after.kernel - before.kernel
    other = (after.busy - before.busy) - our_ticks - kernel
    return ProcessorShares(
        idle=(after.idle - before.idle) / total,
        steal=(after.steal - before.steal) / total,
        # time that processors wait for the disk is counted back and forth, and with it the total
        other=min(max(0, other) / total, 1.0),
    )


class Window(Generic[Reading]):
    """A measured stretch, for `with`: readings at both ends, and what they come to.

    pids: processes that the measurement consists of, such as servers. A load that begins and ends
    inside the block is our child and counts in `own_s`. read: what else is read at both ends, such
    as a server's counters. settle_s: how long to wait, in s, before processes and counters are read
    again, as some report with a delay.

    On entry `read` comes first and the machine's counters last; on exit they come in the opposite
    order, so that our own queries are not part of the stretch. A block that raises has no second
    end: the attributes marked with * exist after a normal exit only.

    - first, *last: what `read` returned
    - before, *after: the machine's counters
    - *ticks: for each of `pids`, the CPU time of the process and its children, in clock ticks
      (`machine.tick_s`)
    - *own_s: CPU time of ourselves and of the children we ran to their end, in s
    - *run_delay_ns: (on a processor, ready but waiting for one) of `pids` without children, in ns
    """

    def __init__(
        self, pids: Sequence[int], read: Callable[[], Reading], settle_s: float = 0.0
    ) -> None:
        self._pids, self._read, self._settle_s = tuple(pids), read, settle_s

    def __enter__(self) -> Window[Reading]:
        self.first = self._read()
        self._delay = machine.run_delay_ns(self._pids)
        self._ticks = self._all_ticks()
        self._own = _own_s()
        self.before = machine.usage()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        self.after = machine.usage()
        self.own_s = _own_s() - self._own
        time.sleep(self._settle_s)
        self.ticks = [now - then for now, then in zip(self._all_ticks(), self._ticks, strict=True)]
        ran, waited = machine.run_delay_ns(self._pids)
        self.run_delay_ns = (ran - self._delay[0], waited - self._delay[1])
        self.last = self._read()

    @property
    def shares(self) -> ProcessorShares:
        """What had the processors."""
        ours = sum(self.ticks) + round(self.own_s / machine.tick_s())
        return processor_shares(self.before, self.after, ours)

    @property
    def steal_pct(self) -> float | None:
        """Share of CPU time that other guests took, in %; None if the kernel does not say."""
        total = self.after.total - self.before.total
        return 100.0 * (self.after.steal - self.before.steal) / total if total > 0 else None

    def _all_ticks(self) -> list[int]:
        return [machine.tree_ticks(pid) for pid in self._pids]


def _own_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)
