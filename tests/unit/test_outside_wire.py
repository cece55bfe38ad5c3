"""What answers take of the socket in which they wait for the sleeping client."""

from __future__ import annotations

from pgtare.weighing.outside.wire import _size


class Result:
    """In the place of libpq's result: every cell is the same."""

    def __init__(self, names: list[str], rows: int, cell: bytes | None) -> None:
        self.nfields, self.ntuples = len(names), rows
        self._names, self._cell = names, cell

    def fname(self, column: int) -> bytes:
        return self._names[column].encode()

    def get_value(self, row: int, column: int) -> bytes | None:
        assert row < self.ntuples
        assert column < self.nfields
        return self._cell


def test_names_of_columns_count() -> None:
    size = _size(Result([f"{'n' * 26}{column:02d}" for column in range(100)], 1, b"7"))
    assert 5_200 < size < 5_300


def test_rows_without_values_count() -> None:
    assert _size(Result(["x"], 100_000, None)) > 1_000_000


def test_an_answer_without_rows_counts() -> None:
    assert 20 < _size(Result([], 0, None)) < 60
