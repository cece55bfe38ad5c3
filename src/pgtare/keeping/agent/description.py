"""What a server is: its labels, and which data directory, as a row each time that it changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from pgtare.keeping.agent.rows import EXACT, Batch, RowInterval
from pgtare.keeping.agent.server_session import Offer
from pgtare.keeping.spool.tables import DESCRIPTION

#: The part of a stored reading that says what the server is.
_PART = "description"
_SCHEMA = pa.schema([column.field for column in DESCRIPTION])


class ServerDescription:
    """What is known of one server, for `servers`.

    server: its name. agent: UUID. stored: readings of the spool.
    """

    def __init__(self, server: str, agent: str, stored: Callable[[str], pa.Table | None]) -> None:
        self._server, self._agent = server, agent
        found = stored(_PART)
        rows = found.to_pylist() if found is not None and found.schema == _SCHEMA else []
        self._known: dict[str, Any] | None = rows[0] if rows else None

    def changed(self, labels: Mapping[str, str], offer: Offer | None) -> Batch:
        """A row, unless the spool has it.

        labels: from the configuration. offer: None before the server is reached.
        """
        now = dict(self._known or dict.fromkeys(_SCHEMA.names))
        now["labels"] = json.dumps(labels, ensure_ascii=False, sort_keys=True)
        if offer is not None:
            now["system_identifier"] = offer.system_identifier or None
            now["standby"] = offer.standby
        batch = Batch()
        if now != self._known:
            columns = {name: [value] for name, value in now.items()}
            ended = time.time_ns() // 1000
            batch.add(
                "servers", columns, RowInterval(self._server, self._agent, 0, ended, 0, EXACT), 1
            )
            batch.readings[_PART] = pa.table(columns, _SCHEMA)
            self._known = now
        return batch
