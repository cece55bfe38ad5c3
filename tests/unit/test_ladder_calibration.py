"""Thousands of simulated studies: coverage, family-wise error and the size of equivalence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pgtare.estimate.inference import holm
from pgtare.estimate.study import rounds as estimate
from tests.unit.estimate_textbook import clopper_pearson
from tests.unit.simulated_study import rounds

#: What was injected, as shares of the speed; "VAN again" is the floor.
EFFECTS = {"VAN": 0.0, "VAN again": 0.0, "STB": 0.0, "OFF": -0.003, "STA": -0.01, "TRA": -0.03}
PAIRS = tuple((arm, "VAN") for arm in ("STB", "OFF", "STA", "TRA"))  # a base they share
WORKLOADS = 3
ROUNDS = 12
LEVEL = 0.99
#: A two-sided check of a correct estimator may fail once in 10,000.
COVERAGE_LEVEL = 0.9999
MARGIN = 0.005
#: Of the 2^12 flips so many are cut off on either side of a 95 % interval.
EXACT_COVERAGE = 1 - 2 * math.floor(0.025 * 2**ROUNDS) / 2**ROUNDS


def _too_often(hits: int, trials: int) -> bool:
    """A one-sided claim of 5 % fails only where the lower 99 % bound exceeds it."""
    return clopper_pearson(hits, trials, LEVEL)[0] > 0.05


def _check(studies: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    covered = dict.fromkeys((*PAIRS, ("VAN again", "VAN")), 0)
    found = dict.fromkeys(PAIRS, 0)
    wrong = equivalent = 0
    for _ in range(studies):
        log = rounds(EFFECTS, ROUNDS, rng)
        for arm, base in covered:
            flips = estimate.Flips(log[arm] - log[base])
            truth = math.log1p(EFFECTS[arm]) - math.log1p(EFFECTS[base])
            lo, hi = flips.interval()
            covered[arm, base] += lo <= truth <= hi
            if (arm, base) in found:
                found[arm, base] += flips.p() < 0.05
        # no effect anywhere: does any comparison of the family claim one?
        p_values = []
        for _ in range(WORKLOADS):
            null = rounds(dict.fromkeys(EFFECTS, 0.0), ROUNDS, rng)
            p_values += [estimate.Flips(null[arm] - null[base]).p() for arm, base in PAIRS]
        wrong += min(holm(p_values)) < 0.05
        # an effect just at the margin must not be called equivalent
        edge = rounds({"a": 0.0, "b": MARGIN}, ROUNDS, rng)
        high = math.log1p(MARGIN)
        flips = estimate.Flips(edge["b"] - edge["a"])
        equivalent += flips.equivalence_p(-high, high) <= 0.05
    for pair, hits in covered.items():
        lo, hi = clopper_pearson(hits, studies, COVERAGE_LEVEL)
        assert lo <= EXACT_COVERAGE <= hi, (pair, hits / studies)
    assert not _too_often(wrong, studies), wrong / studies
    assert not _too_often(equivalent, studies), equivalent / studies
    rates = {f"covered {arm} - {base}": hits / studies for (arm, base), hits in covered.items()}
    rates |= {f"p < .05 {arm} - {base}": hits / studies for (arm, base), hits in found.items()}
    return rates | {"family-wise error": wrong / studies, "TOST size": equivalent / studies}


def test_a_few_hundred_studies() -> None:
    rates = _check(250, 11)
    assert rates["p < .05 TRA - VAN"] > 0.9  # 3 % is found
    assert rates["p < .05 STB - VAN"] < 0.12


@pytest.mark.slow
def test_four_thousand_studies(capsys: pytest.CaptureFixture[str]) -> None:
    rates = _check(4_000, 12)
    with capsys.disabled():
        for name, rate in rates.items():
            print(f"{name}: {100 * rate:.2f} %")
