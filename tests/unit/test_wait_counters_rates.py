"""Profiles between two snapshots: shares, average active sessions, and what cannot be compared."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgtare.errors import UsageError
from pgtare.observing.waits.live import watch
from pgtare.postgres import run_queue
from pgtare.postgres.wait_counters.model import (
    Client,
    Counters,
    Event,
    EventRow,
    Losses,
    ReaderClock,
    Snapshot,
    Statement,
    StatementRow,
    Timed,
)
from pgtare.postgres.wait_counters.rates import (
    FEWEST,
    CountersReset,
    CpuSamples,
    ProcessUnread,
    StatementEvent,
    WaitsProfile,
    grown,
    profile,
)
from tests.commands import refused

START = datetime(2026, 1, 1, tzinfo=UTC)
READ = Event("IO", "DataFileRead", False)
SYNC = Event("IO", "WalSync", False)
CLIENT = Event("Client", "ClientRead", True)
QUERY = Statement(10, 5, -77)
CLIENTS = ("client backend",)


def counters(waits: int, total_ms: float, running_ms: float = 0.0) -> Counters:
    histogram = (waits, *(0,) * 31)
    return Counters(
        waits=waits, calls=waits, total_ms=total_ms, running_ms=running_ms, histogram=histogram
    )


def snapshot(
    seconds: float, events: dict[Event, Counters], backend: str = "client backend", **more: Any
) -> Snapshot:
    values: dict[str, Any] = {
        "taken": START + timedelta(seconds=seconds),
        "server": "18.6",
        "started": START,
        "stats_reset": START,
        "events": [
            EventRow(backend_type=backend, event=event, counters=c) for event, c in events.items()
        ],
        "statements": [],
        "texts": {},
    }
    return Snapshot(**(values | more))


def test_shares_and_active_sessions() -> None:
    before = snapshot(0, {READ: counters(10, 100), CLIENT: counters(1, 1000)})
    after = snapshot(
        2, {READ: counters(30, 1100), CLIENT: counters(9, 9000), SYNC: counters(5, 500)}
    )
    found = profile(before, after, CpuSamples(40, {-77: 10}))
    assert found.duration_s == 2
    assert found.active == pytest.approx(0.5 + 0.25 + 0.25)
    assert found.on_cpu == 0.25
    assert [(r.event, r.active, r.share) for r in found.events] == [
        (READ, 0.5, 0.5),
        (SYNC, 0.25, 0.25),
    ]
    assert found.events[0].waits_per_s == 10
    assert found.events[0].mean_ms == 50


def test_idle_waits_are_listed_when_asked_for_and_are_no_activity() -> None:
    before = snapshot(0, {CLIENT: counters(1, 0)})
    after = snapshot(1, {CLIENT: counters(2, 900)})
    assert profile(before, after).events == ()
    found = profile(before, after, idle=True)
    assert (found.active, found.events[0].share, found.events[0].active) == (0, 0, 0.9)


def test_background_processes_are_listed_when_asked_for() -> None:
    before = snapshot(0, {SYNC: counters(1, 0)}, backend="walwriter")
    after = snapshot(1, {SYNC: counters(2, 900)}, backend="walwriter")
    assert profile(before, after).active == 0
    assert profile(before, after, background=True).active == pytest.approx(0.9)


def test_a_wait_under_way_counts_as_it_goes() -> None:
    before = snapshot(0, {READ: counters(0, 0, running_ms=3000)})
    going = snapshot(2, {READ: counters(0, 0, running_ms=5000)})
    ended = snapshot(4, {READ: counters(1, 6000)})
    assert profile(before, going).active == 1
    assert profile(going, ended).active == 0.5


def test_the_mean_is_that_of_waits_that_ended() -> None:
    """Ten sessions that are blocked all the time do not make one short wait a long one."""
    before = snapshot(0, {READ: counters(0, 0)})
    after = snapshot(2, {READ: counters(1, 1, running_ms=20_000)})
    (found,) = profile(before, after).events
    assert (found.waits, found.mean_ms) == (1, 1)
    assert (found.total_ms, found.active) == (20_001, pytest.approx(10, rel=1e-3))


def test_what_is_not_counted_yet_is_no_time_below_zero() -> None:
    assert grown(counters(5, 10, running_ms=5), counters(5, 10)) == Counters()


def test_time_by_statement() -> None:
    row = StatementRow(statement=QUERY, event=READ, counters=counters(3, 400))
    before = snapshot(0, {})
    after = snapshot(1, {READ: counters(3, 400)}, statements=[row], texts={-77: "SELECT 1"})
    (found,) = profile(before, after, CpuSamples(100, {-77: 10})).statements
    assert (found.text, found.on_cpu, found.cpu_samples) == ("SELECT 1", 0.1, 10)
    assert found.active == pytest.approx(0.5)
    assert found.share == pytest.approx(1)
    assert found.events == (StatementEvent(event=READ, active=0.4),)


@pytest.mark.parametrize(
    ("seconds", "changed", "message"),
    [
        (1, {"stats_reset": START + timedelta(seconds=1)}, "reset between"),
        (1, {"started": START + timedelta(seconds=1)}, "restarted"),
        (0, {}, "swap them"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    seconds: float, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        profile(snapshot(0, {}), snapshot(seconds, {}, **changed))


def test_counters_of_which_some_were_reset_are_refused() -> None:
    before, after = snapshot(0, {READ: counters(9, 90)}), snapshot(1, {READ: counters(3, 30)})
    counted = [
        s.model_copy(update={"losses": Losses(resets=n)}) for n, s in ((4, before), (5, after))
    ]
    with pytest.raises(CountersReset, match="take the first one after"):
        profile(*counted)


def clients(*captured: str | None) -> tuple[Client, ...]:
    return tuple(
        Client(pid=100 + n, started=START, capture=level) for n, level in enumerate(captured)
    )


def test_sessions_that_are_not_captured_are_reported_and_leave_no_shares() -> None:
    all_seen, half_seen = clients("stats", "trace"), clients("stats", "off", None)
    before = snapshot(0, {READ: counters(0, 0)}, clients=all_seen)
    rows = {READ: counters(5, 500)}
    whole = profile(before, snapshot(1, rows, clients=all_seen))
    assert (whole.notes, whole.events[0].share) == ((), 1)
    found = profile(before, snapshot(1, rows, clients=half_seen), CpuSamples(10, {0: 1}))
    assert "2 of 3 client sessions are not captured" in found.notes[0]
    assert found.events[0].share is None
    assert found.events[0].active == 0.5
    (partial,) = profile(snapshot(0, {}), snapshot(1, rows)).notes
    assert "pg_read_all_stats" in partial


def test_losses_are_reported_by_their_growth() -> None:
    lost = {"clients": (), "losses": Losses(missed=7, statements_evicted=3)}
    more = {"clients": (), "losses": Losses(missed=9, statements_evicted=3)}
    assert profile(snapshot(0, {}, **lost), snapshot(1, {}, **lost)).notes == ()
    (note,) = profile(snapshot(0, {}, **lost), snapshot(1, {}, **more)).notes
    assert note == "seen but not counted (missed): 2 waits"


def times(**ms: float) -> dict[str, Timed]:
    return {
        kind.replace("_", " "): Timed(processes=1, total_ms=total) for kind, total in ms.items()
    }


def test_time_that_is_no_wait_is_time_on_a_processor() -> None:
    before = snapshot(0, {CLIENT: counters(1, 100)}, timed=times(client_backend=5000))
    rows = {CLIENT: counters(2, 1700), READ: counters(1, 400)}
    after = times(client_backend=8600, parallel_worker=400, checkpointer=9999)
    found = profile(before, snapshot(2, rows, timed=after), idle=True)
    assert (found.sessions, found.idle, found.on_cpu_by) == (2.0, 0.8, "counted")
    assert found.on_cpu == pytest.approx(1.0)
    assert found.active == pytest.approx(1.2)
    parts = found.on_cpu + sum(rate.active for rate in found.events)
    assert parts == pytest.approx(found.sessions)
    assert profile(snapshot(0, {}), snapshot(2, rows, timed=after)).on_cpu is None


def test_processor_time_of_few_samples_is_at_no_statement() -> None:
    before = snapshot(0, {}, timed=times(client_backend=0))
    after = snapshot(1, {}, timed=times(client_backend=1000))
    hits = {-77: FEWEST - 1, 5: 30, 0: 13}
    found = profile(before, after, CpuSamples(50, hits))
    few, many = sorted(found.statements, key=lambda rate: rate.cpu_samples)
    assert (few.on_cpu, few.active, few.cpu_samples) == (None, 0, FEWEST - 1)
    assert many.on_cpu == pytest.approx(0.6)
    assert many.on_cpu_lo == pytest.approx(0.4618, abs=1e-3)  # Wilson's of 30 of 50
    assert many.on_cpu_hi == pytest.approx(0.7239, abs=1e-3)
    assert found.cpu_elsewhere == pytest.approx(0.4)
    assert found.cpu_samples == 50


def test_statements_and_what_is_at_none_add_up() -> None:
    row = StatementRow(statement=QUERY, event=READ, counters=counters(3, 150))
    timed = {"timed": times(client_backend=0)}, {"timed": times(client_backend=1000)}
    before = snapshot(0, {}, **timed[0])
    after = snapshot(1, {READ: counters(3, 400)}, statements=[row], **timed[1])
    found = profile(before, after, CpuSamples(20, {-77: 10, 0: 10}))
    assert found.waits_elsewhere == pytest.approx(0.25)
    assert found.cpu_elsewhere is not None
    parts = sum(rate.active for rate in found.statements)
    parts += found.waits_elsewhere + found.cpu_elsewhere
    assert parts == pytest.approx(found.active)


def test_a_statement_waits_no_longer_than_all_did() -> None:
    row = StatementRow(statement=QUERY, event=READ, counters=counters(3, 5000))
    after = snapshot(1, {READ: counters(3, 400)}, statements=[row])
    (found,) = profile(snapshot(0, {}), after).statements
    assert found.events == (StatementEvent(event=READ, active=0.4),)


@pytest.mark.parametrize(
    ("first", "second", "spent"), [(7, 7, 0.3), (7, 8, 0.395), (None, 8, 0.3), (7, None, 0.3)]
)
def test_an_entry_that_was_made_again_counts_from_zero(
    first: int | None, second: int | None, spent: float
) -> None:
    """Waits under way as the first snapshot was taken count from there all the same."""
    rows = [
        StatementRow(statement=QUERY, event=READ, counters=c, identity=identity)
        for identity, c in ((first, counters(3, 95, running_ms=5)), (second, counters(5, 400)))
    ]
    before = snapshot(0, {}, statements=rows[:1])
    after = snapshot(1, {READ: counters(9, 900)}, statements=rows[1:])
    (found,) = profile(before, after).statements
    (part,) = found.events
    assert (part.event, part.active) == (READ, pytest.approx(spent))


def entry(waits: int, total_ms: float, identity: int | None = 7) -> StatementRow:
    row = counters(waits, total_ms)
    return StatementRow(statement=QUERY, event=READ, counters=row, identity=identity)


def under_way(ms: float) -> StatementRow:
    return StatementRow(statement=QUERY, event=READ, counters=counters(0, 0, running_ms=ms))


def test_an_entry_in_a_part_that_was_busy_counts_only_what_is_known_to_be_new() -> None:
    """It may be as old as the server, and others' time would be booked twice."""
    rows = [entry(900, 90_000), under_way(500)]
    before = snapshot(0, {READ: counters(999, 99_000)}, statements=[under_way(400)], busy=1)
    after = snapshot(1, {READ: counters(1009, 100_000)}, statements=rows)
    found = profile(before, after)
    assert found.active == pytest.approx(1)
    assert [(one.statement, one.active) for one in found.statements] == [(QUERY, 0.1)]
    assert found.waits_elsewhere == pytest.approx(0.9)


