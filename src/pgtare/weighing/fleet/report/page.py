"""A fleet's result as one HTML file that needs nothing else: no network, no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pgtare.kit import files, numbers, page_frame
from pgtare.weighing.fleet.documents import FleetArm, FleetServer, FleetWeighing
from pgtare.weighing.fleet.report import forest, wording

HEADINGS = (
    "instrument",
    "servers",
    "mean %",
    "interval",
    "next server %",
    "mean µs",
    "interval",
    "I²",
    "verdict",
)
SERVER_HEADINGS = (
    "server",
    "version",
    "labels",
    "base µs",
    "transactions",
    "per second",
    "seconds",
)


def write_page(result: FleetWeighing, path: Path) -> None:
    """Write the page at `path`; raises MeasurementError if the file cannot be written."""
    files.write_text(path, page(result))


def page(result: FleetWeighing) -> str:
    """The page as a string."""
    arms = wording.all_arms(result)
    drawn = [forest.chart(arm, result, number) for number, arm in enumerate(arms, start=1)]
    return page_frame.render(
        "pgtare.weighing.fleet.report",
        "fleet.html.j2",
        [chart for chart in drawn if chart is not None],
        title=wording.title(result),
        subtitle=_subtitle(result),
        alarms=wording.alarms(result),
        answers=wording.answers(result),
        warnings=result.warnings,
        headings=HEADINGS,
        rows=[_row(arm) for arm in arms],
        parts=[_part(arm) for arm in wording.instruments(result)],
        subgroup_headings=wording.SUBGROUP_HEADINGS,
        server_headings=SERVER_HEADINGS,
        servers=[_server(one) for one in result.servers],
        left_out=result.left_out,
        how=wording.HOW,
        version=result.pgtare_version,
        created=result.created,
    )


def _subtitle(result: FleetWeighing) -> str:
    versions = sorted({one.version.partition(".")[0] for one in result.servers if one.version})
    return " · ".join(
        [
            f"PostgreSQL {', '.join(versions)}" if versions else "PostgreSQL of unknown version",
            f"{numbers.count(sum(one.transactions for one in result.servers))} transactions",
            f"margin ±{result.margin_pct:g} %",
        ]
    )


def _row(arm: FleetArm) -> dict[str, Any]:
    """An arm in the table of arms."""
    verdict = wording.verdict(arm)
    if arm.role == "instrument":
        tone = "" if arm.verdict in ("list", "kinds") else arm.verdict
    else:
        tone = "inconclusive" if arm.role == "control" and verdict == "misses 0" else ""
    return {
        "name": wording.arm_name(arm),
        "aside": arm.role != "instrument",
        "cells": wording.arm_cells(arm),
        "verdict": verdict,
        "tone": tone,
    }


def _part(arm: FleetArm) -> dict[str, Any]:
    """What is said of one instrument besides its plot."""
    return {
        "name": arm.name,
        "spread": wording.spread(arm.cost_pct) if arm.k > 1 else "",
        "outliers": wording.outliers(arm),
        "subgroups": [wording.subgroup_cells(g) for g in wording.shown_subgroups(arm.cost_pct)],
        "left_out": [(one.server, one.left_out) for one in arm.servers if one.left_out],
    }


def _server(one: FleetServer) -> list[str]:
    per_s = one.transactions_per_s
    rate = numbers.NONE if per_s is None else numbers.rate(per_s)
    return [
        one.name,
        one.version or numbers.NONE,
        ", ".join(f"{name} = {value}" for name, value in sorted(one.labels.items())),
        wording.base_us(one),
        numbers.count(one.transactions),
        rate if one.whole_rate or per_s is None else f"≥ {rate}",
        f"{one.duration_s:,.0f}",
    ]
