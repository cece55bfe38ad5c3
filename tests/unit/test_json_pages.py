"""Every JSON document has a schema, fields that say what they are, and its place in the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import typer

from pgtare import cli
from pgtare.cli import commands
from tests.json_documents import documents

#: A unit in full or by another sign than those that json.md names, or a unit and nothing else.
WRONG_UNIT = re.compile(
    r"(^|_)(seconds|millis|micros|nanos|msec|usec|nsec|sec|percent)(_|$)|^(s|ms|us|ns)$|^queryid$"
)
#: What an answer says, in the units of its table.
#: `since` of a finding is when it was first seen: nothing was started then.
UNITS_ALONE = {"Answer.us", "ServerArm.us", "Finding.since", "KeptFinding.since"}
#: Another name of what documents call lo, hi, max_, p, p_adjusted, or started.
OTHER_NAME = re.compile(
    r"(^|_)(low|high|lower|upper|least)(_(s|ms|us|ns|pct))?$|^longest_(s|ms|us|ns)$"
    r"|^p_(value|holm)$|^(began|begun|since)$"
)
UNIT = re.compile(r"_(s|ms|us|ns|pct|ppm|bytes|hz|tps)$")
TIME = re.compile(r"\b(times?|seconds|length|age|lasted|how long)\b")
#: Numbers without a unit whose descriptions speak of time.
NO_TIME = re.compile(r"\bshare\b|from 0 to 1|^sessions|^times that|how often")


def models(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every model of a schema by its name, the document's own among them."""
    found = {schema["title"]: schema, **schema.get("$defs", {})}
    return {name: one for name, one in found.items() if "enum" not in one}


#: The snapshot is a document in itself, and its file an argument.
NO_OUTPUT = {"waits snapshot"}
#: What is said to people: what was done, whether something can be used, how far it is, a page. Rows
#: of a query are CSV.
NO_DOCUMENT = {
    "agent check",
    "fleet check",
    "flame diff",
    "ladder status",
    "live",
    "module install",
    "module list",
    "module uninstall",
    "selftest",
    "spool sql",
    "status",
    "stop",
    "store check",
    "store create",
    "store repair",
    "support",
    "trace export",
    "trace grab",
    "trace report",
    "trace status",
    "trace stop",
    "uninstall",
}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Every command with its options."""
    below = getattr(command, "commands", {})
    for name, one in below.items():
        yield from leaves(one, (*path, name))
    if not below:
        yield " ".join(path), {option for p in command.params for option in p.opts}


def test_every_other_command_prints_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.app, "registered_commands", [])
    monkeypatch.setattr(cli.app, "registered_groups", [])
    commands.load_all(cli.app)
    found = dict(leaves(typer.main.get_command(cli.app)))
    assert len(found) > 30
    assert {name for name, options in found.items() if "--json" not in options} == NO_DOCUMENT
    without = {name for name, options in found.items() if "--output" not in options}
    assert without == NO_DOCUMENT | NO_OUTPUT
    # and each has its place in the docs
    listed = " ".join(entry.commands for entry in documents().values())
    for name in {name.split()[0] for name in found.keys() - NO_DOCUMENT}:
        assert f"`pgtare {name}" in listed, name


@pytest.mark.parametrize("name", documents())
def test_a_schema_is_one_of_an_object_that_names_itself_first(name: str) -> None:
    schema = documents()[name].schema
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert re.fullmatch(r"pgtare\.[a-z.]+/\d+", name)
    assert next(iter(schema["properties"])) == "schema"


@pytest.mark.parametrize("name", documents())
def test_every_field_says_what_it_is_and_has_the_usual_unit(name: str) -> None:
    fields = [
        (model, field, about)
        for model, found in models(documents()[name].schema).items()
        for field, about in found["properties"].items()
    ]
    assert [f"{m}.{f}" for m, f, about in fields if not about.get("description")] == []
    wrong = [
        f"{m}.{f}"
        for m, f, about in fields
        if WRONG_UNIT.search(f) or (OTHER_NAME.search(f) and about.get("type") != "boolean")
    ]
    assert set(wrong) <= UNITS_ALONE
    without = [
        f"{m}.{f}"
        for m, f, about in fields
        if is_number(about) and not UNIT.search(f) and speaks_of_time(about["description"])
    ]
    assert without == []


def is_number(about: dict[str, Any]) -> bool:
    """Whether a field is a number, or null."""
    kinds = [about, *about.get("anyOf", ())]
    return any(kind.get("type") in ("number", "integer") for kind in kinds)


def speaks_of_time(description: str) -> bool:
    """Whether a description is of an amount of time, in which case its field needs a unit."""
    return bool(TIME.search(description)) and not NO_TIME.search(description)