def watched(monkeypatch: pytest.MonkeyPatch, *snapshots: Snapshot) -> Iterator[WaitsProfile]:
    """What `waits top` shows of these."""
    monkeypatch.setattr(run_queue, "is_local", lambda *_: False)
    left = iter(snapshots)
    reader: Any = SimpleNamespace(
        snapshot=lambda texts: next(left),
        texts=lambda _: {},
        sees_all=False,
        pid=1,
        conn=SimpleNamespace(info=SimpleNamespace(host="")),
    )
    return watch(reader, 0, None, idle=False, background=False)


def test_an_entry_that_a_look_lacks_is_compared_with_the_look_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = [
        snapshot(0, {READ: counters(900, 90_000)}, statements=[entry(900, 90_000)]),
        snapshot(1, {READ: counters(901, 90_100)}, busy=1),
        snapshot(2, {READ: counters(904, 90_700)}, statements=[entry(903, 90_400)]),
        snapshot(3, {READ: counters(905, 90_900)}, statements=[entry(904, 90_600)]),
    ]
    found = watched(monkeypatch, *ends)
    parts = [
        (sum(one.active for one in each.statements), each.waits_elsewhere)
        for each in (next(found) for _ in range(3))
    ]
    assert parts == [pytest.approx(each) for each in ((0, 0.1), (0.4, 0.2), (0.2, 0))]


