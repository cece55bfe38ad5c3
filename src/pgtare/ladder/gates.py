"""Gates of a run: whether the machine was its own, and ran as it should."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from pgtare.ladder.quantities import percent
from pgtare.ladder.sections import Gates
from pgtare.machine import Usage

#: A clock may be slewed by so much, on top of the bound on steps.
_SLEW = 0.001


@dataclass(frozen=True)
class Shares:
    """Shares of all processor time in a run."""

    idle: float
    steal: float
    other: float


def shares(before: Usage, after: Usage, own_ticks: int) -> Shares:
    """own_ticks: CPU time of the server, the load and ourselves in the run."""
    total = max(after.total - before.total, 1)
    kernel = after.kernel - before.kernel
    other = (after.busy - before.busy) - own_ticks - kernel
    return Shares(
        idle=(after.idle - before.idle) / total,
        steal=(after.steal - before.steal) / total,
        other=max(0, other) / total,
    )


def disturbed(steal: float, other: float, bounds: Gates) -> list[str]:
    """Who else had the processors for more than they may, by their shares of them."""
    told = []
    if steal > bounds.steal_at_most:
        told.append(f"other guests took {percent(round(steal, 3))} of the processors")
    if other > bounds.other_load_at_most:
        told.append(
            f"another load on the machine took {percent(round(other, 3))} of the processors"
        )
    return told


def judge(before: Usage, after: Usage, found: Shares, bounds: Gates) -> list[str]:
    """The gates that a run did not pass, in words."""
    told = disturbed(found.steal, found.other, bounds)
    if after.swapped_pages > before.swapped_pages:
        told.append(f"{after.swapped_pages - before.swapped_pages} pages were swapped")
    if after.throttled > before.throttled:
        told.append("the processors were throttled")
    seconds = after.monotonic_s - before.monotonic_s
    step = after.wall_s - before.wall_s - seconds
    if abs(step) > bounds.clock_step_ms / 1000 + _SLEW * seconds:
        told.append(f"the clock stepped by {1000 * step:+.0f} ms")
    return told


def own_s() -> float:
    """CPU time in s of ourselves and of the programs we have run to their end."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)
