"""The published table: what is supported and what is not, and the counting behind it."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pgtare.errors import UsageError
from pgtare.estimate.study import published as estimate
from pgtare.estimate.study.rounds import Flips
from pgtare.weighing.ladder import published, published_table
from pgtare.weighing.ladder.published_claims import Judged

R1 = Path(__file__).parents[2] / "studies" / "r1_published.toml"


def test_what_is_supported_of_the_published_table() -> None:
    found = published.judge(published_table.read(R1))
    assert [number for number, claim in enumerate(found.claims) if claim.supported] == [4]
    assert len(found.claims) == 7
    by_text = {claim.text: claim.why for claim in found.claims}
    assert "estimate of a cost is 0.74 %" in by_text["0.75 % is an upper bound"]
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


def _judged(*lines: str, claim: str, effects: str = "abcdefgh") -> Judged:
    """The claim on a table of one line an effect, by name from a on."""
    table = [
        f'[[effect]]\nid = "{name}"\nbase = "off"\narm = "x"\n{line}'
        for name, line in zip(effects, lines, strict=False)
    ]
    names = ", ".join(f'"{name}"' for name in effects[: len(lines)])
    text = 'title = "t"\nsource = "s"\ncomparisons = 1\n' + "\n".join(table)
    text += f'\n[[claim]]\ntext = "c"\neffects = [{names}]\n{claim}\n'
    document = tomllib.loads(text)
    (found,) = published.judge(published_table.Published.model_validate(document)).claims
    return found


LATENCY = 'regime = "W1"\nrounds = 10\npct = 1.5\np = 0.01\nbetter = "lower"'
BOUND = 'kind = "upper_bound"\nbound_pct = 1.0'


def test_more_latency_is_a_cost() -> None:
    slower = _judged(LATENCY, claim=BOUND)
    assert not slower.supported
    assert "point estimate of a cost is 1.50 %" in slower.why
    faster = _judged(LATENCY.replace("1.5", "-1.5"), claim=BOUND)
    assert faster.supported
    assert _judged(LATENCY.replace('better = "lower"', ""), claim=BOUND).supported  # throughput


def test_effects_without_a_p_have_no_bound_and_no_traceback() -> None:
    bare = 'regime = "W1"\nrounds = 5\npct = -0.1'
    for claim in (BOUND, 'kind = "no_effect"'):
        assert not _judged(bare, claim=claim).supported
    mixed = _judged(bare, LATENCY.replace("1.5", "-9"), claim=BOUND)
    assert not mixed.supported
    assert "1 of 2 have no p-value" in mixed.why


def test_one_sign_is_reported_as_it_is() -> None:
    def row(regime: str, pct: float) -> str:
        return f'regime = "{regime}"\nrounds = 5\npct = {pct}'

    rows = [row("W1", 0.4), row("W1", 0.3), row("W1", 0.2), row("W2", 0.1)]
    found = _judged(*rows, claim='kind = "one_sign"\np = 0.1')
    assert "are positive exactly if the base came out lowest" in found.why
    assert "p = 2 × (1/2)^1 × (1/4)^1 = .25" in found.why
    mixed = _judged(*rows, row("W3", -0.1), claim='kind = "one_sign"\np = 0.1')
    assert mixed.why == "they do not have one sign."


def test_a_claim_of_effects_names_some(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(R1.read_text().replace('["W1 stub", "W2 stub", "W3 stub"]', "[]"))
    with pytest.raises(UsageError, match="effects: "):
        published_table.read(path)


def test_errors_recovered_from_a_few_flips_are_a_range_that_holds_the_true_one() -> None:
    rng = np.random.default_rng(8)
    inside = by_t = studies = 0
    for _ in range(3_000):
        flips = Flips(rng.normal(rng.normal(0, 1), 1, 5))
        if (p := round(flips.p(), 2)) >= 1:
            continue
        studies += 1
        low, high = estimate.recovered_range(flips.mean, p, 5)
        inside += low <= flips.se <= high
        by_t += abs(estimate.recovered_se(flips.mean, p, 5) / flips.se - 1) < 0.1
    assert 0.87 < inside / studies < 0.93
    assert by_t / studies < 0.7  # one value would often be another by a tenth and more
    # sign flips of five rounds have no p = .3: it is another test's
    assert len(set(estimate.recovered_range(1.0, 0.3, 5))) == 1
    low, high = estimate.recovered_range(1.0, 0.81, 5)
    assert high > 1.3 * low


def test_counts_and_spreads() -> None:
    assert estimate.sign_p(10, 10) == 2 / 1024
    assert estimate.sign_p(4, 5) == pytest.approx(0.375)
    low, high = estimate.spread_interval(0.328, 6)
    assert (round(low, 2), round(high, 2)) == (0.20, 0.80)


def test_mistakes_are_reported_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    text = R1.read_text().replace('["W1 stub"', '["W9 stub"', 1)
    path.write_text(text)
    with pytest.raises(UsageError, match="names the effect 'W9 stub', which is absent"):
        published_table.read(path)
    path.write_text("title = 1\n")
    with pytest.raises(UsageError, match="line 1"):
        published_table.read(path)


def test_mistakes_of_a_table_of_ones_own_are_reported_in_words(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    head = 'title = "t"\nsource = "s"\ncomparisons = 1\n'
    effect = '[[effect]]\nid = "a"\nregime = "r"\narm = "x"\nbase = "y"\npct = 1.0\nrounds = 9\n'
    path.write_text(head + effect)
    assert published_table.read(path).claim == ()
    for text, message in (
        (head + effect + "round = 9\n", r"unknown key 'round' \(did you mean rounds\?\)"),
        (head.replace("comparisons = 1", "") + effect, "comparisons is missing"),
        (
            head + effect + '[[claim]]\nkind = "no_efect"\ntext = "t"\neffects = ["a"]\n',
            "there is no claim of kind 'no_efect': it is one of upper_bound, one_sign, no_effect",
        ),
        (head + effect + '[[claim]]\ntext = "t"\n', "the claim lacks its kind"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            published_table.read(path)


def test_a_narrow_terminal_has_the_effects_whole() -> None:
    found = published.judge(published_table.read(R1))
    for width in (20, 40, 80):
        shown = io.StringIO()
        published.show(found, Console(file=shown, width=width))
        output = shown.getvalue()
        assert "−0.07" in output
        assert "…" not in output
