"""The JSON documents of all commands, and the tables of their fields.

`.venv/bin/python docs/_ext/json_documents.py pgtare.weigh/1` prints a document's JSON Schema.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from pgtare.keeping.findings.history import FindingsHistory
from pgtare.keeping.spool.information import SpoolInfo
from pgtare.observing.clock.schema import ClockReport
from pgtare.observing.doctor.fleet import FleetDoctor
from pgtare.observing.doctor.model import Report
from pgtare.observing.flame.documents import FlameGraph
from pgtare.observing.trace import documents as trace
from pgtare.observing.waits import documents as waits
from pgtare.postgres.wait_counters.model import Snapshot
from pgtare.postgres.wait_counters.rates import WaitsProfile
from pgtare.weighing.bill.document import Bill
from pgtare.weighing.fleet.documents import FleetWeighing
from pgtare.weighing.fleet.state import FleetState
from pgtare.weighing.instruments.listing import Instruments
from pgtare.weighing.ladder.result import LadderResult
from pgtare.weighing.weigh.schema import WeighResult


@dataclass(frozen=True)
class Entry:
    """A document and the commands that print it; headings replace those made of field names."""

    commands: str
    model: type[BaseModel]
    headings: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what is printed."""
        return self.model.model_json_schema(by_alias=True, mode="serialization")

    @property
    def name(self) -> str:
        """What the document's field `schema` holds."""
        return str(self.schema["properties"]["schema"]["const"])


ENTRIES = (
    Entry(
        "`pgtare weigh`, `pgtare report`",
        WeighResult,
        {"Interval": "An interval", "Growth": "`total`, and an element of `functions`"},
    ),
    Entry("`pgtare fleet report`", FleetWeighing),
    Entry("`pgtare bill`", Bill),
    Entry("`pgtare instruments`", Instruments),
    Entry("`pgtare fleet doctor`", FleetDoctor),
    Entry("`fleet.json` of `pgtare fleet weigh`", FleetState),
    Entry("`pgtare ladder`, `resume` and `report`", LadderResult),
    Entry("`pgtare waits top`, `pgtare waits diff`", WaitsProfile),
    Entry("`pgtare waits histogram`", waits.WaitsHistogram),
    Entry("`pgtare waits sessions`", waits.WaitsSessions),
    Entry("`pgtare waits statements`", waits.WaitsStatements),
    Entry("`pgtare waits snapshot`", Snapshot),
    Entry("`pgtare trace record`", trace.TraceRecorded),
    Entry("`pgtare trace kept`", trace.TraceKept),
    Entry("`pgtare trace kept ID`", trace.TraceIncident),
    Entry("`pgtare trace profile`", trace.TraceProfile),
    Entry("`pgtare trace statements`", trace.TraceStatements),
    Entry("`pgtare trace clients`", trace.TraceClients),
    Entry("`pgtare flame on`, `off` and `wake`", FlameGraph),
    Entry("`pgtare doctor`", Report),
    Entry("`pgtare findings`", FindingsHistory),
    Entry("`pgtare spool info`", SpoolInfo),
    Entry(
        "`pgtare clock`",
        ClockReport,
        {"Span": "A likely value between bounds"},
    ),
)


def documents() -> dict[str, Entry]:
    """Every document by the name of its schema."""
    return {entry.name: entry for entry in ENTRIES}


def lines() -> Iterator[str]:
    """The tables of all documents, as Markdown."""
    for entry in ENTRIES:
        yield from _section(entry)


def _section(entry: Entry) -> Iterator[str]:
    schema = entry.schema
    models = schema.get("$defs", {})
    yield f"## {entry.commands}"
    yield ""
    about = " ".join(schema["description"].split())
    yield f"Schema `{entry.name}`. {about}"
    yield ""
    yield from _table(schema)
    uses = _uses(schema)
    for name in uses:
        yield f"### {entry.headings.get(name) or _joined(uses[name])}"
        yield ""
        yield from _table(models[name])


def _table(model: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in model:
        yield f"One of {', '.join(f'`{value}`' for value in model['enum'])}."
        yield ""
        return
    yield from ("| field | meaning |", "|---|---|")
    for name, about in model["properties"].items():
        yield f"| `{name}` | {about.get('description', '')} |"
    yield ""


def _uses(schema: Mapping[str, Any]) -> dict[str, list[str]]:
    """How each model is referred to, in the order in which a reader comes to it."""
    models = schema.get("$defs", {})
    found: dict[str, list[str]] = {}
    queue = [schema]
    while queue:
        for name, about in queue.pop(0).get("properties", {}).items():
            for form, target in _references(about):
                if target not in found:
                    queue.append(models[target])
                words = form.format(f"`{name}`")
                if words not in found.setdefault(target, []):
                    found[target].append(words)
    return found


def _references(about: Mapping[str, Any], form: str = "{}") -> Iterator[tuple[str, str]]:
    if "$ref" in about:
        yield form, about["$ref"].rpartition("/")[2]
    for one in about.get("anyOf", ()):
        yield from _references(one, form)
    if isinstance(about.get("items"), dict):
        yield from _references(about["items"], "an element of {}")
    if isinstance(about.get("additionalProperties"), dict):
        yield from _references(about["additionalProperties"], "a value of {}")


def _joined(words: list[str]) -> str:
    text = " or ".join(words)
    return text[0].upper() + text[1:]


if __name__ == "__main__":
    print(json.dumps(documents()[sys.argv[1]].schema, indent=2))
