"""What a trial by transactions knows of effects that outlast the next transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pgtare.estimate.inference import Estimate, Expansion
from pgtare.estimate.trial.effects import Effects
from pgtare.estimate.trial.run_pairs import RunEffect, RunPairs, run_effect
from pgtare.estimate.trial.verdict import EQUIVALENCE_ALPHA, Lasting

#: Transactions that the headline's effect covers: the arm's own one and the next.
REACH = 2
#: A long effect under this share of the body changes nothing that anyone decides by.
WORTH_SAYING = 0.10
#: Error at which a long effect counts as shown, and at which runs alone show a cost or a gain: the
#: second adds to the 5 % of the headline's test.
SHOWN_ALPHA = 0.05
SURE_ALPHA = 0.01


class LongEffects:
    """The cost by runs, and the part of it that the headline lacks, arm by arm.

    of: by arm its effects, split at its own threshold.
    """

    def __init__(self, pairs: RunPairs, of: Sequence[Effects]) -> None:
        self._pairs, self._of = pairs, of
        self.by_runs = cache(self._by_runs)

    def _by_runs(self, arm: int) -> RunEffect:
        effects = self._of[arm]
        return run_effect(self._pairs, effects.c, arm, effects.blocks.n, peeked=effects.peeked)

    def runs_us(self, arm: int) -> Estimate | None:
        """The body of what an arm costs when left on, by runs; None without any."""
        found = self.by_runs(arm)
        return found.interval() if found.n else None

    def long_carry_over_us(self, arm: int, alpha: float = 0.05) -> Estimate | None:
        """The cost by runs less the headline; None without runs."""
        found = self.by_runs(arm)
        if not found.n:
            return None
        body = self._of[arm].body_cost(arm)
        return found.long_carry_over(body, self._of[arm].reference(body), alpha)

    def outlasts(self, arm: int, margin_us: float, family: int) -> bool:
        """Whether an effect on more than the next transaction is shown, and matters.

        By runs, or by the second lag of the regression; at 5 % over the arms of the family and
        both ways (Bonferroni). It matters if it exceeds the margin or a tenth of the body.
        """
        alpha = SHOWN_ALPHA / max(family, 1) / 2
        second = self._of[arm].interval(self._of[arm].second_lag(arm), alpha)
        return self._matters(second, arm, margin_us) or self._matters(
            self.long_carry_over_us(arm, alpha), arm, margin_us
        )

    def _matters(self, found: Estimate | None, arm: int, margin_us: float) -> bool:
        if found is None or not (found.lo > 0 or found.hi < 0):
            return False
        body = abs(self._of[arm].body_cost(arm).value)
        return abs(found.estimate) > min(margin_us, WORTH_SAYING * body)

    def evidence(self, arm: int, margin: Expansion, family: int) -> Lasting:
        """What the verdict on an arm rests on."""
        runs, alpha = self.by_runs(arm), SURE_ALPHA / max(family, 1)
        return Lasting(
            reach=REACH,
            runs=runs.interval(alpha),
            under=runs.against(margin, EQUIVALENCE_ALPHA),
            over=runs.against(margin.scaled(-1), EQUIVALENCE_ALPHA),
            outlasts=self.outlasts(arm, margin.value, family),
            surely=self._matters(self.long_carry_over_us(arm, alpha), arm, margin.value),
            factor=runs.factor(margin.value),
        )
