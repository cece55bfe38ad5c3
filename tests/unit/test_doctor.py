"""The doctor's arithmetic and patterns, without a server."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pgtare.cli.doctor import read_weights
from pgtare.doctor import churn, evictions, queries, sweep
from pgtare.doctor.read import Entries, Samples, preload
from tests.unit.sample_result import sample

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DOCS = Path(__file__).parents[2] / "docs" / "pgss-evictions.md"


def texts(*lines: str, calls: int = 1) -> list[tuple[int, str, int]]:
    return [(i, line, calls) for i, line in enumerate(lines)]


def only(found: list[churn.Family]) -> churn.Family:
    (family,) = found
    return family


def test_temporary_tables_are_told_by_their_making() -> None:
    lines = ["CREATE TEMP TABLE work (a int)", *["SELECT a FROM work WHERE a = $1"] * 12]
    family = only(churn.families(texts(*lines)))
    assert (family.kind, family.members) == ("temporary tables", 12)


def test_one_text_of_many_identities() -> None:
    family = only(churn.families(texts(*["SELECT a FROM orders WHERE a = $1"] * 12, calls=3)))
    assert family.kind == "tables made anew, or one text in many schemas"
    assert (family.members, family.calls) == (12, 36)


def test_lists_of_values() -> None:
    lines = [
        f"SELECT * FROM t WHERE a IN ({', '.join(f'${i + 1}' for i in range(n))})"
        for n in range(1, 14)
    ]
    found = churn.families(texts(*lines))
    assert found[0].kind == "lists of values"
    assert found[0].members >= 12
    rows = [
        f"INSERT INTO t VALUES {', '.join(['($1, $2)'] * n)}" for n in range(2, 14)
    ]  # as many rows as came together
    assert only(churn.families(texts(*rows))).kind == "lists of values"


def test_lists_longer_than_what_is_fetched() -> None:
    """Cut texts are alike, which does not make them one text of many tables."""
    for first in (2, 250):
        rows = [
            f"INSERT INTO t VALUES {', '.join(f'(${2 * i + 1}, ${2 * i + 2})' for i in range(n))}"
            for n in range(first, 300)
        ]
        cut = [text[: queries.TEXT_CHARACTERS] for text in rows]
        family = only(churn.families(texts(*cut)))
        assert (family.kind, family.members) == ("lists of values", 300 - first)
    long = "SELECT a FROM orders WHERE b = $1 AND " + "x" * queries.TEXT_CHARACTERS
    same = texts(*[long[: queries.TEXT_CHARACTERS]] * 12)
    assert only(churn.families(same)).kind.startswith("tables made anew")


def test_numbered_names() -> None:
    family = only(churn.families(texts(*[f"SELECT $1 FROM t{n}" for n in range(50)])))
    assert (family.kind, family.members) == ("numbered names", 50)
    assert family.pattern == "SELECT ? FROM t#"


def test_schemas() -> None:
    names = [f"{a}{b}" for a in "abcd" for b in "xyz"]
    lines = [f"SELECT total FROM {name}.orders WHERE id = $1" for name in names]
    assert only(churn.families(texts(*lines))).kind == "schemas"


def test_utility_statements_and_comments() -> None:
    lines = [f"SAVEPOINT sp_{n}" for n in range(20)]
    assert only(churn.families(texts(*lines))).kind == "utility statements"
    lines = [f"/* request {n} */ FETCH ALL FROM c" for n in range(20)]
    assert only(churn.families(texts(*lines))).kind == "utility statements"
    lines = [f"/* request {n} */ SELECT a FROM t" for n in range(20)]
    assert only(churn.families(texts(*lines))).kind == "comments"


def test_unlike_statements_are_no_family() -> None:
    words = ("alpha", "beta", "gamma", "delta", "eps", "zeta", "eta", "theta", "iota", "kappa")
    lines = [f"SELECT {a} FROM {b}" for a in words[:5] for b in words[5:]]
    assert churn.families(texts(*lines)) == []


def test_every_kind_has_a_remedy() -> None:
    kinds = {"temporary tables", "utility statements", *(kind for kind, _ in churn._STEPS)}
    named = kinds - {"identical", "literals"}
    assert named | {"tables made anew, or one text in many schemas"} == set(churn.REMEDIES)


def test_sweeps_of_sizes_between_those_measured() -> None:
    for size, us in sweep.MEASURED_US.items():
        assert sweep.sweep_s(size) == pytest.approx(us / 1e6)
    assert sweep.sweep_s(100) < sweep.sweep_s(200) < sweep.sweep_s(400)
    assert sweep.sweep_s(100_000) > 1.5 * sweep.sweep_s(50_000)
    assert (sweep.victims(100), sweep.victims(200), sweep.victims(5000)) == (10, 10, 250)
    rate = sweep.ONE_PERCENT_EVICTED_S[1000]
    assert sweep.lost(1000, rate) == pytest.approx(0.01)


def test_the_figures_are_those_of_the_documentation() -> None:
    page = DOCS.read_text()
    for table, column in ((sweep.MEASURED_US, 2), (sweep.ONE_PERCENT_EVICTED_S, 7)):
        for size, value in table.items():
            rows = re.findall(rf"^\| {size:,} \|.*$", page, re.MULTILINE)
            cells = [row.strip("|").split("|") for row in rows]
            shown = [c[column].strip().replace(",", "") for c in cells if len(c) > column]
            assert f"{value:.0f}" in shown, (size, value, shown)


def entries(calls: dict[int, int], seconds: float = 0.0) -> Entries:
    return Entries(
        NOW + timedelta(seconds=seconds), {(1, 1, key): n for key, n in calls.items()}, 0
    )


def test_entries_that_vanished_or_began_anew_were_evicted() -> None:
    first = entries({1: 5, 2: 5, 3: 5})
    last = entries({1: 6, 2: 1, 4: 1}, 1.0)
    assert evictions.gone(first, last) == 2


def test_circulation_by_capture_and_recapture() -> None:
    # two random hundreds of 200 have about 50 in common
    first, last = entries(dict.fromkeys(range(100), 1)), entries(dict.fromkeys(range(50, 150), 1))
    assert evictions.circulating(first, last, Samples()) == pytest.approx(200, rel=0.02)
    apart = entries(dict.fromkeys(range(1000, 1100), 1))
    assert evictions.circulating(first, apart, Samples()) == math.inf
    many = Samples(statements={(1, 1, key) for key in range(400)})
    assert evictions.circulating(first, last, many) == 400


def test_libraries_that_are_loaded_stay_so_each_in_its_own_quotes() -> None:
    told = preload({"shared_preload_libraries": 'auto_explain, "/opt/my lib"'})
    assert "= 'auto_explain', '/opt/my lib', 'pg_stat_statements';" in told
    assert "= 'pg_stat_statements';" in preload({"shared_preload_libraries": ""})
    assert "SHOW" in preload({})


def test_names_are_quoted_where_they_must_be() -> None:
    assert [queries.quoted(n) for n in ("app_1", "app-1", 'a"B')] == ["app_1", '"app-1"', '"a""B"']


def test_costs_come_from_weighings(tmp_path: Path) -> None:
    result = sample().result
    path = tmp_path / "weighed.json"
    path.write_text(result.to_json())
    weights = read_weights([path])
    arms = {arm.name: arm for arm in result.arms if arm.role == "instrument"}
    assert weights
    assert weights.keys() <= arms.keys()
    for name, weight in weights.items():
        effect = arms[name].effect
        assert effect is not None
        assert weight.cost_us == effect.body_us.estimate
        assert weight.cost_pct == effect.body_pct.estimate
        assert str(path) in weight.source
