"""Looking while the trial runs: always-valid intervals, and the rule that stops on width."""

from __future__ import annotations

import math
from collections.abc import Iterable

#: Blocks at which the confidence sequence is tightest.
TUNED_AT = 4_000
#: Fewest blocks that a rule on width may stop at.
MIN_BLOCKS = 100
MIN_SECONDS = 10.0


def _rho_squared(alpha: float, tuned_at: int = TUNED_AT) -> float:
    return (-2 * math.log(alpha) + math.log(1 - 2 * math.log(alpha))) / tuned_at


def multiplier(blocks: int, alpha: float = 0.05, tuned_at: int = TUNED_AT) -> float:
    """Half-width of the asymptotic confidence sequence, in standard errors.

    blocks: t, the number of blocks so far; alpha: error over all looks together; tuned_at: blocks
    at which it is tightest. Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, "Time-uniform central
    limit theory and asymptotic confidence sequences", Annals of Statistics 2024, equation 14. NaN
    without blocks.
    """
    if blocks < 1:
        return math.nan
    spread = blocks * _rho_squared(alpha, tuned_at)
    return math.sqrt(2 * (spread + 1) / spread * math.log(math.sqrt(spread + 1) / alpha))


def p_value(z: float, blocks: int, alpha: float = 0.05, tuned_at: int = TUNED_AT) -> float:
    """Always-valid two-sided p-value: the level whose confidence sequence just excludes zero.

    z: studentised effect. The sequence is the one that `multiplier` takes at α, so that p < α
    if, and only if, that interval excludes zero.
    """
    if blocks < 1 or math.isnan(z):
        return math.nan
    spread = blocks * _rho_squared(alpha, tuned_at)
    return min(1.0, math.sqrt(spread + 1) * math.exp(-z * z * spread / (2 * (spread + 1))))


def width_reached(
    half_widths: Iterable[float],
    target: float,
    blocks: int,
    seconds: float,
    min_blocks: int = MIN_BLOCKS,
) -> bool:
    """Whether a trial that stops on width may stop.

    half_widths: of every arm's 95 % interval, in the unit of target. Such a rule looks at
    no effect, so the intervals need no correction. A NaN, or no arm at all, does not stop.
    """
    widths = list(half_widths)
    return (
        bool(widths)
        and all(width <= target for width in widths)
        and blocks >= min_blocks
        and seconds >= MIN_SECONDS
    )
