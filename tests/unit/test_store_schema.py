"""The store's schema: the engine has the tables as they are meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store import repair, store_check, store_schema
from pgtare.keeping.store.connection import StoreConnection
from tests.commands import in_process
from tests.unit.store_engine import engine, new_store


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with engine(tmp_path_factory.mktemp("engine")) as found:
        yield found


@pytest.fixture(scope="module")
def store(client: Any) -> StoreConnection:
    return new_store(client)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_columns_of_the_spool(name: str, store: StoreConnection) -> None:
    found = store.rows(
        f"SELECT name, type FROM system.columns WHERE database = '{store.database}' "
        f"AND table = '{name}' ORDER BY position"
    )
    expected = []
    for column in TABLES[name].columns:
        if column.name == "segment":
            expected += [
                ("spool", "LowCardinality(String)"),
                ("seq", "Int64"),
                ("segment", "String"),
            ]
        else:
            expected.append((column.name, store_schema.column_type(column)))
    assert found == expected


def test_rows_go_as_in_the_spool(store: StoreConnection) -> None:
    found = dict(
        store.rows(
            "SELECT name, create_table_query FROM system.tables "
            f"WHERE database = '{store.database}'"
        )
    )
    for name, table in TABLES.items():
        if table.kept_s is None:
            assert "TTL" not in found[name]
        else:
            assert f"TTL toDateTime(ts) + toIntervalDay({table.kept_s // 86400})" in found[name]
            assert "PARTITION BY toDate(ts)" in found[name]


def test_tables_are_made_once(client: Any) -> None:
    connection = StoreConnection(client, "interrupted")
    for statement in list(store_schema.statements("interrupted"))[:5]:
        connection.command(statement)
    assert store_schema.version(connection) is None
    assert store_schema.make(connection)
    assert not store_schema.make(connection)
    assert store_schema.version(connection) == store_schema.VERSION


def test_a_check_finds_what_is_missing(client: Any, store: StoreConnection) -> None:
    found = store_check.check(store)
    assert (found.faults, found.notes, found.tables) == ([], [], len(TABLES))
    assert abs(found.clock_s) < 5
    empty = StoreConnection(client, "empty")
    empty.command("CREATE DATABASE IF NOT EXISTS empty")
    (fault,) = store_check.check(empty).faults
    assert "tables are missing" in fault
    assert repair.partial(store) == []


def test_roles_are_understood_by_the_engine(store: StoreConnection) -> None:
    """Roles cannot be tried here: the engine only parses what would be sent."""
    for statement in store_schema.role_statements("pgtare"):
        store.rows("SELECT formatQuery({text:String})", {"text": statement})
    with pytest.raises(Exception, match="Syntax error"):
        store.rows("SELECT formatQuery('CREATE ROLE IF EXIST x')")


def test_roles_have_no_more_than_they_need() -> None:
    found = list(store_schema.role_statements("pgtare"))
    of_agent = [one for one in found if one.startswith("GRANT") and store_schema.AGENT in one]
    assert not any("DELETE" in one or "ALTER" in one for one in of_agent)
    assert "GRANT INSERT, SELECT(spool, seq, ts) ON pgtare.waits TO pgtare_agent" in found
    deletes = [one for one in found if "ALTER DELETE" in one]
    assert all(one.endswith(f"TO {store_schema.REPAIR}") for one in deletes)


def test_a_dry_run_prints_all_sql_and_needs_no_store() -> None:
    done = in_process("store", "create", "--store", "clickhouse://h/logs", "--dry-run", "--roles")
    assert done.stdout.count("CREATE TABLE IF NOT EXISTS logs.") == len(TABLES) + 3
    assert "CREATE ROLE IF NOT EXISTS pgtare_agent;" in done.stdout
