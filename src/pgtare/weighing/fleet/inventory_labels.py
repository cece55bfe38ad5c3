"""Reads from `fleet.json` the labels and weights of the servers, and how far each is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgtare.errors import UsageError
from pgtare.kit import artefact
from pgtare.weighing.fleet.raw_data import FLEET_FILE, RawData

SCHEMA = "pgtare.fleet/1"


@dataclass(frozen=True)
class ServerRecord:
    """One server. state: waiting, running, done, stopped or lost; reason: of that.

    transactions: measured, in all its trials.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    weight: float = 1.0
    state: str = ""
    reason: str = ""
    transactions: int = 0


def read_records(data: RawData) -> dict[str, ServerRecord]:
    """The servers by name; none if there is no fleet.json.

    Raises UsageError if it is another document, and PgtareError if it is damaged.
    """
    text = data.text()
    if text is None:
        return {}
    place = f"{data.prefix.rstrip('/')}/{FLEET_FILE}"
    try:
        document = json.loads(text)
        found = document.get("schema") if isinstance(document, dict) else None
        if found != SCHEMA:
            raise UsageError(
                f"{place} does not describe a fleet that this pgtare reads: its schema is {found!r}"
            )
        return {str(one["name"]): _record(one) for one in document["servers"]}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as ex:
        raise artefact.damaged(place, "it does not list its servers") from ex  # type: ignore[arg-type]


def _record(one: Mapping[str, Any]) -> ServerRecord:
    return ServerRecord(
        labels={str(name): str(value) for name, value in (one.get("labels") or {}).items()},
        weight=float(one.get("weight", 1.0)),
        state=str(one.get("state") or ""),
        reason=str(one.get("reason") or ""),
        transactions=int(one.get("transactions") or 0),
    )
