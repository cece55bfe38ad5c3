"""Waits as a terminal shows them: one line a session, units, percentiles."""

from __future__ import annotations

import re

import pytest

from pgtare.observing.waits import show
from pgtare.postgres.wait_counters.model import Counters, Event, Session, Statement
from pgtare.postgres.wait_counters.rates import StatementRate, WaitsProfile
from pgtare.postgres.wait_counters.reader import Bucket
from tests.terminal import printed

LOCK = Event("Lock", "transactionid", False)


def test_a_session_takes_one_line_at_80_columns_and_keeps_its_numbers() -> None:
    session = Session(
        pid=1234567,
        backend_type="client backend",
        capture="trace",
        missed=0,
        user="application",
        database="production",
        application="nightly reports of all branches",
        state="active",
        wait=LOCK,
        wait_ms=12_345.0,
        blocked_by=(1234568, 0, 0),
    )
    events = {1234567: {LOCK: Counters(waits=1, total_ms=8.389)}}
    lines = printed(show.sessions_view([session], events), 80).splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("1234567 ")
    assert "8.39 ms" in lines[1]
    assert "12.3 s" in lines[1]
    wide = printed(show.sessions_view([session], {}), 400).splitlines()
    assert "nightly reports of all branches" in wide[1]
    assert "1234568, prepared transaction  " in wide[1]


def test_lengths_change_their_unit_at_a_millisecond() -> None:
    assert [show.length(ms) for ms in (0.999, 1.0, 8.389, 16.8)] == [
        "999 µs",
        "1.00 ms",
        "8.39 ms",
        "16.8 ms",
    ]


def test_percentiles_are_bounds_of_buckets() -> None:
    histogram = (50, 40, 6, 4, *(0,) * 28)
    assert show.percentiles(histogram) == {50: 0, 95: 2, 99: 3}
    buckets = [Bucket(float(i), None if i == 31 else float(i + 1)) for i in range(32)]
    counters = Counters(waits=100, total_ms=90, histogram=histogram)
    assert (
        "95 % of waits under 3.00 ms"
        in printed(show.histogram_view(LOCK, counters, buckets), 200).splitlines()[1]
    )


def test_the_table_of_statements_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows for those that are not listed, and for what is at no statement."""
    statements = tuple(
        StatementRate(statement=Statement(0, 0, i), active=active, share=active / 4.0)
        for i, active in enumerate((1.0, 0.5, 0.25), start=1)
    )
    found = WaitsProfile(
        duration_s=1.0,
        active=4.0,
        on_cpu=0.25,
        events=(),
        statements=statements,
        on_cpu_by="counted",
        cpu_elsewhere=0.25,
    )
    found = found.model_copy(update={"waits_elsewhere": 2.0})
    monkeypatch.setattr(show, "_ROWS", 1)
    rows = printed(show.profile_view(found), 120).splitlines()
    shown = rows[next(i for i, row in enumerate(rows) if row.startswith("statement")) + 1 :]
    active = [float(re.findall(r" (\d\.\d\d) ", f"{row} ")[0]) for row in shown if row.strip()]
    assert len(active) == 4
    assert sum(active) == found.active
    assert "2 more" in shown[1]
    assert "waits of no statement" in shown[2]
