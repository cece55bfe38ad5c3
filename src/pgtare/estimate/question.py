"""What is asked of a trial's observations, whatever its unit: margin, proof, family of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pgtare.design import Design
from pgtare.estimate.inference import holm


@dataclass(frozen=True)
class Question:
    """The arguments of `analyse`, which explains them."""

    design: Design
    margin: float
    proven: Mapping[str, bool]
    peeked: bool
    ended_early: str
    seed: int

    @cached_property
    def family(self) -> list[int]:
        """The arms tested as one family: the control and injected arms stand outside it."""
        return [i for i, arm in enumerate(self.design.arms) if arm.role == "instrument"]

    def adjusted(self, p_values: Sequence[float]) -> dict[int, float]:
        """Holm's p-values of the family by arm, from those of all arms."""
        found = holm([p_values[arm] for arm in self.family])
        return dict(zip(self.family, found, strict=True))
