"""The report on the clocks follows its schema, and docs/json.md describes every field of it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from pgtare.clock.schema import ClockReport
from tests.unit.clock_tools import sample
from tests.unit.schema_docs import assert_documented, silent_fields

SCHEMA: dict[str, Any] = ClockReport.model_json_schema(by_alias=True)
DOCS = "clock-json.md"
HEADINGS = {
    "ClockReport": "The document",
    "Diagnosis": "`diagnosis`",
    "Choice": "`diagnosis.postgres19`",
    "ClockResult": "An element of `clocks`",
    "Bucket": "An element of `histogram`",
    "Exact": "An element of `exact`",
    "Frequency": "`frequency`",
    "Stated": "An element of `stated`",
    "Cores": "`cores`",
    "CoreOffset": "An element of `pairs`",
    "Gaps": "`gaps`",
    "Cause": "An element of `causes`",
    "Gap": "An element of `longest`",
    "Meaning": "An element of `meaning`",
    "Span": "A likely value between bounds",
    "PlanTiming": "`plan`",
    "TimedNode": "An element of `plan.nodes`",
    "MeasuredTiming": "`plan.measured`",
    "Middle": "A median with its interval",
}


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(sample().to_json())
    return loaded


def test_a_report_follows_the_schema_and_comes_back_as_it_was() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document(), SCHEMA)
    assert ClockReport.model_validate_json(sample().to_json()) == sample()


def test_a_report_of_before_plans_and_bounds_is_still_read() -> None:
    old = document()
    del old["plan"], old["meaning"][0]["cost_ns"]
    found = ClockReport.model_validate_json(json.dumps(old))
    assert (found.plan, found.meaning[0].cost_ns) == (None, None)


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


def test_the_docs_describe_exactly_the_fields_of_the_schema() -> None:
    assert_documented(SCHEMA, DOCS, HEADINGS)


def test_every_field_of_the_schema_says_what_it_is() -> None:
    assert silent_fields(SCHEMA) == []
