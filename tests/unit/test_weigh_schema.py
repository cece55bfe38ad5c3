"""The result document follows its schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from pgtare.weighing.weigh.schema import WeighResult
from tests.unit.sample_result import sample

SCHEMA: dict[str, Any] = WeighResult.model_json_schema(by_alias=True)


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(sample().result.to_json())
    return loaded


def test_a_result_follows_the_schema() -> None:
    jsonschema.validate(document(), SCHEMA)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("fault", ["verdict", "unknown", "missing", "schema"])
def test_the_schema_refuses_what_does_not_follow_it(fault: str) -> None:
    broken = document()
    if fault == "verdict":
        broken["arms"][2]["verdict"] = "free"
    elif fault == "unknown":
        broken["arms"][2]["surprise"] = 1
    elif fault == "missing":
        del broken["design"]["seed"]
    else:
        broken["schema"] = "pgtare.weigh/2"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)
