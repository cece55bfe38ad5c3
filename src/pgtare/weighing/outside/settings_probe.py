"""What a role may set in its own session: found by trying, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import errors, sql

from pgtare.errors import UsageError
from pgtare.estimate.trial.design import Arm
from pgtare.postgres import pooler
from pgtare.postgres.own_session import first_line
from pgtare.weighing.instruments import availability
from pgtare.weighing.instruments.model import Chosen
from pgtare.weighing.instruments.requirements import Missing, ServerFacts

#: This role may not set it; said once of all such settings.
_NO_RIGHT = Missing("", "")
_READ = "SELECT setting FROM pg_catalog.pg_settings WHERE lower(name) = %s"


def lacks(conn: psycopg.Connection[Any], choice: Chosen, facts: ServerFacts) -> list[Missing]:
    """Why this instrument cannot be weighed in a session of this role; empty if it can.

    Raises UsageError for a value that a setting does not take.
    """
    entry = choice.entry
    if entry is not None and entry.needs.extension:
        # only its counters are in the extension: without it the instrument works, unseen
        facts = replace(facts, extensions=facts.extensions | {entry.needs.extension.lower()})
    found = availability(choice, facts)
    if found:
        return found
    refused, other = [], []
    for settings in (choice.base, choice.settings):
        for name, value in settings.items():
            missing = _tried(conn, name, value)
            if missing is _NO_RIGHT:
                refused.append(name)
            elif missing is not None:
                other.append(missing)
    if refused:
        names = ", ".join(dict.fromkeys(refused))
        role = sql.Identifier(conn.info.user).as_string(None)
        remedy = (
            f"a superuser can GRANT SET ON PARAMETER {names} TO {role}; (PostgreSQL 15 and later); "
            "managed services often have a role of their own for it"
        )
        other.append(Missing(f"this role may not set {names}", remedy))
    return list({str(missing): missing for missing in other}.values())


def _tried(conn: psycopg.Connection[Any], name: str, value: str) -> Missing | None:
    """What stands in the way of this value. Nothing of it lasts."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(f"SET LOCAL {pooler.CLOSED_PATH}".encode())
            conn.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, value))
            row = conn.execute(_READ, (name.lower(),)).fetchone()
    except errors.InsufficientPrivilege:
        return _NO_RIGHT
    except errors.CantChangeRuntimeParam as ex:
        return Missing(
            f"no session can set {name} ({first_line(ex)})",
            "it is the same for the whole server: change it there, and compare whole runs",
        )
    except errors.InvalidParameterValue as ex:
        raise UsageError(f"{name} = {value!r}: {first_line(ex)}") from ex
    except psycopg.Error as ex:
        return Missing(f"{name} cannot be set", first_line(ex))
    if row is None:
        library = name.partition(".")[0]
        return Missing(
            f"{library} is not loaded, so that {name} would do nothing",
            f"have {library} added to shared_preload_libraries",
        )
    return None


def own_values(conn: psycopg.Connection[Any], names: Sequence[str]) -> dict[str, str]:
    """What the settings of these names are in this session."""
    query = "SELECT pg_catalog.current_setting(%s)"
    return {name: str(pooler.rows(conn, query, name)[0][0]) for name in names}


def filled(arms: Sequence[Arm], own: Mapping[str, str]) -> list[dict[str, str]]:
    """The settings of each arm, those that it leaves alone with the session's own values."""
    return [{**own, **arm.settings} for arm in arms]


def read_back(
    conn: psycopg.Connection[Any], arm: Arm, settings: Mapping[str, str]
) -> dict[str, str]:
    """What pg_settings shows if an arm's settings are put in force; nothing of it lasts."""
    found = {}
    with conn.transaction(force_rollback=True):
        conn.execute(f"SET LOCAL {pooler.CLOSED_PATH}".encode())
        for name, value in settings.items():
            conn.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, value))
        for name in arm.settings:
            row = conn.execute(_READ, (name.lower(),)).fetchone()
            found[name] = str(row[0]) if row else ""
    return found
