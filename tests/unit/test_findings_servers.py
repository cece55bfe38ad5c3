"""Findings of the server's own state: whom they name, what they say of slots, what they advise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgtare.observing.findings import compute, remedies
from pgtare.observing.findings.model import of_setting
from pgtare.observing.findings.observation import (
    ServerState,
)
from tests.unit.test_findings import idle, seen, session, statement_state, table, waiter


def test_what_a_standby_cannot_run_is_to_be_run_on_the_primary() -> None:
    state = statement_state(
        tables_before=table(0, 0), tables=table(50, 10_000_000, analyzed=False), standby=True
    )
    (found,) = compute.findings(seen(session(1), session(2), state=state))
    writing = [one for one in found.remedy if one.command]
    assert [one.command.split()[0] for one in writing] == ["ANALYZE", "CREATE"]
    assert all(one.does.startswith("on the primary: ") for one in writing)
    (found,) = compute.findings(seen(session(1), session(2), state=replace(state, standby=False)))
    assert not any("on the primary" in one.does for one in found.remedy)


def test_autovacuum_in_a_ring_or_as_the_gate_is_not_cancelled() -> None:
    worker: dict[str, object] = {
        "backend_type": "autovacuum worker", "role": "", "application": "", "query_age_s": 1.0
    }  # fmt: skip
    ring = (waiter(1, 2, **worker, xact_age_s=1.0), waiter(2, 1), waiter(3, 1))
    (found,) = compute.findings(seen(*ring))
    assert "in a ring" in found.title
    assert found.remedy[0].command.startswith("SELECT pg_cancel_backend(2)")
    vacuum = session(2, "Lock/relation", blockers=(1,), **worker)
    queue = [session(pid, "Lock/relation", blockers=(2,)) for pid in range(3, 8)]
    (found,) = compute.findings(seen(idle(1), vacuum, *queue))
    assert found.gate is not None
    assert not any("_backend(2)" in one.command for one in found.remedy)
    assert not any("standby" in one.does for one in found.remedy)


@pytest.mark.parametrize("event", ["BufferExclusive", "BufferShared", "BufferShareExclusive"])
def test_a_page_that_many_sessions_change_is_one_in_every_version(event: str) -> None:
    at_work = (session(1, f"Buffer/{event}"), session(2, f"Buffer/{event}"))
    (found,) = compute.findings(seen(*at_work, state=statement_state()))
    assert f"queues for Buffer/{event}" in found.title
    assert "single pages" in found.why
    many = [session(pid, f"Buffer/{event}", query_id=pid) for pid in range(1, 16)]
    (found,) = compute.findings(seen(*many, state=ServerState()))
    assert f"queue for Buffer/{event}" in found.title


def test_who_waits_for_the_pins_of_a_page_queues_for_nothing() -> None:
    pinned = (session(1, "Buffer/BufferCleanup"), session(2, "Buffer/BufferCleanup"))
    assert compute.findings(seen(*pinned, state=statement_state())) == []


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("CREATE UNIQUE INDEX ON orders (id)", "maintenance_work_mem"),
        ("REINDEX TABLE orders", "maintenance_work_mem"),
        ("SELECT * FROM orders ORDER BY id", "work_mem"),
    ],
)
def test_an_index_is_built_in_memory_of_its_own(text: str, setting: str) -> None:
    state = ServerState(texts={7: text})
    (found,) = compute.findings(seen(session(1, "IO/BufFileWrite"), state=state))
    assert f": {setting} is too small" in found.title
    assert found.remedy[0].command.startswith(f"SET {setting} = ")


def test_settings_are_read_again_after_each_change() -> None:
    forced = statement_state(settings={"plan_cache_mode": "force_generic_plan"})
    (found,) = compute.findings(seen(session(1), state=forced))
    (reset,) = [one for one in found.remedy if "RESET" in one.command]
    assert reset.command == "ALTER SYSTEM RESET plan_cache_mode; SELECT pg_reload_conf();"
    assert "pg_reload_conf" in reset.privilege
    assert "pg_reload_conf" in remedies.setting("max_wal_size", "'4GB'", "").privilege


PLANS = of_setting(
    "plans", level="warning", title="auto_explain times some plans", evidence=[], why="",
    remedy=[], sure="likely", because="",
)  # fmt: skip


def test_timed_plans_do_not_hide_why_a_statement_is_slow() -> None:
    state = statement_state(tables_before=table(0, 0), tables=table(50, 10_000_000))
    first, second = compute.findings(seen(session(1), session(2), state=state), [PLANS])
    assert "reads orders from end to end" in first.title
    assert (first.share, second.share) == (1.0, None)
    # of what only works it is the best explanation
    for busy in (False, True):
        at_work = seen(session(1), session(2), state=statement_state())
        (found,) = compute.findings(at_work, [PLANS], busy=busy)
        assert (found.kind, found.share) == ("plans", 1.0)
    # unless few statements are timed
    few = PLANS.model_copy(update={"figures": {"sample_rate": 0.05}})
    first, _ = compute.findings(at_work, [few], busy=True)
    assert (first.kind, first.share) == ("plans", None)


def test_replay_that_never_cancels_is_not_waited_for_in_vain() -> None:
    assert "never, if that is -1" in remedies.REPLAY_CANCELS.does
