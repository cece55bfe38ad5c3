"""What an instrument costs is one answer: the same number wherever one recording is shown."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pgtare.kit import numbers
from pgtare.weighing.fleet.reestimation import report as fleet_report
from pgtare.weighing.fleet.server_estimate import estimate_server
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.schema import Answer, interval
from tests.commands import in_process
from tests.unit.sample_result import sample


class Kept(NamedTuple):
    """A recording in a fleet of one server, and its answers by the names of instruments."""

    directory: Path
    fleet: Path
    answers: dict[str, Answer]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    fleet = tmp_path_factory.mktemp("answers") / "fleet"
    directory = fleet / "servers" / "db1"
    directory.parent.mkdir(parents=True)
    drawn = sample()
    # of a server's own traffic: a bill counts no load of pgtare's
    result = drawn.result.model_copy(update={"load": {"kind": "none", "application": "*"}})
    store.save(directory, drawn.design, drawn.observations, result)
    found = {arm.name: arm.answer for arm in result.arms if arm.role == "instrument"}
    assert len(found) == 4
    return Kept(directory, fleet, {name: one for name, one in found.items() if one is not None})


def ran(*arguments: object) -> str:
    done = in_process(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(answer: Answer) -> list[str]:
    """Its figures, as tables have them."""
    return [numbers.estimate(answer.us), numbers.bounds(answer.us), numbers.estimate(answer.pct)]


def cells(line: str) -> list[str]:
    return re.split("  +", line.strip())


@pytest.mark.parametrize("details", [(), ("--details",)])
def test_the_terminal_says_it(kept: Kept, details: tuple[str, ...]) -> None:
    lines = ran("report", kept.directory, "--html", kept.fleet / "page.html", *details).splitlines()
    for name, answer in kept.answers.items():
        row, *others = [cells(line) for line in lines if line.startswith(f"{name}  ")]
        assert len(others) == len(details)  # of other figures
        assert row[1:4] == shown(answer)
        if details:
            text = " ".join(" ".join(lines).split())
            us, bounds, pct = shown(answer)
            assert f"{name}: {us} µs {bounds}, {pct} %: " in text


def test_the_page_says_it(kept: Kept) -> None:
    page = kept.fleet / "page.html"
    ran("report", kept.directory, "--html", page)
    text = page.read_text(encoding="utf-8").replace("<wbr>", "").replace("\u00a0", " ")
    for name, answer in kept.answers.items():
        (row,) = re.findall(f'<th scope="row" role="rowheader">{name}</th>(.*?)</tr>', text, re.S)
        assert re.findall("<td[^>]*>(.*?)</td>", row)[:3] == shown(answer)
    (figures,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S)
    (chart,) = [one for one in json.loads(figures) if "effects" in json.dumps(one)[:300]]
    drawn = next(one["x"] for one in chart["data"])
    for answer in kept.answers.values():
        assert any(math.isclose(x, answer.us.estimate or 0.0, abs_tol=1e-3) for x in drawn)


def test_the_document_says_it(kept: Kept) -> None:
    for document in (
        json.loads((kept.directory / store.RESULT_FILE).read_text()),
        json.loads(ran("report", kept.directory, "--html", kept.fleet / "again.html", "--json")),
    ):
        found = {arm["name"]: arm["answer"] for arm in document["arms"]}
        for name, answer in kept.answers.items():
            assert Answer.model_validate(found[name]) == answer


def test_the_bill_says_it(kept: Kept) -> None:
    found: dict[str, Any] = json.loads(ran("bill", kept.directory, "--json"))
    lines = {line["name"]: line for line in found["lines"]}
    for name, answer in kept.answers.items():
        assert lines[name]["cost_us"] == answer.us.model_dump()
        cores = lines[name]["amount"]["cores"]["estimate"]
        per_s = lines[name]["transactions_per_s"]
        assert cores == pytest.approx((answer.us.estimate or 0.0) * per_s / 1e6)


def test_the_fleet_says_it(kept: Kept) -> None:
    figures = {arm.name: arm for arm in estimate_server("db1", kept.directory).arms}
    combined = {arm.name: arm for arm in fleet_report(kept.fleet).arms}
    printed = ran("fleet", "report", kept.fleet).splitlines()
    for name, answer in kept.answers.items():
        assert (interval(figures[name].us), interval(figures[name].pct)) == (answer.us, answer.pct)
        (server,) = combined[name].servers
        assert (server.us, server.pct, server.verdict) == (answer.us, answer.pct, answer.verdict)
        us, bounds, pct = shown(answer)
        assert any({us, bounds, pct} <= set(cells(line)) for line in printed), name


def test_none_of_them_is_another_of_the_estimates(kept: Kept) -> None:
    """The total reads otherwise, or these tests would show nothing."""
    result = store.load_result(kept.directory / store.RESULT_FILE)
    for arm in result.arms:
        if arm.name in kept.answers:
            assert arm.effect is not None
            total = arm.effect.total_us
            other = [numbers.estimate(total), numbers.bounds(total)]
            assert shown(kept.answers[arm.name])[:2] != other
