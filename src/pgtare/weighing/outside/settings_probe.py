"""What a role may set in its own session: found by trying, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.rows import tuple_row

from pgtare.errors import UsageError
from pgtare.estimate.trial.design import Arm
from pgtare.postgres import pooler
from pgtare.postgres.own_session import first_line
from pgtare.weighing.instruments.model import Chosen, Entry
from pgtare.weighing.instruments.requirements import Missing, ServerFacts, availability
from pgtare.weighing.outside.session import SET_BY_US

#: This role may not set it; said once of all such settings.
_NO_RIGHT = Missing("", "")
#: "auto" is on where pg_stat_statements is loaded.
_QUERY_ID = "compute_query_id"
_MODULE = "pgtare"
#: Settings that the planner obeys, of these and of libraries that may plan.
_PLANNING = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_settings
    WHERE lower(name) = ANY(%s)
        AND (name LIKE 'jit%%' OR 'EXPLAIN' = ANY(pg_catalog.pg_settings_get_flags(name)))
)
"""
_SHOWN = (
    "SELECT pg_catalog.lower(name), setting FROM pg_catalog.pg_settings WHERE setting IS NOT NULL"
)


def weighable(
    conn: psycopg.Connection[Any], choice: Chosen, facts: ServerFacts
) -> tuple[Chosen, list[Missing]]:
    """An instrument as it can be weighed in a session of this role, or why it cannot.

    What the role may not set is left alone if it has the value that is wanted in all arms. Raises
    UsageError for a value that a setting does not take.
    """
    entry = choice.entry
    if entry is not None and entry.needs.extension:
        # only its counters are in the extension: without it the instrument works, unseen
        facts = replace(facts, extensions=facts.extensions | {entry.needs.extension.lower()})
    found = availability(choice, facts)
    if found:
        return choice, found
    refused: dict[str, bool] = {}  # whether it has the wanted value
    other: list[Missing] = []
    for settings in (choice.base, choice.settings):
        for name, value in settings.items():
            missing = _tried(conn, name, value)
            if missing is _NO_RIGHT:
                refused[name] = refused.get(name, True) and _is_so(conn, name, value, facts)
            elif missing is not None:
                other.append(missing)
    names = ", ".join(name for name, is_so in refused.items() if not is_so)
    if names:
        role = sql.Identifier(conn.info.user).as_string(None)
        remedy = (
            f"a superuser can GRANT SET ON PARAMETER {names} TO {role}; (PostgreSQL 15 and later); "
            "on a managed service connect as its administrator (rds_superuser, cloudsqlsuperuser, "
            "azure_pg_admin)"
        )
        if names == _QUERY_ID and entry is not None and entry.name == "pg_stat_statements":
            remedy += "; pg_stat_statements_prepared leaves it alone, and weighs the rest"
        other.append(Missing(f"this role may not set {names}", remedy))
    base, own = (
        {name: value for name, value in settings.items() if name not in refused}
        for settings in (choice.base, choice.settings)
    )
    lacks = list({str(missing): missing for missing in other}.values())
    return replace(choice, base=base, settings=own), lacks


def entry_lacks(conn: psycopg.Connection[Any], facts: ServerFacts, entry: Entry) -> list[Missing]:
    """What a server, or this role, lacks for an instrument of the catalogue."""
    found = availability(entry, facts)
    if found or _MODULE in facts.extensions:  # the module sets it for others
        return found
    return weighable(conn, Chosen.variant(entry, next(iter(entry.variants))), facts)[1]


def _is_so(conn: psycopg.Connection[Any], name: str, value: str, facts: ServerFacts) -> bool:
    """Whether a setting has this value already."""
    own = own_values(conn, [name])[name]
    if name == _QUERY_ID and own == "auto" and facts.loaded("pg_stat_statements"):
        own = "on"
    return own.lower() == value.lower()


