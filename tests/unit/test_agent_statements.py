"""What statements grew by, against a table that is simulated entry by entry."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtare.postgres.wait_counters.counter_table import (
    ACTIVE_NS,
    CALLS,
    NO_MAXIMUM,
    TOTAL_NS,
    WIDTH,
    CounterTable,
)
from pgtare.postgres.wait_counters.difference import (
    carried_over,
    difference,
    kept_types,
    processor_rows,
    statement_difference,
)
from pgtare.postgres.wait_counters.epoch import ReadingBaseline, Transition

SECOND = 1_000_000_000
SAME = Transition(ReadingBaseline.SAME, 10 * SECOND)
FULL_RESET = Transition(ReadingBaseline.RESET, 0)


@dataclass
class SimulatedEntries:
    """Entries by query: identity, calls, ns. Waits in progress belong to a query, not an entry."""

    now: int = 0
    entries: dict[int, list[int]] = field(default_factory=dict)
    given: int = 0
    since: dict[int, int] = field(default_factory=dict)
    passed: Counter[int] = field(default_factory=Counter)
    """all time in waits by query, as it passes"""

    def end(self, query: int) -> None:
        if query in self.since:
            length = self.now - self.since.pop(query)
            entry = self.entries.get(query)
            if entry is None:
                self.given += 1
                entry = self.entries[query] = [self.given, 0, 0]
            entry[1] += 1
            entry[2] += length

    def go_on(self, ns: int) -> None:
        self.now += ns
        for query in self.since:
            self.passed[query] += ns

    def read(self, left_out: int) -> CounterTable:
        """left_out: a query whose entry cannot be read now."""
        rows = []
        for query in sorted(self.entries.keys() | self.since.keys()):
            identity, calls, total = self.entries.get(query, [0, 0, 0])
            if query == left_out:
                identity, calls, total = 0, 0, 0
            running = self.now - self.since[query] if query in self.since else 0
            if identity or query in self.since:
                rows.append((query, identity, calls, total, running, query in self.since))
        sums = np.zeros((len(rows), WIDTH), np.int64)
        for number, (_, _, calls, total, running, _) in enumerate(rows):
            sums[number, [CALLS, TOTAL_NS, ACTIVE_NS]] = calls, total, total + running
        ones = np.ones(len(rows), np.int64)
        keys = {
            "role_oid": ones,
            "database_oid": ones,
            "query_id": np.array([row[0] for row in rows], np.int64),
            "identity": np.array([row[1] for row in rows], np.int64),
            "type": np.full(len(rows), "Lock"),
            "event": np.full(len(rows), "relation"),
            "idle": np.zeros(len(rows), bool),
        }
        under_way = np.array([row[5] for row in rows], np.int64)
        return CounterTable(keys, sums, sums[:, TOTAL_NS].copy(), under_way, ones)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin"] * 3 + ["end"] * 3 + ["read", "read", "busy", "evict", "reset"]),
        st.integers(1, 3),
        st.integers(1, 3 * SECOND),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=200)
@given(STEPS)
def test_each_identity_counts_once_whatever_is_evicted_reset_or_busy(
    steps: list[tuple[str, int, int]],
) -> None:
    server = SimulatedEntries()
    last = server.read(0)
    change = SAME
    booked: Counter[str] = Counter()
    seen: dict[int, int] = {}
    lost = False
    for what, query, ns in [*steps, ("read", 0, 1), ("read", 0, 1)]:
        server.go_on(ns)
        if what == "begin":
            server.since.setdefault(query, server.now)
        elif what == "end":
            server.end(query)
        elif what == "evict" and query in server.entries:
            del server.entries[query]
            lost = True
        elif what == "reset":
            server.entries.clear()
            change, lost = FULL_RESET, True
        elif what in ("read", "busy"):
            left_out = query if what == "busy" else 0
            now = server.read(left_out)
            seen |= {e[0]: e[1] for q, e in server.entries.items() if q != left_out}
            kept = carried_over(last, now) if left_out else now
            grown = statement_difference(last, kept, change)
            booked["calls"] += int(grown.sums[:, CALLS].sum())
            booked["active"] += int(grown.sums[:, ACTIVE_NS].sum())
            last, change = kept, SAME
            assert booked["calls"] == sum(seen.values())
    if not lost:
        assert booked["active"] == server.passed.total()


def waits(*rows: tuple[str, str, int]) -> CounterTable:
    """Entries: (type of process, event, active_ns); without an event, its time."""
    sums = np.zeros((len(rows), WIDTH), np.int64)
    sums[:, ACTIVE_NS] = sums[:, TOTAL_NS] = [ns for *_, ns in rows]
    keys = {
        "backend_type": np.array([kind for kind, _, _ in rows], "U20"),
        "type": np.array(["IO" if event else "" for _, event, _ in rows], "U20"),
        "event": np.array([event for _, event, _ in rows], "U20"),
        "idle": np.zeros(len(rows), bool),
    }
    ones = np.ones(len(rows), np.int64)
    return CounterTable(keys, sums, ones * NO_MAXIMUM, ones, ones)


def test_time_that_is_no_wait_was_on_a_processor() -> None:
    grown = waits(
        ("b", "read", 30), ("a", "read", 5), ("b", "write", 20), ("b", "", 90), ("a", "", 9)
    )
    found = processor_rows(grown, SAME)
    cpu = found.select(found.keys["type"] == "CPU")
    times = dict(zip(cpu.keys["backend_type"], cpu.sums[:, ACTIVE_NS], strict=True))
    assert times == {"b": 40, "a": 4}
    assert len(found) == 5


def test_after_a_reset_time_on_a_processor_is_that_since_then() -> None:
    """The reset leaves the time of processes as it was; of the 40 since the last reading, 30."""
    change = Transition(ReadingBaseline.RESET, covered_ns=6, before_ns=2)
    first = waits(("a", "", 1000), ("b", "", 1000), ("a", "read", 500))
    last = waits(("a", "", 1040), ("b", "", 1008), ("a", "read", 10), ("b", "read", 7))
    found = processor_rows(difference(first, last, change), change)
    cpu = found.select(found.keys["type"] == "CPU")
    assert dict(zip(cpu.keys["backend_type"], cpu.sums[:, ACTIVE_NS], strict=True)) == {"a": 20}


def test_a_type_that_could_not_be_read_stays_as_it_was() -> None:
    first = waits(("a", "read", 5), ("b", "read", 7))
    last = waits(("a", "read", 6), ("b", "read", 1))
    kept = kept_types(first, last, np.array(["b"]))
    times = dict(zip(kept.keys["backend_type"], kept.sums[:, ACTIVE_NS], strict=True))
    assert times == {"a": 6, "b": 7}
