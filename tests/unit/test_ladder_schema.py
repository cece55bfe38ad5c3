"""A study's result follows its schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from pgtare.weighing.ladder.result import LadderResult
from tests.unit.simulated_study import analysed, runs, study

SCHEMA: dict[str, Any] = LadderResult.model_json_schema(by_alias=True)


@pytest.fixture(scope="module")
def result() -> LadderResult:
    """A study with a round dropped."""
    found = study()
    made = runs(found, {"trace": -0.02})
    key = "W1-002-1"
    made[key] = made[key].model_copy(update={"failed": ("the clock stepped by +900 ms",)})
    return analysed(found, made)


def test_a_result_follows_the_schema_and_comes_back_as_it_was(result: LadderResult) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(result.to_json()), SCHEMA)
    assert LadderResult.model_validate_json(result.to_json()).to_json() == result.to_json()


@pytest.mark.parametrize("fault", ["verdict", "unknown", "missing", "schema"])
def test_the_schema_refuses_what_does_not_follow_it(result: LadderResult, fault: str) -> None:
    broken = json.loads(result.to_json())
    if fault == "verdict":
        broken["workloads"][0]["compared"][0]["verdict"] = "free"
    elif fault == "unknown":
        broken["workloads"][0]["compared"][0]["surprise"] = 1
    elif fault == "missing":
        del broken["workloads"][0]["floor"]["effect"]
    else:
        broken["schema"] = "pgtare.ladder/2"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_every_part_of_the_schema_occurs_in_a_result(result: LadderResult) -> None:
    document = json.loads(result.to_json())
    workload = document["workloads"][0]
    assert workload["dropped"]
    assert workload["waits"]
    assert workload["compared"][0]["other_metrics"]
