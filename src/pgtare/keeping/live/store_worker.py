"""The process that queries a store for the page: `python -m pgtare.keeping.live.store_worker URL`.

It answers as `query_worker` does, a line of JSON for a line. It only reads, and every query has a
limit of time and memory. The password comes from a file or the environment.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pgtare.errors import PgtareError
from pgtare.interrupt import compute_in_one_thread
from pgtare.keeping.live import query_text, store_views
from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store import address, pushed_rows, repair
from pgtare.keeping.store.connection import StoreConnection, StoreError, connect

#: As DuckDB answers: NULL where a join has no match; and no query takes the server's memory.
LIMIT_S = 15
SETTINGS: dict[str, Any] = {
    "join_use_nulls": 1,
    "max_memory_usage": 4_000_000_000,
    "max_execution_time": LIMIT_S,
}
#: What was sent, and what is partial, is looked at again after this, s.
_FRESH_S = 5.0


class StoreWorker:
    """Answers from a store. connect: makes a connection; it is made again after an error."""

    def __init__(self, make: Callable[[], StoreConnection]) -> None:
        self._make = make
        self._connection: StoreConnection | None = None
        self._read_at = -math.inf
        self._rolled_us: dict[str, dict[str, int]] = {}
        self._seq = 0
        self._partial: dict[str, int] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request: columns and rows, or an error in one sentence."""
        try:
            if self._connection is None:
                self._connection = self._make()
            self._refresh(self._connection)
            if "state" in request:
                return self._state(self._connection)
            return self._query(self._connection, request)
        except PgtareError as ex:
            connection, self._connection = self._connection, None
            self._read_at = -math.inf
            if connection is not None:
                connection.close()
            refused = isinstance(ex, StoreError)
            return {"error": f"the store cannot answer: {ex}" if refused else str(ex)}

    def _refresh(self, connection: StoreConnection) -> None:
        """What was sent of each spool, and which tables have partial commits."""
        if time.monotonic() - self._read_at < _FRESH_S:
            return
        found = pushed_rows.pushes(connection, settings=SETTINGS)
        self._rolled_us = {push.spool: push.rolled_us for push in found}
        self._seq = sum(push.seq for push in found)
        self._partial = {}
        for one in repair.partial_seqs(connection, SETTINGS):
            self._partial[one.table] = self._partial.get(one.table, 0) + len(one.seqs)
        self._read_at = time.monotonic()

    def _query(self, connection: StoreConnection, request: dict[str, Any]) -> dict[str, Any]:
        sql = query_text.filled(request["query"], request["identifiers"], request["only"])
        after_us, to_us = request["window"]
        relations = store_views.with_relations(
            query_text.relations(sql),
            connection.database,
            (after_us, to_us),
            request["grain"],
            self._rolled_us,
            self._partial,
        )
        text = f"{relations}\n{sql}"
        names, found = connection.answer(text, query_text.values(text, request), SETTINGS)
        rows = [[_plain(value) for value in row] for row in found]
        return {"columns": names, "rows": rows, "damaged": []}

    def _state(self, connection: StoreConnection) -> dict[str, Any]:
        """As of a spool; what is partial in place of what is damaged."""
        parts = (
            f"SELECT '{name}' AS name, toUnixTimestamp64Micro(min(ts)) AS first_us, "
            f"toUnixTimestamp64Micro(max(ts)) AS last_us, count() AS number "
            f"FROM {connection.database}.{name}"
            for name in TABLES
        )
        _, found = connection.answer(" UNION ALL ".join(parts), settings=SETTINGS)
        spans = {
            str(name): [int(first), int(last), int(rows)]
            for name, first, last, rows in found
            if rows
        }
        partial = [f"{number} commits of {name}" for name, number in sorted(self._partial.items())]
        return {"seq": self._seq, "spans": spans, "left_out": partial}


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, tuple):
        return list(value)
    return value


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this
    compute_in_one_thread()
    store = address.read(sys.argv[1])
    worker = StoreWorker(lambda: connect(store, LIMIT_S + 5))
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
