"""docs/json.md names every field that the commands of `pgtare trace` print."""

import dataclasses
import re
from pathlib import Path

import pytest

from pgtare.trace import merge, owners, profile, record, standing, statements

SECTION = (
    (Path(__file__).parents[2] / "docs" / "json.md")
    .read_text(encoding="utf-8")
    .split("## `pgtare trace`\n")[1]
    .split("\n## ")[0]
)


@pytest.mark.parametrize(
    "printed",
    [
        record.Recorded, standing.Standing, standing.Session, standing.Setting, owners.Recorder,
        profile.Line, merge.Client, statements.Statement, statements.CallSum,
        statements.WaitSum, statements.Plan, statements.NodeSum,
    ],
)  # fmt: skip
def test_every_field_is_named(printed: type) -> None:
    named = set(re.findall(r"`([a-z_]+)`", SECTION))
    assert {field.name for field in dataclasses.fields(printed)} - named == set()
