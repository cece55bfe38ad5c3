"""Incidents of clients: slow ones, too many of them, and those that connect all the time."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from bench.findings_cases.case import Case, alone, waiting
from bench.findings_stage.hands import Stage

_ROWS = "SELECT n, repeat('r', 400) FROM generate_series(1, 3000000) n"


def _slow_copy(on: Stage) -> str:
    loader = on.session("tide-loader")

    def copy() -> None:
        with loader.cursor() as cursor, cursor.copy("COPY journal (line) FROM STDIN") as rows:
            for _ in range(2000):
                rows.write("high water\n" * 60)
                time.sleep(0.25)

    on.call(copy)
    return rf"tide-loader|COPY journal|{alone(loader.info.backend_pid)}"


def _slow_reader(on: Stage) -> str:
    pids = []
    for _ in range(3):
        reader = on.session("sheet-export", "analyst")
        pids.append(alone(reader.info.backend_pid))

        def read(reader: psycopg.Connection[Any] = reader) -> None:
            with reader.cursor() as cursor:
                for _ in cursor.stream(_ROWS):
                    time.sleep(0.05)

        on.call(read)
    return "|".join(("sheet-export", *pids))


def _connection_storm(on: Stage) -> None:
    script = "\\set seat random(1, 2000)\nSELECT taken FROM seats WHERE seat = :seat;"
    on.load("kiosk-php", script, 4, "-C")


CASES = (
    Case(
        "slow_copy",
        "The COPY of tide-loader waits for its client, not for the server.",
        _slow_copy,
        waiting("Client/ClientRead", 1),
        cause=r"ClientRead|waits for its client|for the client",
        remedy=r"client|network|driver|batch",
    ),
    Case(
        "slow_reader",
        "sheet-export reads three large results slowly: its sessions wait to send.",
        _slow_reader,
        waiting("Client/ClientWrite", 3),
        cause=r"ClientWrite|waits for its client|for the client",
        remedy=r"client|network|fetch|cursor|LIMIT|rows",
        standby="too",
    ),
    Case(
        "connection_storm",
        "kiosk-php connects anew for each statement, hundreds of times a second: use a pooler.",
        _connection_storm,
        "SELECT floor(sum(sessions) / 200)::float8 FROM pg_stat_database",
        cause=r"connections? .*(a second|/s|per second)|new sessions|connects anew|logins?",
        root=r"kiosk-php|\bferry\b",
        remedy=r"pool",
        standby="too",
    ),
)
