"""What a trace itself takes of the sessions in it: an estimate, from how much was recorded."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.observing.trace.file.records import (
    EXACT,
    UNTIMED,
    WORKERS,
    CallKind,
    NodeRun,
    RowSources,
)

#: Calls of a node that are timed at any frequency (rows.h).
_FIRST_CALLS = 64
#: Of a node that parallel workers run as well: with PostgreSQL's usual two, the leader's part.
_LEADERS = 1 / 3


@dataclass(frozen=True)
class Costs:
    """In ns, without readings of the clock. Weighed against no trace: docs/trace.md."""

    reading_ns: float = 10.0
    """One reading of the clock."""
    wait_ns: float = 15.0
    """A wait; and two and a half readings."""
    request_ns: float = 600.0
    """A request, from the message to its answer."""
    call_ns: float = 200.0
    """The record of a call, values and all; its readings are in it."""
    parse_ns: float = 1000.0
    """And of a parse, as it mostly comes with a text that is new."""
    fetch_ns: float = 10.0
    """A further fetch that shares a record; and two readings."""
    execution_ns: float = 400.0
    """To measure row sources of an execution,"""
    node_ns: float = 150.0
    """of each node,"""
    timed_ns: float = 8.0
    """of each call that is timed, and two readings,"""
    counted_ns: float = 5.0
    """and of each other call."""

    def of_waits(self, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """What a number of waits took."""
        return times * (self.wait_ns + 2.5 * self.reading_ns)

    def of_calls(
        self, kinds: npt.NDArray[np.integer[Any]], fetches: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """What each record of a call took. fetches: those in it, after the first."""
        each = np.where(kinds == CallKind.PARSE, self.parse_ns, self.call_ns)
        return np.asarray(each + fetches * (self.fetch_ns + 2 * self.reading_ns), np.float64)

    def of_row_sources(self, run: RowSources) -> float:
        """What it took to measure an execution's row sources, in the session itself."""
        return self.execution_ns + sum(self._of_node(node, run.sampling) for node in run.nodes)

    def _of_node(self, node: NodeRun, sampling: int) -> float:
        calls = float(node.calls) * (_LEADERS if node.flags & WORKERS else 1.0)
        if node.flags & UNTIMED:
            return self.node_ns
        sampled = min(calls, _FIRST_CALLS + calls / max(sampling, 1))
        timed = calls if node.flags & EXACT else sampled
        return (
            self.node_ns
            + timed * (self.timed_ns + 2 * self.reading_ns)
            + (calls - timed) * self.counted_ns
        )


def of_recording(recording: dict[str, Any]) -> Costs:
    """What a recording notes of them; else the usual ones: the server's worker measures none."""
    noted_costs = recording.get("costs")
    found = noted_costs if isinstance(noted_costs, dict) else {}
    names = {field.name for field in fields(Costs)}
    return Costs(
        **{
            name: float(value)
            for name, value in found.items()
            if name in names and isinstance(value, int | float) and 0 <= value < 1e6
        }
    )