def test_an_interval_of_which_an_end_lacks_a_process_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = [
        snapshot(0, {READ: counters(900, 90_000)}),
        snapshot(1, {READ: counters(10, 1_000)}, unread=CLIENTS),
        snapshot(2, {READ: counters(901, 90_100)}),
        snapshot(3, {READ: counters(902, 90_600)}),
        snapshot(4, {}, unread=CLIENTS),
        snapshot(5, {}, unread=CLIENTS),
    ]
    found = watched(monkeypatch, *ends)
    first = next(found)
    assert first.active == pytest.approx(0.5)
    assert "a process was stopped: the figures begin after that" in first.notes
    with pytest.raises(ProcessUnread, match=r"client backend.*kill -CONT"):
        next(found)
    for before, after in itertools.pairwise(ends[:3]):
        with pytest.raises(ProcessUnread):
            profile(before, after)


def test_processes_that_are_not_shown_may_be_unread() -> None:
    before = snapshot(0, {}, unread=("walwriter",))
    after = snapshot(1, {READ: counters(1, 500)})
    assert profile(before, after).active == 0.5
    with pytest.raises(ProcessUnread):
        profile(before, after, background=True)


def test_a_snapshot_survives_its_file() -> None:
    kept = snapshot(3, {READ: counters(3, 1.25)}, texts={-77: "SELECT '</script>'"})
    text = kept.model_dump_json(by_alias=True)
    assert '"schema":"pgtare.waits.snapshot/1"' in text
    assert Snapshot.model_validate_json(text) == kept


