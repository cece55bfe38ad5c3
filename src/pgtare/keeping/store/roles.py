"""Roles of a store, and policies that show a role only the servers with a label.

The agent may insert, and read the columns by which its rows are counted. The page may read. Only
the third role may delete what is partial; no service should have it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from pgtare.errors import UsageError
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store.connection import quoted

AGENT, PAGE, REPAIR = "pgtare_agent", "pgtare_page", "pgtare_repair"
#: Columns that the agent counts its rows by.
_KEYS = "spool, seq, ts"
_NOTES = ("version", "pushes", "partial_segments")
#: What an agent inserts into.
FILLED = (*TABLES, *_NOTES[1:])
_LABEL = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([A-Za-z0-9_.-]+)")


def statements(
    database: str, labels: tuple[str, ...] = (), cluster: str | None = None
) -> Iterator[str]:
    """All statements, each of which may be run again.

    labels: as "env=prod"; for each there is a role pgtare_page_env_prod that reads the rows of such
    servers alone. Raises UsageError.
    """
    on = f" ON CLUSTER '{cluster}'" if cluster else ""
    groups = [(_label_role(text), text) for text in labels]
    for role in (AGENT, PAGE, REPAIR, *(role for role, _ in groups)):
        yield f"CREATE ROLE IF NOT EXISTS {role}{on}"
    for name in TABLES:
        yield f"GRANT{on} INSERT, SELECT({_KEYS}) ON {database}.{name} TO {AGENT}"
        yield f"GRANT{on} SELECT({_KEYS}), ALTER DELETE ON {database}.{name} TO {REPAIR}"
    for name in _NOTES:
        yield f"GRANT{on} SELECT ON {database}.{name} TO {AGENT}, {REPAIR}"
    for name in _NOTES[1:]:
        yield f"GRANT{on} INSERT ON {database}.{name} TO {AGENT}, {REPAIR}"
    readers = ", ".join([PAGE, *(role for role, _ in groups)])
    yield f"GRANT{on} SELECT ON {database}.* TO {readers}"
    if groups:
        yield from _policies(database, on, groups)


def _policies(database: str, on: str, groups: list[tuple[str, str]]) -> Iterator[str]:
    """All rows for all, but for roles of labels: these may come one by one, in any order."""
    for name in TABLES:
        yield f"CREATE ROW POLICY IF NOT EXISTS pgtare_all{on} ON {database}.{name} USING 1 TO ALL"
        for role, text in groups:
            yield (
                f"CREATE ROW POLICY IF NOT EXISTS {role}{on} ON {database}.{name} "
                f"USING {_condition(name, text, database)} AS RESTRICTIVE TO {role}"
            )


def _condition(table: str, label: str, database: str) -> str:
    """Which rows a label shows: those of servers that had it last."""
    key, _, value = label.partition("=")
    if table == "servers":  # a policy must not read its own table
        return f"JSONExtractString(labels, {quoted(key)}) = {quoted(value)}"
    return (
        f"server IN (SELECT server FROM {database}.servers GROUP BY server "
        f"HAVING JSONExtractString(argMax(labels, ts), {quoted(key)}) = {quoted(value)})"
    )


def _label_role(text: str) -> str:
    """Its name says which label it is; where that could be two labels, it ends in a number."""
    found = _LABEL.fullmatch(text)
    if found is None:
        raise UsageError(f"--label {text}: write a label as NAME=VALUE, as in env=prod")
    name, value = found[1], found[2]
    role = f"{PAGE}_{name}_{re.sub(r'[^A-Za-z0-9]', '_', value)}"
    plain = f"{name}{value}".isalnum()
    return role if plain else f"{role}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
