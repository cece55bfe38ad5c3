"""Gates of a run: whether the machine was its own, and ran as it should.

Their limits are keys of a study file (study_sections.Gates); kit.machine measures what they limit.
"""

from __future__ import annotations

from pgtare.kit.machine import Usage
from pgtare.kit.window import ProcessorShares
from pgtare.weighing.ladder.field_types import percent
from pgtare.weighing.ladder.study_sections import Gates

#: A clock may be slewed by so much, on top of the bound on steps.
_SLEW = 0.001


def disturbed(steal: float, other: float, bounds: Gates) -> list[str]:
    """What else had the processors for more than it may, by its shares of them."""
    reasons = []
    if steal > bounds.steal_at_most:
        reasons.append(f"other guests took {percent(round(steal, 3))} of the processors")
    if other > bounds.other_load_at_most:
        reasons.append(
            f"another load on the machine took {percent(round(other, 3))} of the processors"
        )
    return reasons


def judge(before: Usage, after: Usage, shares: ProcessorShares, bounds: Gates) -> list[str]:
    """The gates that a run did not pass, in words. before, after: the machine at both its ends."""
    reasons = disturbed(shares.steal, shares.other, bounds)
    if after.swapped_pages > before.swapped_pages:
        reasons.append(f"{after.swapped_pages - before.swapped_pages} pages were swapped")
    if after.throttled > before.throttled:
        reasons.append("the processors were throttled")
    seconds = after.monotonic_s - before.monotonic_s
    step = after.wall_s - before.wall_s - seconds
    if abs(step) > bounds.clock_step_ms / 1000 + _SLEW * seconds:
        reasons.append(f"the clock stepped by {1000 * step:+.0f} ms")
    return reasons
