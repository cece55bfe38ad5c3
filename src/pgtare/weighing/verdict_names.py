"""Verdicts as results hold them: what each is called, and how a terminal shows it."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["cost", "gain", "equivalent", "inconclusive", "not_verified"]

NAMES: dict[Verdict, str] = {
    "cost": "cost",
    "gain": "gain",
    "equivalent": "equivalent",
    "inconclusive": "inconclusive",
    "not_verified": "not verified",
}
#: Styles of rich, by verdict.
STYLES: dict[str, str] = {
    "cost": "bold red",
    "gain": "bold green",
    "equivalent": "green",
    "inconclusive": "yellow",
    "not_verified": "bold magenta",
}
