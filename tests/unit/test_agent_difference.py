"""What counters grew by, against a server that is simulated event by event."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtare.postgres.wait_counters.counter_table import (
    ACTIVE_NS,
    CALLS,
    FIRST_BUCKET,
    NO_MAXIMUM,
    TOTAL_NS,
    WIDTH,
    CounterTable,
)
from pgtare.postgres.wait_counters.difference import carried_over, difference, statement_rows
from pgtare.postgres.wait_counters.epoch import Origin, ReadingBaseline, Taken, Transition, between

SECOND = 1_000_000_000
EVENTS = [("Lock", "relation"), ("IO", "DataFileRead"), ("Client", "ClientRead")]
Key = tuple[str, ...]


@dataclass
class SimulatedServer:
    """Counts waits one by one in dictionaries; knows nothing of arrays, epochs or baselines."""

    now_us: int = 1_000_000
    started_us: int = 0
    reset_us: int = 0
    memory_us: int = 0
    resets: int = 0
    totals: dict[Key, Counter[int]] = field(default_factory=dict)
    longest: dict[Key, int] = field(default_factory=dict)
    running: list[tuple[Key, int]] = field(default_factory=list)

    def finish(self, key: Key, length_ns: int, calls: int) -> None:
        sums = self.totals.setdefault(key, Counter())
        sums[CALLS] += calls
        sums[TOTAL_NS] += length_ns
        sums[FIRST_BUCKET + min(31, max(0, length_ns.bit_length() - 8))] += 1
        self.longest[key] = max(self.longest.get(key, 0), length_ns)

    def begin(self, key: Key) -> None:
        self.running.append((key, self.now_us))

    def end(self, number: int) -> None:
        key, since = self.running.pop(number % len(self.running))
        self.finish(key, 1000 * (self.now_us - since), 1)

    def forget(self) -> None:
        self.totals.clear()
        self.longest.clear()

    def restart(self) -> None:
        self.forget()
        self.running.clear()
        self.started_us = self.memory_us = self.reset_us = self.now_us
        self.resets = 0

    def reset(self) -> None:
        self.forget()
        self.reset_us = self.now_us
        self.resets += 1

    def reset_one(self, key: Key) -> None:
        """As `reset(pid)`: what one process counted is taken out."""
        for column in self.totals.get(key, Counter()):
            self.totals[key][column] //= 2
        self.resets += 1

    def origin(self) -> Origin:
        return Origin(7, self.started_us, self.memory_us, self.reset_us, self.resets)

    def read(self) -> CounterTable:
        keys = sorted(self.totals.keys() | {key for key, _ in self.running})
        sums = np.zeros((len(keys), WIDTH), np.int64)
        for row, key in enumerate(keys):
            for column, value in self.totals.get(key, {}).items():
                sums[row, column] = value
            lasting = [1000 * (self.now_us - since) for k, since in self.running if k == key]
            sums[row, ACTIVE_NS] = sums[row, TOTAL_NS] + sum(lasting)
        return CounterTable(
            {
                "type": np.array([key[0] for key in keys], "U20"),
                "event": np.array([key[1] for key in keys], "U20"),
            },
            sums,
            np.array([self.longest.get(key, 0) for key in keys], np.int64),
            np.array([sum(k == key for k, _ in self.running) for key in keys], np.int64),
            np.ones(len(keys), np.int64),
        )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait"] * 5
            + ["begin", "end", "end", "read", "read", "pass"]
            + ["restart", "reset", "reset one"]
        ),
        st.integers(0, 2),
        st.integers(1, 3 * SECOND),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(STEPS)
def test_within_an_epoch_rows_sum_to_the_last_reading_less_the_first(
    steps: list[tuple[str, int, int]],
) -> None:
    server = SimulatedServer()
    before: tuple[Origin, Taken] | None = None
    first: CounterTable | None = None
    booked: dict[int, Counter[tuple[str, str, int]]] = {}
    begins: dict[int, Counter[tuple[str, str, int]]] = {}
    for what, number, length in [*steps, ("read", 0, 1)]:
        key = EVENTS[number]
        server.now_us += 1 + length // 1000
        if what == "wait":
            server.finish(key, length, 1 + number)
        elif what == "begin":
            server.begin(key)
        elif what == "end" and server.running:
            server.end(length)
        elif what == "restart":
            server.restart()
        elif what == "reset":
            server.reset()
        elif what == "reset one":
            server.reset_one(key)
        if what != "read":
            continue
        server.now_us += 1
        after = (server.origin(), Taken(server.now_us, server.now_us, 1000 * server.now_us))
        last = server.read()
        transition = between(before, after, 10)
        grown = difference(first, last, transition)
        epoch = after[0].epoch
        sums = booked.setdefault(epoch, Counter())
        for row in range(len(grown)):
            name = (grown.keys["type"][row], grown.keys["event"][row])
            for column in range(WIDTH):
                sums[(*name, column)] += int(grown.sums[row, column])
        if transition.baseline is ReadingBaseline.ANEW:
            begins[epoch] = flat(last)
        elif transition.baseline in (ReadingBaseline.ZERO, ReadingBaseline.RESET):
            begins[epoch] = Counter()
            for row in range(len(grown)):  # a wait in progress has a baseline of its own
                name = (grown.keys["type"][row], grown.keys["event"][row], ACTIVE_NS)
                begins[epoch][name] = flat(last)[name] - int(grown.sums[row, ACTIVE_NS])
            assert not before or transition.gap is not None
        for cell, value in flat(last).items():
            assert sums[cell] == value - begins[epoch][cell], (cell, transition)
        before, first = after, last


def flat(table: CounterTable) -> Counter[tuple[str, str, int]]:
    cells: Counter[tuple[str, str, int]] = Counter()
    for row in range(len(table)):
        name = (table.keys["type"][row], table.keys["event"][row])
        for column in range(WIDTH):
            cells[(*name, column)] = int(table.sums[row, column])
    return cells


def table(*rows: tuple[str, int, int, int, int], **keys: list[int]) -> CounterTable:
    """Entries of type IO: (event, calls, total_ns, active_ns, running)."""
    sums = np.zeros((len(rows), WIDTH), np.int64)
    for number, (_, calls, total, active, _) in enumerate(rows):
        sums[number, :3] = calls, total, active
    return CounterTable(
        {
            **{name: np.array(values, np.int64) for name, values in keys.items()},
            "type": np.array(["IO"] * len(rows), "U20"),
            "event": np.array([event for event, *_ in rows], "U20"),
        },
        sums,
        np.array([total for _, _, total, *_ in rows], np.int64),
        np.array([running for *_, running in rows], np.int64),
        np.ones(len(rows), np.int64),
    )


SAME = Transition(ReadingBaseline.SAME, 10 * SECOND)


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_a_held_lock_is_one_active_session_in_each_interval(seed: int) -> None:
    """Also if all counters are reset in between; it began before the agent did."""
    rng = random.Random(seed)
    server = SimulatedServer()
    server.begin(EVENTS[0])
    server.now_us += rng.randrange(10_000_000_000)
    before = (server.origin(), Taken(server.now_us, server.now_us))
    first = server.read()
    for _ in range(8):
        server.now_us += rng.randrange(1, 20_000_000)
        if rng.random() < 0.4:
            server.reset()
            server.now_us += rng.randrange(1, 10_000_000)
        after = (server.origin(), Taken(server.now_us, server.now_us))
        last = server.read()
        transition = between(before, after, 10)
        grown = difference(first, last, transition)
        assert transition.covered_ns > 0
        assert grown.sums[0, ACTIVE_NS] == transition.covered_ns
        assert grown.sums[0, TOTAL_NS] == 0
        before, first = after, last


def test_a_wait_that_ended_after_a_reset_is_booked_from_the_reset_on() -> None:
    server = SimulatedServer()
    server.begin(EVENTS[0])
    server.now_us += 7_200_000_000
    before, first = (server.origin(), Taken(server.now_us, 0)), server.read()
    server.now_us += 4_000_000
    server.reset()
    server.now_us += 3_000_000
    server.end(0)
    server.now_us += 1_000_000
    after = (server.origin(), Taken(server.now_us, 0))
    grown = difference(first, server.read(), between(before, after, 10))
    assert grown.sums[0, ACTIVE_NS] == 3 * SECOND
    assert grown.sums[0, TOTAL_NS] == 7207 * SECOND


def test_the_maximum_is_there_only_if_it_rose() -> None:
    grown = difference(
        table(("a", 1, 5, 5, 0), ("b", 1, 5, 5, 0)),
        table(("a", 2, 5, 5, 0), ("b", 2, 9, 9, 0)),
        SAME,
    )
    assert list(grown.max_ns) == [NO_MAXIMUM, 9]


def test_a_wait_in_progress_that_left_no_trace_is_taken_back() -> None:
    grown = difference(table(("a", 0, 0, 7, 1)), table(), SAME)
    assert grown.sums[0, ACTIVE_NS] == -7


def test_counters_that_fall_within_an_epoch_are_not_clamped() -> None:
    grown = difference(table(("a", 5, 50, 50, 0)), table(("a", 3, 70, 70, 0)), SAME)
    assert list(grown.sums[0, :3]) == [-2, 20, 20]


def test_an_entry_that_was_evicted_and_made_again_counts_from_zero() -> None:
    first = table(("a", 9, 90, 90, 0), ("b", 1, 10, 10, 0), identity=[1, 2])
    last = table(("a", 2, 20, 20, 0), identity=[3])
    grown = difference(first, last, SAME, evicts=True)
    assert list(grown.sums[:, CALLS]) == [2]


def test_entries_that_a_reading_skipped_do_not_count_twice() -> None:
    first = table(("a", 9, 90, 90, 0), ("b", 1, 10, 10, 0), identity=[1, 2])
    skipped = table(("b", 2, 20, 20, 0), identity=[2])
    later = table(("a", 10, 95, 95, 0), ("b", 2, 20, 20, 0), identity=[1, 2])
    kept = carried_over(first, skipped)
    assert difference(first, skipped, SAME, evicts=True).sums[:, CALLS].tolist() == [1]
    assert difference(kept, later, SAME, evicts=True).sums[:, CALLS].tolist() == [1]


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(0, 6))
def test_statements_rest_and_outside_sum_to_all_waits(seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(0, 30)), int(rng.integers(0, 5))
    statements = CounterTable(
        {
            "identity": np.arange(n),
            "role_oid": rng.integers(1, 3, n),
            "database_oid": rng.integers(1, 3, n),
            "query_id": rng.integers(-3, 3, n),
            "type": rng.choice(["IO", "Lock", "Client"], n).astype("U20"),
            "event": rng.choice(["x", "y"], n).astype("U20"),
            "idle": np.zeros(n, bool),
        },
        rng.integers(-5, 100, (n, WIDTH)),
        rng.integers(-1, 9, n),
        rng.integers(0, 2, n),
        np.ones(n, np.int64),
    )
    waits = CounterTable(
        {
            "backend_type": np.array(["client backend"] * m, "U20"),
            "type": rng.choice(["IO", "Activity"], m).astype("U20"),
            "event": rng.choice(["x", "y"], m).astype("U20"),
            "idle": rng.integers(0, 2, m) == 1,
        },
        rng.integers(0, 1000, (m, WIDTH)),
        rng.integers(-1, 9, m),
        rng.integers(0, 2, m),
        np.ones(m, np.int64),
    )
    found = statement_rows(statements, waits, most)
    rows, kind = found.rows, found.kind
    total: Counter[tuple[str, str, int]] = Counter()
    for sign, part in ((1, rows), (-1, waits)):
        for row in range(len(part)):
            for column in range(WIDTH):
                name = (str(part.keys["type"][row]), str(part.keys["event"][row]))
                total[(*name, column)] += sign * int(part.sums[row, column])
    assert set(total.values()) <= {0}
    own = rows.select(kind == "statement")
    named = set(
        zip(*(own.keys[k].tolist() for k in ("role_oid", "database_oid", "query_id")), strict=True)
    )
    assert len(named) <= most
    cost: Counter[tuple[int, ...]] = Counter()
    for row in range(n):
        who = tuple(int(statements.keys[k][row]) for k in ("role_oid", "database_oid", "query_id"))
        cost[who] += int(statements.sums[row, ACTIVE_NS])
    if len(cost) > most > 0:
        least = min(cost[who] for who in named)
        assert all(value <= least for who, value in cost.items() if who not in named)


ORIGIN = Origin(7, 100, 100, 100, 2)


@pytest.mark.parametrize(
    ("last", "baseline", "kind"),
    [
        (ORIGIN, ReadingBaseline.SAME, None),
        (Origin(7, 5_000_000, 5_000_000, 5_000_000, 0), ReadingBaseline.ZERO, "restart"),
        (
            Origin(7, 100, 5_000_000, 5_000_000, 0),
            ReadingBaseline.ZERO,
            "restart",
        ),  # crash: the postmaster stays
        (Origin(7, 100, 100, 5_000_000, 3), ReadingBaseline.RESET, "reset"),
        (Origin(7, 100, 100, 100, 3), ReadingBaseline.ANEW, "reset"),
        (Origin(8, 5_000_000, 5_000_000, 5_000_000, 0), ReadingBaseline.ANEW, "restart"),
        (Origin(7, 100, 5_000_000, 5_000_000, 8), ReadingBaseline.ZERO, "restart"),
        (
            Origin(7, 50, 50, 50, 2),
            ReadingBaseline.ANEW,
            "restart",
        ),  # a standby shares the identifier
    ],
)
def test_the_baseline_after_a_change(
    last: Origin, baseline: ReadingBaseline, kind: str | None
) -> None:
    before = (ORIGIN, Taken(2_000_000, 2_000_000, 2 * SECOND))
    after = (last, Taken(8_000_000, 8_000_000, 8 * SECOND))
    found = between(before, after, 10)
    assert found.baseline is baseline
    assert (found.gap.kind if found.gap else None) == kind
    covered = {
        ReadingBaseline.SAME: 6,
        ReadingBaseline.ZERO: 3,
        ReadingBaseline.RESET: 3,
        ReadingBaseline.ANEW: 0,
    }
    assert found.covered_ns == covered[baseline] * SECOND
    assert found.gap_ns == (6 if found.gap is None else 6 - covered[baseline]) * SECOND
    assert (last.epoch == ORIGIN.epoch) == (baseline is ReadingBaseline.SAME)


def test_an_absence_is_a_gap_that_its_rows_cover() -> None:
    before = (ORIGIN, Taken(2_000_000, 2_500_000))
    after = (ORIGIN, Taken(3_602_000_000, 3_602_500_000))
    found = between(before, after, 10)
    assert found.covered_ns == 3600 * SECOND
    assert found.gap is not None
    assert (found.gap.kind, found.gap.from_us) == ("absence", 2_500_000)
    assert found.gap_ns == found.covered_ns


def test_a_server_clock_that_was_set_back_does_not_count() -> None:
    before = (ORIGIN, Taken(3_600_000_000, 0, 5 * SECOND))
    after = (ORIGIN, Taken(10_000_000, 0, 15 * SECOND))
    assert between(before, after, 10).covered_ns == 10 * SECOND
    restarted = (ORIGIN, Taken(10_000_000, 20_000_000))
    assert between((ORIGIN, Taken(3_600_000_000, 0)), restarted, 10).covered_ns == 20 * SECOND


def test_a_late_answer_is_no_wrong_clock() -> None:
    """The server took its reading long before the agent had it."""
    first = (ORIGIN, Taken(10_000_000, 0, 15 * SECOND))
    late = (ORIGIN, Taken(20_000_000, 0, 28 * SECOND, 3 * SECOND))
    again = (ORIGIN, Taken(30_000_000, 0, 35 * SECOND))
    assert between(first, late, 10).covered_ns == 10 * SECOND
    assert between(late, again, 10).covered_ns == 10 * SECOND
    set_forward = (ORIGIN, Taken(40_000_000, 0, 35 * SECOND, 3 * SECOND))
    assert between(first, set_forward, 10).covered_ns == 20 * SECOND
