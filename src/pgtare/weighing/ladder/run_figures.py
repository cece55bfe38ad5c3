"""Figures of a run apart from its metrics: counters of the server, and lines of its log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from pgtare.weighing.ladder import evidence
from pgtare.weighing.ladder.study_sections import Workload


def read(conn: psycopg.Connection[Any], log: Path, workload: Workload) -> dict[str, float]:
    """The value of every figure's counter: of a query its value, of the log its length."""
    return {
        figure.name: evidence.counter(conn, figure.query) if figure.query else _length(log)
        for figure in workload.figure
    }


def between(
    before: Mapping[str, float],
    after: Mapping[str, float],
    log: Path,
    workload: Workload,
    seconds: float,
) -> dict[str, float]:
    """What a run's figures came to: growth a second of a query, lines of the log."""
    return {
        f.name: (after[f.name] - before[f.name]) / seconds
        if f.log is None
        else float(_lines(log, round(before[f.name]), round(after[f.name]), f.log))
        for f in workload.figure
    }


def _length(log: Path) -> float:
    return float(log.stat().st_size)


def _lines(log: Path, first: int, last: int, text: str) -> int:
    """Lines with this text between two places of the log."""
    with open(log, "rb") as file:
        file.seek(first)
        return sum(text.encode() in line for line in file.read(last - first).splitlines())
