"""The page's queries: one file each, in an SQL that DuckDB and ClickHouse understand alike.

A file has ClickHouse's parameters, `{name:Type}`. Four kinds are filled in as text, from fixed
sets: `{name:Identifier}`; `{filters}`, a condition for each dimension that is filtered by;
`{active}`, which rows are active time, without PostgreSQL's background processes unless types of
processes are what is asked for; and `{average}`, the average active sessions of a server.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from importlib import resources
from typing import Any

from pgtare.postgres.wait_counters.active_sessions import (
    ACTIVE_ROWS_OF_ALL_SQL,
    ACTIVE_ROWS_SQL,
    AVERAGE_SQL,
)

#: What `{rows:Identifier}` may be: relations with the same columns for times and dimensions.
ROWS = ("waits", "statements", "samples")
#: What `{dimension:Identifier}` may be, with the type of its values.
DIMENSIONS = {
    "server": "String",
    "backend_type": "String",
    "type": "String",
    "event": "String",
    "role": "String",
    "database": "String",
    "application": "String",
    "query_id": "Int64",
    "kind": "String",
    "pid": "Int64",
}
_IDENTIFIERS = {"rows": ROWS, "dimension": tuple(DIMENSIONS)}
_DUCKDB_TYPES = {
    "Int64": "BIGINT",
    "String": "VARCHAR",
    "Array(Int64)": "BIGINT[]",
}
_RELATION = re.compile(r"\b(?:FROM|JOIN)\s+([a-z]\w*)")
_PLACEHOLDER = re.compile(r"\{(\w+):([\w()]+)\}")


@functools.cache
def names() -> tuple[str, ...]:
    """All queries."""
    folder = resources.files("pgtare.keeping.live") / "queries"
    found = (each.name for each in folder.iterdir())
    return tuple(sorted(name[:-4] for name in found if name.endswith(".sql")))


@functools.cache
def text(name: str) -> str:
    """A query as its file has it."""
    if name not in names():
        raise ValueError(f"no query is named {name}")
    place = resources.files("pgtare.keeping.live") / "queries" / f"{name}.sql"
    return place.read_text(encoding="utf-8")


def filled(name: str, identifiers: Mapping[str, str], filters: Collection[str]) -> str:
    """A query with its identifiers and a condition for each of these dimensions.

    The value of a dimension is the parameter `only_DIMENSION`.
    """

    def identifier(found: re.Match[str]) -> str:
        if found[2] != "Identifier":
            return found[0]
        value = identifiers[found[1]]
        if value not in _IDENTIFIERS[found[1]]:
            raise ValueError(f"{value} is not one of the identifiers for {found[1]}")
        return value

    conditions = [f"AND {one} = {{only_{one}:{DIMENSIONS[one]}}}" for one in sorted(filters)]
    sql = text(name).replace("{filters}", " ".join(conditions))
    by_process = "backend_type" in (*filters, identifiers.get("dimension"))
    all_at_work = by_process or identifiers.get("rows") == "statements"
    active = ACTIVE_ROWS_OF_ALL_SQL if all_at_work else ACTIVE_ROWS_SQL
    sql = sql.replace("{active}", active).replace("{average}", AVERAGE_SQL)
    return _PLACEHOLDER.sub(identifier, sql)


def relations(sql: str) -> list[str]:
    """The relations that a filled query reads, each after those that it is made of."""
    named = list(dict.fromkeys(_RELATION.findall(sql)))
    if "samples" in named:
        named.insert(0, "sessions")
    return named


def values(sql: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a request to a worker has for the parameters of a filled query."""
    after_us, to_us = request["window"]
    known = {**request["values"], "from_us": after_us, "to_us": to_us}
    known |= {f"only_{name}": value for name, value in request["only"].items()}
    return {name: known[name] for name, _ in _PLACEHOLDER.findall(sql)}


def for_duckdb(sql: str) -> str:
    """A filled query with DuckDB's parameters."""

    def parameter(found: re.Match[str]) -> str:
        value = f"${found[1]}::{_DUCKDB_TYPES[found[2]]}"
        return f"(SELECT unnest({value}))" if found[2].startswith("Array") else value

    return _PLACEHOLDER.sub(parameter, sql)
