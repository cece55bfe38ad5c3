"""What is asked of a trial's observations, whatever its unit: margin, proof, family of tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pgtare.estimate.inference import NAN, holm
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.verdict import Control

#: The body's share of an arm's error if its total is tested as well; the total has the rest. The
#: body is what most verdicts rest on, and a total that decides one is mostly far from zero.
BODY_SHARE = 0.8


@dataclass(frozen=True)
class Tests:
    """Adjusted p-values of one arm's body and total."""

    body: float
    total: float  # NaN if the total is not judged
    share: float  # the body's share of the arm's error

    @property
    def smallest(self) -> float:
        """Of "neither body nor total differs from zero"; NaN without any."""
        known = [p for p in (self.body, self.total) if p == p]
        return min(known, default=NAN)


@dataclass(frozen=True)
class Question:
    """The arguments of `analyse`, which explains them."""

    design: Design
    margin: float = 0.005
    proven: Mapping[str, bool] = field(default_factory=dict)
    peeked: bool = False
    ended_early: str = ""
    decides: bool = False

    @cached_property
    def family(self) -> list[int]:
        """The arms tested as one family: the control and injected arms are outside it."""
        return [i for i, arm in enumerate(self.design.arms) if arm.role == "instrument"]

    def tests(self, body: Sequence[float], total: Sequence[float]) -> dict[int, Tests]:
        """Every arm's adjusted p-values, from those of all arms' bodies and totals.

        Weighted Holm over the bodies and totals of the family together, and of each other arm by
        itself. An arm whose total is not judged has all its weight on the body.
        """
        outside = [[i] for i in range(1, len(self.design.arms)) if i not in self.family]
        found: dict[int, Tests] = {}
        for arms in [self.family, *outside]:
            shares = [BODY_SHARE if total[arm] == total[arm] else 1.0 for arm in arms]
            p_values = [*(body[arm] for arm in arms), *(total[arm] for arm in arms)]
            adjusted = holm(p_values, [*shares, *(1 - share for share in shares)])
            for k, arm in enumerate(arms):
                found[arm] = Tests(adjusted[k], adjusted[len(arms) + k], shares[k])
        return found

    def control(
        self, tests: Mapping[int, Tests], costs: Callable[[int], tuple[float, float]]
    ) -> Control | None:
        """The control that is farthest off, None if the design has none.

        One that cannot be judged (p NaN) comes first: it clears nothing. costs: body and total of
        an arm, in microseconds.
        """
        found = [
            Control(tests[i].smallest, *costs(i))
            for i, arm in enumerate(self.design.arms)
            if arm.role == "control"
        ]
        return min(found, key=lambda c: c.p if c.p == c.p else -1.0, default=None)
