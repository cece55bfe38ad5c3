"""What is read in a server at both ends of a measured stretch, and what changed in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from pgtare.server.wait_counters.model import EventRow
from pgtare.weighing.ladder import activity, evidence, run_figures
from pgtare.weighing.ladder.bench import Serving
from pgtare.weighing.ladder.records import Wait


@dataclass(frozen=True)
class ServerReading:
    """A server's counters at one moment.

    counter: the workload's own, 0 if it has none. calm: what should stay as it is, see
    `evidence.disturbances`. events: counters of waits, None if the variant counts none. activity,
    figures: by name. refused: settings that are not in force, in words.
    """

    counter: float
    calm: Mapping[str, str]
    events: tuple[EventRow, ...] | None
    activity: Mapping[str, float]
    figures: Mapping[str, float]
    refused: tuple[str, ...]

    def disturbed(self, first: ServerReading) -> tuple[str, ...]:
        """What happened since an earlier reading that should not: a checkpoint, a restart."""
        return tuple(what for what, value in first.calm.items() if value != self.calm[what])

    def waits(
        self, first: ServerReading, seconds: float, clients: int, transactions: int
    ) -> tuple[Wait, ...]:
        """Where the load's sessions spent the time since an earlier reading."""
        return evidence.profile(first.events, self.events, seconds, clients, transactions)


def read(serving: Serving, conn: psycopg.Connection[Any]) -> ServerReading:
    """Read a server. conn: a session in the workload's database, see `Serving.connect`."""
    workload = serving.workload
    return ServerReading(
        counter=evidence.counter(conn, workload.counter) if workload.counter else 0.0,
        calm=evidence.disturbances(conn),
        events=evidence.read_events(serving),
        activity=activity.read(conn, workload.activity),
        figures=run_figures.read(conn, serving.cluster.log_path, workload),
        refused=tuple(evidence.not_in_force(conn)),
    )
