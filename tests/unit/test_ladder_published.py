"""The published table: what stands and what does not, and the counting behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.estimate import published as estimate
from pgtare.ladder import published

R1 = Path(__file__).parents[2] / "studies" / "r1_published.toml"


def test_what_stands_of_the_published_table() -> None:
    found = published.judge(published.read(R1))
    assert [claim.stands for claim in found.claims] == [
        False, False, False, False, True, False, False,
    ]  # fmt: skip
    by_text = {claim.text: claim.why for claim in found.claims}
    assert "largest point estimate (0.74 %)" in by_text["0.75 % is an upper bound"]
    assert "p = 2 × (1/3)^3 = .074" in by_text["all six deltas are negative, sign test p = .031"]
    assert all(e.attainable_p == 0.0625 for e in found.effects)
    assert all(e.mde_pct is None for e in found.effects)  # five rounds find nothing over twelve


def test_one_sign_counts_shared_bases_once() -> None:
    assert estimate.one_sign_p([2, 2, 2]) == pytest.approx(2 / 27)
    assert estimate.one_sign_p([1] * 6) == pytest.approx(2 / 64)


def test_a_recovered_error_gives_back_its_p() -> None:
    from scipy import special

    se = estimate.recovered_se(-0.55, 0.25, 5)
    assert 2 * special.stdtr(4, -0.55 / se) == pytest.approx(0.25)
    assert estimate.half_width(se, 5) == pytest.approx(2.7764 * se, rel=1e-4)


def test_counts_and_spreads() -> None:
    assert estimate.sign_p(10, 10) == 2 / 1024
    assert estimate.sign_p(4, 5) == pytest.approx(0.375)
    low, high = estimate.spread_interval(0.328, 6)
    assert (round(low, 2), round(high, 2)) == (0.20, 0.80)


def test_mistakes_are_told_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    text = R1.read_text().replace('["W1 stub"', '["W9 stub"', 1)
    path.write_text(text)
    with pytest.raises(UsageError, match="names the effect 'W9 stub', which is absent"):
        published.read(path)
    path.write_text("title = 1\n")
    with pytest.raises(UsageError, match="line 1"):
        published.read(path)
