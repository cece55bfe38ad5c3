"""Incidents that only a standby has."""

from __future__ import annotations

import time

from bench.findings_cases.case import LOCK, Case, alone, waiting
from bench.findings_stage.hands import Stage


def _replay_held_up(on: Stage) -> str:
    on.settings({"max_standby_streaming_delay": -1})
    reader = on.session("season-report", "analyst")
    on.start(reader, "SELECT sum(amount), pg_sleep(300) FROM fares")
    time.sleep(0.5)
    on.sql("TRUNCATE fares", "INSERT INTO fares SELECT n, n FROM generate_series(1, 1000) n")
    on.load(
        "price-api", "\\set fare random(1, 1000)\nSELECT amount FROM fares WHERE fare = :fare;", 5
    )
    return alone(reader.info.backend_pid)


CASES = (
    Case(
        "replay_held_up",
        "The replay of TRUNCATE waits for the long SELECT of season-report, and others behind it.",
        _replay_held_up,
        waiting("Lock/relation", 3),
        cause=rf"replay|recovery|conflict|{LOCK}",
        remedy=r"pg_(cancel|terminate)_backend\(|max_standby_streaming_delay",
        standby="only",
    ),
)