def idle(conn: psycopg.Connection[Any], arms: Sequence[Arm], own: Mapping[str, str]) -> list[str]:
    """What is wrong with instruments whose settings are the base's: a sentence each."""
    base, *others = filled(arms, own)
    found = []
    for arm, settings in zip(arms[1:], others, strict=True):
        values = read_back(conn, arm, settings)
        if arm.role == "instrument" and values == read_back(conn, arm, base):
            same = ", ".join(f"{name} is {value!r}" for name, value in values.items())
            found.append(f"{arm.name} would change nothing: {same} without it, too")
    return found


def _tried(conn: psycopg.Connection[Any], name: str, value: str) -> Missing | None:
    """What stands in the way of this value. Nothing of it lasts."""
    try:
        found = in_force(conn, {name: value})
    except errors.InsufficientPrivilege:
        return _NO_RIGHT
    except errors.CantChangeRuntimeParam as ex:
        return Missing(
            f"no session can set {name} ({first_line(ex)})",
            f"it is the same for the whole server: weigh it by windows, --reload 'NAME: {name} = "
            "VALUE'",
        )
    except errors.InvalidParameterValue as ex:
        raise UsageError(f"{name} = {value!r}: {first_line(ex)}") from ex
    except psycopg.Error as ex:
        return Missing(f"{name} cannot be set", first_line(ex))
    if name.lower() not in found:
        library = name.partition(".")[0]
        return Missing(
            f"{library} is not loaded, so that {name} would do nothing",
            f"have {library} added to shared_preload_libraries",
        )
    return None


def own_values(conn: psycopg.Connection[Any], names: Sequence[str]) -> dict[str, str]:
    """What the settings of these names are in the role's own sessions.

    Not by `pooler.rows`, which sets some of them in its own transaction; nor as they are in this
    session, if it has set them for itself: then nothing, or the wrong thing, would be weighed.
    """
    query = "SELECT pg_catalog.current_setting(%s)"
    with conn.transaction(force_rollback=True), conn.cursor(row_factory=tuple_row) as cursor:
        for name in SET_BY_US.intersection(map(str.lower, names)):
            cursor.execute(f"SET LOCAL {name} TO DEFAULT".encode())
        return {name: str(cursor.execute(query, (name,)).fetchall()[0][0]) for name in names}


def decides_plans(
    conn: psycopg.Connection[Any], chosen: Sequence[Chosen], switched: Sequence[str] = ()
) -> bool:
    """Whether the planner may obey what is switched, so that plans are not to outlast a run.

    switched: settings that are switched for the whole server. What a library's setting does is
    known of the catalogue's instruments only.
    """
    names = {name.lower() for choice in chosen for name in (*choice.base, *choice.settings)}
    own = {name for choice in chosen if choice.entry is None for name in choice.settings}
    if any("." in name for name in (*own, *switched)):
        return True
    wanted = [*names, *(name.lower() for name in switched if name)]
    return bool(pooler.rows(conn, _PLANNING, wanted)[0][0])


def filled(arms: Sequence[Arm], own: Mapping[str, str]) -> list[dict[str, str]]:
    """The settings of each arm, those that it leaves alone with the session's own values."""
    return [{**own, **arm.settings} for arm in arms]


def read_back(
    conn: psycopg.Connection[Any], arm: Arm, settings: Mapping[str, str]
) -> dict[str, str]:
    """What pg_settings shows of an arm's settings if these are put in force."""
    found = in_force(conn, settings)
    return {name: found.get(name.lower(), "") for name in arm.settings}


def in_force(conn: psycopg.Connection[Any], settings: Mapping[str, str]) -> dict[str, str]:
    """What pg_settings shows if these settings are put in force, by lower-case name.

    Nothing of it lasts.
    """
    with conn.transaction(force_rollback=True), conn.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(f"SET LOCAL {pooler.CLOSED_PATH}".encode())
        for name, value in settings.items():
            cursor.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, value))
        return dict(cursor.execute(_SHOWN).fetchall())
