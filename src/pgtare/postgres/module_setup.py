"""What is still to be done on a server before modules can be used there: all of it, in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from pgtare.errors import UsageError
from pgtare.postgres import pooler
from pgtare.postgres.settings import (
    library_names,
    listed_libraries,
    preload_on_command_line,
    preload_statement,
)

#: From this version on pgtare gets shared memory without a restart.
_SESSION_PRELOAD_MAJOR = 17

# A setting that a session asked for without the module has a value, but no row in pg_settings.
_SETTINGS = """
SELECT n.name, EXISTS (SELECT FROM pg_settings s WHERE starts_with(s.name, n.name || '.'))
FROM unnest(%s::text[]) AS n (name)
"""
_CREATED = "SELECT extname FROM pg_extension WHERE extname = ANY(%s)"
_AVAILABLE = "SELECT lower(name::text) FROM pg_catalog.pg_available_extensions"
_LISTS = """
SELECT name, setting, source = 'command line' FROM pg_settings
WHERE name IN ('shared_preload_libraries', 'session_preload_libraries')
"""
# What counts at the next start: the last line, that of ALTER SYSTEM if there is one.
_AT_NEXT_START = """
SELECT setting FROM pg_file_settings
WHERE lower(name) = 'shared_preload_libraries' ORDER BY seqno DESC LIMIT 1
"""


def loaded(conn: psycopg.Connection[Any], names: Sequence[str]) -> frozenset[str]:
    """Those of these libraries that the server loads into every new session.

    To be asked before a function of the library is called, which loads it into this session alone.
    Raises psycopg.Error.
    """
    found = {name for name, there in pooler.rows(conn, _SETTINGS, list(names)) if there}
    for _, value, _ in pooler.rows(conn, _LISTS):
        found |= set(library_names(value or "")) & set(names)
    return frozenset(found)


def available_extensions(conn: psycopg.Connection[Any]) -> frozenset[str] | None:
    """Extensions whose files the server has, lower case; None if that cannot be found out.

    Raises psycopg.Error if the session is lost.
    """
    try:
        return frozenset(name for (name,) in pooler.rows(conn, _AVAILABLE))
    except psycopg.DatabaseError:  # any extension's damaged control file is an error
        if conn.closed:
            raise
        return None


def remaining_steps(
    conn: psycopg.Connection[Any],
    modules: Sequence[str],
    *,
    libraries: Iterable[str] = (),
    extensions: Iterable[str] = (),
    create: bool = True,
) -> list[str]:
    """What has to be done until the server has these modules of pgtare, and what others need.

    modules: in the order of preloading. libraries: of others, to be preloaded; extensions: of
    others. create: whether the extensions have to be in the database of this session. Raises
    psycopg.Error.
    """
    wanted = [*libraries, *modules]
    there = loaded(conn, wanted)
    unloaded = [name for name in dict.fromkeys(wanted) if name not in there]
    needed = list(dict.fromkeys([*modules, *extensions])) if create else []
    created = {name for (name,) in pooler.rows(conn, _CREATED, needed)}
    uncreated = [name for name in needed if name not in created]
    steps = []
    available = available_extensions(conn)
    absent = [name for name in modules if available is not None and name not in available]
    if absent:
        option = f" --module {absent[0]}" if len(absent) == 1 else ""
        steps.append(f"on the server's host run `pgtare module install{option} --pg-config PATH`")
    if unloaded:
        steps.append(_preload(conn, unloaded, modules))
    if uncreated:
        commands = " ".join(f"CREATE EXTENSION {_quoted(name)};" for name in uncreated)
        steps.append(f"run {commands} in database {conn.info.dbname}")
    return steps


def missing(why: str, steps: Sequence[str], instead: str = "") -> UsageError:
    """The error of a server on which these steps are still to be done. instead: another way out."""
    if len(steps) == 1:
        return UsageError(f"{why}: {steps[0]}{instead}")
    numbered = "; ".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    return UsageError(f"{why}; these steps are left, in this order: {numbered}{instead}")


def _preload(conn: psycopg.Connection[Any], unloaded: Sequence[str], own: Sequence[str]) -> str:
    lists = {name: (value, fixed) for name, value, fixed in pooler.rows(conn, _LISTS)}
    shared, on_command_line = lists.get("shared_preload_libraries", (None, False))
    with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
        for (setting,) in pooler.rows(conn, _AT_NEXT_START):
            shared = setting
    if on_command_line:
        step = f"{preload_on_command_line(unloaded)} and restart the server"
    elif shared is None:  # hidden from this role
        names = ", ".join(unloaded)
        step = f"add {names} to shared_preload_libraries, after what it names, and restart"
    else:
        named = listed_libraries(shared)
        ours = [name for name in own if name in unloaded or name in named]
        others = [name for name in dict.fromkeys((*named, *unloaded)) if name not in own]
        step = f"run {preload_statement([*others, *ours])} and restart the server"
    if list(unloaded) == ["pgtare"] and conn.info.server_version // 10000 >= _SESSION_PRELOAD_MAJOR:
        step += " (or, without a restart, add it to session_preload_libraries and reload)"
    return step


def _quoted(name: str) -> str:
    plain = name.replace("_", "a").isalnum() and name.islower()
    return name if plain else f'"{name}"'