def test_a_snapshot_of_another_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    kept = snapshot(3, {READ: counters(3, 1.25)}, clients=clients("stats"))
    document = json.loads(kept.model_dump_json(by_alias=True))
    document["clients"][0]["timed"] = True  # as earlier builds wrote it
    path = tmp_path / "before.json"
    path.write_text(json.dumps(document))
    message = refused("waits", "diff", path, path)
    assert f"{path} is no snapshot of this version of pgtare: take one with" in message


def test_what_readers_left_out_is_said() -> None:
    first, last = (
        snapshot(n, {READ: counters(n, 10.0 * n)}).model_copy(
            update={"losses": Losses(resets=0, skipped=skipped)}
        )
        for n, skipped in ((1, 3), (2, 5))
    )
    (note,) = (note for note in profile(first, last).notes if "skipped" in note)
    assert note.endswith("2 processes or parts of the table of statements")
    assert not any("skipped" in note for note in profile(first, first_again(first)).notes)


def first_again(of: Snapshot) -> Snapshot:
    """The same, a second later."""
    return of.model_copy(update={"taken": of.taken + timedelta(seconds=1)})


@pytest.mark.parametrize(("boot", "seconds"), [("a", 2.0), ("b", 3600.0)])
def test_a_clock_that_was_set_gives_way_to_ours_of_the_same_boot(boot: str, seconds: float) -> None:
    first, last = (
        ReaderClock(boot=name, monotonic_ns=ns, answer_ns=10**6)
        for name, ns in (("a", 10**9), (boot, 3 * 10**9))
    )
    before = snapshot(0, {READ: counters(1, 100)}, reader_clock=first)
    after = snapshot(3600, {READ: counters(2, 200)}, reader_clock=last)
    assert profile(before, after).duration_s == seconds
    with pytest.raises(UsageError, match="swap them"):
        profile(after, before)
