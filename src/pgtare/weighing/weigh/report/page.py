"""A result as one HTML file that needs nothing else: no network, no server, no second file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pgtare.estimate.trial.observations import Observations
from pgtare.kit import files, numbers, page_frame
from pgtare.weighing.weigh.report import (
    alarms,
    contention,
    footnotes,
    rows,
    traffic,
    wording,
)
from pgtare.weighing.weigh.report.charts import charts
from pgtare.weighing.weigh.schema import WeighResult


def write_page(result: WeighResult, observations: Observations, path: Path) -> None:
    """Write the page at `path`, replacing an older one only once the new one is complete.

    observations: of dtype OBSERVATION, or RUN from outside; without any, the chart drawn from them
    is left out.
    Raises MeasurementError if the file cannot be written.
    """
    files.write_text(path, page(result, observations))


def page(result: WeighResult, observations: Observations) -> str:
    """The page as a string."""
    return page_frame.render(
        "pgtare.weighing.weigh.report",
        "page.html.j2",
        charts(result, observations),
        title=_title(result),
        subtitle=_subtitle(result),
        alarms=alarms.alarms(result),
        subject=wording.subject(result),
        notes=wording.notes(result),
        answers=wording.answers(result),
        threshold=footnotes.threshold_sentence(result),
        table_title=wording.table_title(result),
        headings=rows.headings(result),
        details=_details(result),
        rows=rows.table(result),
        facts=list(footnotes.facts(result)),
        not_shown=wording.not_shown(result),
        contention=contention.view(result),
        command=shlex.join(result.command),
        arms=_arms(result),
        metadata=_metadata(result),
        version=result.pgtare_version,
        created=result.created,
    )


def _details(result: WeighResult) -> list[list[str]]:
    """The table of other figures, with its headings first."""
    keys = ["name", *rows.DETAILS]
    body = [[row.cells[key] for key in keys] for row in rows.table(result)]
    return [[rows.headings(result)["name"], *rows.DETAILS.values()], *body]


def _title(result: WeighResult) -> str:
    names = [arm.name for arm in wording.of_role(result, "instrument")]
    if result.compares_servers:
        return f"{', '.join(names)} compared with {result.arms[0].name}"
    if not names:
        return "The floor of this measurement"
    if len(names) == 1:
        return f"What {names[0]} costs"
    return f"What {len(names)} instruments cost"


def _subtitle(result: WeighResult) -> str:
    load = traffic.describe(result.load, speed=False)
    version = result.server_version or "of unknown version"
    return f"PostgreSQL {version} · {load} · {_when(result.created)}"


def _when(created: str) -> str:
    """The time to the minute, or as it is written if it cannot be read."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{when:%Y-%m-%d %H:%M} {when.tzname() or ''}".strip()


_SWITCHED = {
    "process": "a process that runs in its windows",
    "commands": "switched by commands",
    "setting": "a setting of the whole server",
}


def _arms(result: WeighResult) -> Iterator[tuple[str, str, list[str]]]:
    """Name, note and settings of each: of the base all that it sets, of others what they change."""
    outside, base = result.design.outside, result.arms[0].settings
    if outside is not None and outside.servers:
        for server in outside.servers:
            note = f"PostgreSQL {server.version}" + (", a standby" if server.standby else "")
            values = {name: value or numbers.NONE for name, value in server.settings.items()}
            yield server.name, note, _assignments(values)
        return
    if result.windows is not None:
        for watcher in result.windows.watchers:
            values = {watcher.setting: watcher.value or ""} if watcher.setting else {}
            yield watcher.name, _SWITCHED[watcher.kind], _assignments(values)
        return
    for arm in result.arms:
        values, note = arm.settings, "" if arm.settings else "no settings of its own"
        if arm.role != "base":
            values = {name: value for name, value in values.items() if base.get(name) != value}
            note = "" if values else "the same as the base"
        if arm.inject_ns:
            note = f"{arm.inject_ns / 1000:g} µs added to each transaction"
        yield arm.name, note, _assignments(values)


def _assignments(settings: Mapping[str, str]) -> list[str]:
    return [f"{name} = {value or repr(value)}" for name, value in settings.items()]


def _metadata(result: WeighResult) -> dict[str, list[tuple[str, str]]]:
    return {
        "design": _flat(result.design.model_dump()),
        "load": _flat(result.load),
        "server": _flat(result.server),
        "machine": _flat(result.machine),
    }


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", _text(value)))
    return pairs


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
