"""Reports and results follow their schemas, which refuse what does not, and come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
import pytest

from pgtare.observing.clock.schema import ClockReport
from pgtare.weighing.ladder.result import LadderResult
from pgtare.weighing.weigh.schema import WeighResult
from tests.unit import sample_clock_report, sample_result
from tests.unit.simulated_study import analysed, runs, study

Document = ClockReport | LadderResult | WeighResult


@cache
def ladder() -> LadderResult:
    """A study with a round dropped."""
    found = study()
    made = runs(found, {"trace": -0.02})
    key = "W1-002-1"
    made[key] = made[key].model_copy(update={"failed": ("the clock stepped by +900 ms",)})
    return analysed(found, made)


#: How a document is made; where it has a verdict; and what it must have.
MADE: dict[str, tuple[Callable[[], Document], list[Any], list[Any]]] = {
    "clock": (sample_clock_report.sample, ["diagnosis", "verdict"], ["clocks", 0, "read_ns"]),
    "weigh": (
        lambda: sample_result.sample().result,
        ["arms", 2, "answer", "verdict"],
        ["design", "seed"],
    ),
    "ladder": (
        ladder,
        ["workloads", 0, "compared", 0, "verdict"],
        ["workloads", 0, "floor", "effect"],
    ),
}


@cache
def schema(kind: type[Document]) -> dict[str, Any]:
    return kind.model_json_schema(by_alias=True)


@pytest.mark.parametrize("name", MADE)
def test_a_document_follows_its_schema_and_comes_back_as_it_was(name: str) -> None:
    made = MADE[name][0]()
    jsonschema.validate(json.loads(made.to_json()), schema(type(made)))
    assert type(made).model_validate_json(made.to_json()).to_json() == made.to_json()


@pytest.mark.parametrize("fault", ["verdict", "unknown", "missing", "schema"])
@pytest.mark.parametrize("name", MADE)
def test_the_schema_refuses_what_does_not_follow_it(name: str, fault: str) -> None:
    make, verdict, required = MADE[name]
    made = make()
    broken = json.loads(made.to_json())

    def place(path: list[Any]) -> Any:
        """What holds the last of these keys."""
        found = broken
        for key in path[:-1]:
            found = found[key]
        return found

    if fault == "verdict":
        place(verdict)[verdict[-1]] = "superb"
    elif fault == "unknown":
        place(verdict)["surprise"] = 1
    elif fault == "missing":
        del place(required)[required[-1]]
    else:
        broken["schema"] = f"pgtare.{name}/9"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema(type(made)))


def test_the_ladders_result_has_what_only_some_studies_have() -> None:
    workload = json.loads(ladder().to_json())["workloads"][0]
    assert workload["dropped"]
    assert workload["waits"]
    assert workload["compared"][0]["other_metrics"]
