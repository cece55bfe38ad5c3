"""The report on the clocks follows its schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from pgtare.seeing.clock.schema import ClockReport
from tests.unit.sample_clock_report import sample

SCHEMA: dict[str, Any] = ClockReport.model_json_schema(by_alias=True)


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(sample().to_json())
    return loaded


def test_a_report_follows_the_schema_and_comes_back_as_it_was() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document(), SCHEMA)
    assert ClockReport.model_validate_json(sample().to_json()) == sample()


@pytest.mark.parametrize("fault", ["verdict", "unknown", "missing", "schema"])
def test_the_schema_refuses_what_does_not_follow_it(fault: str) -> None:
    broken = document()
    if fault == "verdict":
        broken["diagnosis"]["verdict"] = "superb"
    elif fault == "unknown":
        broken["clocks"][0]["surprise"] = 1
    elif fault == "missing":
        del broken["clocks"][0]["read_ns"]
    else:
        broken["schema"] = "pgtare.clock/2"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)
