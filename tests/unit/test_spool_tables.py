"""The tables of a spool: one meaning for each column."""

from __future__ import annotations

from pgtare.keeping.spool.tables import COMMON, TABLES, rollups


def test_every_table_begins_with_the_common_columns() -> None:
    for table in TABLES.values():
        assert table.columns[: len(COMMON)] == COMMON


def test_a_rolled_up_table_has_the_columns_of_its_source() -> None:
    for table in TABLES.values():
        for rolled in rollups(table.name):
            assert rolled.columns == table.columns
            assert rolled.kept_s is not None
            assert table.kept_s is not None
            assert rolled.kept_s > table.kept_s


def test_a_column_has_one_type_everywhere() -> None:
    types: dict[str, str] = {}
    for table in TABLES.values():
        for column in table.columns:
            assert types.setdefault(column.name, str(column.type)) == str(column.type)
