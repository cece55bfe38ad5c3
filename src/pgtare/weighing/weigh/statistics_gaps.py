"""What a trial takes from the statistics and logs that the server's owner keeps anyway."""

from __future__ import annotations

from typing import Any

import psycopg

from pgtare.estimate.trial.design import MIXED, Design
from pgtare.weighing.weigh.request import Request

#: How settings that observe say that they do not.
_OFF = ("off", "none", "-1", "0")
#: A setting, with its unit, and whether this session has no query id.
_NOW = (
    "SELECT setting, pg_catalog.current_setting(name), (SELECT query_id IS NULL FROM"
    " pg_catalog.pg_stat_activity WHERE pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid())"
    " FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.=) %s"
)


def holes(conn: psycopg.Connection[Any], request: Request, design: Design) -> list[str]:
    """A sentence on what the base arm switches off that is on now, if there is anything.

    A load of pgtare's own leaves no hole: its sessions alone take part.
    """
    if request.load is not None:
        return []
    now = {
        name: current
        for name, value in design.arms[0].settings.items()
        if value in _OFF and (current := _on_now(conn, name)) is not None
    }
    if not now:
        return []
    missed = max(_share_off(design, name) for name in now)
    listed = ", ".join(f"{name} (now {value})" for name, value in sorted(now.items()))
    return [
        f"The base arm switches off what is on now: {listed}. So your own statistics and logs "
        f"miss about {100 * missed:.0f} % of the transactions that take part, while the trial "
        "runs. --base current switches nothing off, and weighs what comes on top of the settings "
        "as they are; --participation and --role make the hole smaller."
    ]


def nothing_new(conn: psycopg.Connection[Any], request: Request, design: Design) -> list[str]:
    """With base "current", a sentence on arms that only set what is set anyway."""
    if request.base != "current":
        return []
    same = [
        arm.name
        for arm in design.arms
        if arm.role == "instrument"
        and arm.settings
        and all(_is_now(conn, *setting) for setting in arm.settings.items())
    ]
    if not same:
        return []
    return [
        f"{', '.join(same)}: on already, so with --base current it is compared with itself, unless "
        "sessions have settings of their own. Leave --base current out to see what it costs."
    ]


def _is_now(conn: psycopg.Connection[Any], name: str, value: str) -> bool:
    """Whether a setting has this value, as far as its text tells, or does what it says."""
    if (name, value) == ("compute_query_id", "on"):
        return _on_now(conn, name) is not None
    row = conn.execute(_NOW, (name,)).fetchone()
    return row is not None and value.lower() in (row[0].lower(), row[1].lower())


def _on_now(conn: psycopg.Connection[Any], name: str) -> str | None:
    """A setting's value if it makes the server observe something, else None."""
    row = conn.execute(_NOW, (name,)).fetchone()
    if row is None or row[0] in _OFF:
        return None
    if name == "compute_query_id" and row[0] != "on" and row[2]:
        return None  # auto, and nobody wants them
    return str(row[1])


def _share_off(design: Design, name: str) -> float:
    """The share of transactions in which the setting is as in the base arm."""
    base = design.arms[0].settings[name]
    off = [arm.settings.get(name) == base for arm in design.arms]
    mixed = sum(off[arm] for arm in design.block) / len(design.block)
    if design.slices is None:
        return mixed
    kinds = design.slices.kinds
    return sum(mixed if kind == MIXED else off[kind] for kind in kinds) / len(kinds)
