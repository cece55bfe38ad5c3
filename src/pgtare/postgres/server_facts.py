"""What a bug report needs of a server: versions, settings, the state of our modules; no secrets.

No names of roles, databases, tables or hosts, no statements, and of settings that hold free text
only whether they are set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from pgtare.errors import MeasurementError
from pgtare.postgres import (
    module_versions,
    modules,
    own_session,
    pooler,
    untraced_session,
)
from pgtare.postgres.settings import library_names

#: Settings of the server that decide what our modules do, or what they cost.
_SERVER_SETTINGS = (
    "compute_query_id",
    "debug_assertions",
    "huge_pages",
    "io_method",
    "io_workers",
    "jit",
    "local_preload_libraries",
    "max_connections",
    "max_worker_processes",
    "min_dynamic_shared_memory",
    "server_encoding",
    "session_preload_libraries",
    "shared_buffers",
    "shared_preload_libraries",
    "track_activities",
    "track_activity_query_size",
    "track_io_timing",
)
_LIBRARIES = frozenset(name for name in _SERVER_SETTINGS if name.endswith("_preload_libraries"))
_SETTINGS = """
SELECT name, setting, coalesce(unit, ''), vartype = 'string', source, pending_restart
FROM pg_settings WHERE name = ANY(%s) OR split_part(name, '.', 1) = ANY(%s) ORDER BY name
"""
_SERVER = """
SELECT version(), pg_is_in_recovery(), pg_has_role('pg_read_all_settings', 'USAGE')
"""
#: Our session changes nothing and waits for nobody; a pooler may take no options.
_GENTLE = ("statement_timeout=10s", "lock_timeout=2s", "default_transaction_read_only=on")
#: By module: functions that it alone has, and what is called in their schema.
_STATES = {
    "pgtare": (("trial_status", "info"),),
    "wait_event_timing": (("wait_event_timing_info",) * 2,),
    "sql_trace": (("sql_trace_info",) * 2, ("sql_trace_recorder",) * 2),
}


class Facts(NamedTuple):
    """Facts of one kind, by name."""

    title: str
    facts: list[tuple[str, str]]


def read(dsn: str) -> Iterator[Facts]:
    """The facts of a server, by kind.

    Raises MeasurementError if it cannot be reached, UsageError for a wrong connection string.
    """
    with untraced_session.connect(dsn, (), _GENTLE) as conn:
        try:
            ((version, standby, sees_all),) = pooler.rows(conn, _SERVER)
            places = [("version", str(version)), ("standby", _word(standby))]
            places += [("pooler", _word(pooler.is_pooled(conn)))]
            yield Facts("server", [*places, ("role sees all settings", _word(sees_all))])
            yield Facts("settings", list(_settings(conn)))
            for name in modules.PRELOAD_ORDER:
                yield Facts(f"module {name}", list(_module(conn, name)))
        except psycopg.Error as ex:
            why = own_session.without_secrets(own_session.first_line(ex), dsn)
            raise MeasurementError(f"the server did not answer: {why}") from ex


def _settings(conn: psycopg.Connection[Any]) -> Iterator[tuple[str, str]]:
    wanted = list(_SERVER_SETTINGS), list(modules.PRELOAD_ORDER)
    for name, value, unit, is_text, source, pending in pooler.rows(conn, _SETTINGS, *wanted):
        shown = f"{value} {unit}".strip()
        if name in _LIBRARIES:  # without their directories, which may be somebody's
            shown = ", ".join(each.rpartition("/")[2] for each in library_names(value))
        elif is_text and value and name != "server_encoding":
            shown = "(set, not shown)"
        yield name, f"{shown or '(empty)'}  [{source}{', restart pending' if pending else ''}]"


def _module(conn: psycopg.Connection[Any], name: str) -> Iterator[tuple[str, str]]:
    found = module_versions.with_files(conn, module_versions.read(conn, name, load=False))
    yield from zip(("files", "library", "extension"), found.states, strict=True)
    if not found.preloaded:
        return  # to ask it would load the library into this session
    for anchor, called in _STATES[name]:
        for function in untraced_session.find_functions(conn, anchor):
            yield from _state(conn, function.schema, called)


def _state(conn: psycopg.Connection[Any], schema: str, function: str) -> Iterator[tuple[str, str]]:
    query = sql.SQL("SELECT key, value FROM json_each_text((SELECT to_json(i) FROM {}.{}() i))")
    names = sql.Identifier(schema), sql.Identifier(function)
    try:
        for key, value in pooler.rows(conn, query.format(*names)):
            yield f"{function}.{key}", str(value)
    except psycopg.errors.InsufficientPrivilege:
        yield function, "not allowed to this role"
    except psycopg.Error as ex:
        if own_session.is_lost(conn, ex):
            raise
        yield function, f"no answer, SQLSTATE {ex.sqlstate}"


def _word(known: bool) -> str:
    return "yes" if known else "no"
