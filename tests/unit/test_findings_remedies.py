"""Commands that findings offer: they do what they say, and nothing that makes it worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pgtare.errors import MeasurementError
from pgtare.observing.findings import compute, limits, queries, remedies
from pgtare.observing.findings.collector import CountedTotals, FindingInputs, ServerKind
from pgtare.observing.findings.finding_parts import table_of
from pgtare.observing.findings.model import Finding, of_setting
from pgtare.observing.findings.observation import (
    ConnectionCount,
    HorizonHolder,
    RoleSetting,
    ServerCounters,
    ServerNow,
    ServerState,
    StatementTotals,
)
from pgtare.observing.findings.queries import Query
from pgtare.observing.findings.statement_findings import names_table
from pgtare.observing.findings.statement_texts import FindingTexts, TextFile
from tests.unit.test_findings import KEY, SCAN, seen, session, statement_state, table
from tests.unit.test_findings_holders import standbys


def commands(found: Finding) -> list[str]:
    return [one.command for one in found.remedy if one.command]


# synchronous standbys


def waiting(state: ServerState, **more: Any) -> Finding:
    waits = [session(pid, "IPC/SyncRep", query_age_s=0.002, **more) for pid in range(2, 8)]
    (found,) = compute.findings(seen(*waits, state=state), busy=True)
    return found


def test_standbys_that_are_there_are_not_to_be_given_up() -> None:
    healthy = waiting(standbys("FIRST 1 (a)", "a"))
    assert (healthy.level, commands(healthy)) == ("info", [])
    slow = waiting(standbys("FIRST 1 (a)", "a", commits=4_000))
    assert (slow.level, commands(slow)) == ("warning", [])
    assert slow.remedy[0].does.startswith("look at the standby")


def test_commits_that_need_no_standby_need_one_again() -> None:
    missing = commands(waiting(standbys('FIRST 1 ("it\'s")')))
    assert missing == [
        "ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf();",
        "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (\"it''s\")'; "
        "SELECT pg_reload_conf();",
    ]


# memory for sorts


def spilling(
    each_mb: float | None, *own: RoleSetting, work_mem: str = "4096", text: str = ""
) -> Finding:
    calls = 10.0
    blocks = 0.0 if each_mb is None else each_mb * calls * 128
    totals = StatementTotals(calls=calls, exec_s=20, temp_blocks=blocks)
    state = statement_state(
        statements={} if each_mb is None else {KEY: totals},
        settings={"work_mem": work_mem, "maintenance_work_mem": "65536"},
        role_settings=own,
    )
    if text:
        state = replace(state, texts={7: text})
    (found,) = compute.findings(seen(session(1, "IO/BufFileWrite"), state=state))
    assert "spills" in found.title
    return found


@pytest.mark.parametrize("each_mb", [None, 100.0, 5_000.0])
def test_a_remedy_never_makes_work_mem_smaller(each_mb: float | None) -> None:
    rich = RoleSetting("shop", "", "work_mem", "1GB")
    for found in (spilling(each_mb, rich), spilling(each_mb, work_mem=str(2 << 20))):
        assert not any("SET work_mem" in one for one in commands(found))
        assert "see its plan" in found.remedy[0].does


def test_what_a_role_has_in_this_database_counts() -> None:
    here = RoleSetting("shop", "app", "work_mem", "65536")
    elsewhere = RoleSetting("shop", "other", "work_mem", "1GB")
    found = spilling(None, RoleSetting("shop", "", "work_mem", "1MB"), here, elsewhere)
    assert commands(found)[0] == "SET work_mem = '256MB';"
    assert "it has 64 MB now" in found.remedy[0].does


def test_only_a_little_memory_is_offered_for_all_sessions_of_a_role() -> None:
    assert any(one.startswith("ALTER ROLE") for one in commands(spilling(10.0)))
    assert not any(one.startswith("ALTER ROLE") for one in commands(spilling(100.0)))
    assert "hash_mem_multiplier" in spilling(10.0).remedy[0].risk


def test_an_index_build_gets_more_memory_or_none() -> None:
    text = "CREATE INDEX ON orders (note)"
    assert commands(spilling(500.0, text=text)) == ["SET maintenance_work_mem = '1024MB';"]


# indexes


def scanned(text: str, **more: Any) -> Finding:
    state = statement_state(tables_before=table(0, 0), tables=table(50, 10_000_000), **more)
    (found,) = compute.findings(seen(session(1), session(2), state=replace(state, texts={7: text})))
    return found


@pytest.mark.parametrize(
    "condition",
    ["at > $1 AND at < $2", "state IN ($1, $2)", "state = ANY ($1)", "lower(mail) = lower($1)"],
)
def test_what_has_conditions_may_have_an_index(condition: str) -> None:
    found = scanned(f"SELECT * FROM orders WHERE {condition}")
    assert found.remedy[0].does.startswith("if few rows of orders match")
    assert found.remedy[0].command == ""


def test_columns_in_quotes_are_columns() -> None:
    found = scanned('SELECT "orders"."id" FROM "orders" WHERE "orders"."state" = $1')
    assert commands(found)[0] == 'CREATE INDEX CONCURRENTLY ON public.orders ("state");'


def test_either_of_two_columns_needs_two_indexes() -> None:
    assert commands(scanned("SELECT * FROM orders WHERE a = $1 OR b = $2")) == []


def test_what_needs_all_rows_is_told_so() -> None:
    assert scanned("SELECT count(*) FROM orders").remedy[0].does.startswith("no index helps")


# names


@pytest.mark.parametrize(
    ("text", "name", "named"),
    [
        ("SELECT FROM tenant_a.orders", "tenant_a.orders", True),
        ("SELECT FROM tenant_a.orders", "tenant_b.orders", False),
        ("SELECT FROM tenant_a.orders", "orders", False),
        ("SELECT FROM public.orders", "orders", True),
        ('SELECT FROM "tenant_a"."orders"', "tenant_a.orders", True),
        ('SELECT FROM "Orders"', '"Orders"', True),
        ("SELECT FROM orders", "tenant_b.orders", True),
        ("SELECT FROM reorders", "orders", False),
        ("SELECT o.orders FROM o", "orders", False),
        ("SELECT id, state FROM orders WHERE state = $1 ORDER BY state", "state", False),
        ("UPDATE orders SET state = $1 RETURNING state", "state", False),
        ("SELECT count(*) FROM orders o JOIN lines l ON l.state = o.state", "state", False),
        ("SELECT * FROM orders o, state s WHERE s.id = o.state", "state", True),
        ("SELECT * FROM orders JOIN ONLY state USING (id)", "state", True),
        ("INSERT INTO state (id) SELECT id FROM (SELECT id FROM orders) o", "orders", True),
        ("DELETE FROM orders USING state WHERE orders.id = state.id", "state", True),
        ('SELECT FROM sales."order.items"', 'sales."order.items"', True),
        ('SELECT FROM "order.items"', '"order.items"', True),
        ("SELECT FROM items", '"order.items"', False),
        ('SELECT * FROM orders, "sta', "orders", True),
    ],
)
def test_a_table_is_meant_with_its_schema(text: str, name: str, named: bool) -> None:
    assert names_table(text, name) is named


@pytest.mark.parametrize(
    "value",
    [
        "extract(year FROM created)",
        "EXTRACT (epoch FROM o.created)",
        "trim(both FROM note)",
        "state IS DISTINCT FROM old_state",
    ],
)
def test_a_value_is_no_table(value: str) -> None:
    assert table_of(f"SELECT {value} FROM orders o") == "orders"
    assert table_of(f"SELECT {value}") is None


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ('INSERT INTO "Order" (id) VALUES ($1) ON CONFLICT (id) DO UPDATE SET n = 1', '"Order"'),
        ('SELECT * FROM "Jobs" WHERE done FOR UPDATE SKIP LOCKED', '"Jobs"'),
        ("SELECT * FROM jobs FOR NO KEY UPDATE NOWAIT", "jobs"),
        ('SELECT * FROM ONLY public."X"', 'public."X"'),
        ("UPDATE ONLY app.jobs SET n = 1", "app.jobs"),
        ("SELECT * FROM (SELECT 1) s FOR UPDATE OF s", None),
        ("SELECT * FROM generate_series(1, 9)", None),
        ('SELECT * FROM "f"(1) JOIN t USING (id)', None),
    ],
)
def test_the_first_table_of_a_statement(text: str, table: str | None) -> None:
    assert table_of(text) == table


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("orders", "public.orders"),
        ("app.orders", "app.orders"),
        ('"a.b"', 'public."a.b"'),
        ('"a.b".c', '"a.b".c'),
        ('"a""b".c', '"a""b".c'),
    ],
)
def test_a_command_names_the_schema(name: str, whole: str) -> None:
    assert remedies.table(name) == whole


def test_tables_of_the_connected_database_are_not_those_of_others() -> None:
    """With a database for each tenant all have tables of the same names."""
    holder = HorizonHolder("session", "dash", 9, 500, 30.0, "app")
    dead = table(50, 10_000_000, live=100, dead=150_000, vacuumed_age_s=5.0, analyzed=False)
    state = statement_state(
        tables_before=table(0, 0),
        tables=dead,
        now=ServerNow(horizon=(holder,)),
        database="tenant_a",
    )
    at_work = (session(1), session(2))  # in database app
    horizon, busy = compute.findings(seen(*at_work, state=state), busy=True)
    assert (horizon.kind, horizon.share) == ("horizon", None)
    assert (busy.kind, busy.level) == ("statement", "info")
    assert not any("ANALYZE" in one for one in commands(busy))
    (found,) = compute.findings(seen(*at_work, state=replace(state, database="app")), busy=True)
    assert (found.kind, found.share) == ("horizon", 1.0)


def test_scans_are_counted_for_as_long_as_they_were_read_apart() -> None:
    """The agent reads tables each minute, and counters each ten seconds."""

    class Server:
        def rows(self, query: Query, *_: object) -> list[tuple[object, ...]]:
            return []

    collector = FindingInputs(Server(), ServerKind(18, False, True, database="app"))
    begun = CountedTotals(tables=table(0, 0), tables_ns=0)
    ended = CountedTotals(tables=table(50, 10_000_000), tables_ns=60_000_000_000)
    found = collector.observation({}, begun, ended, None, sources={}, texts={7: SCAN})
    assert (found.tables_s, found.state.database) == (60.0, "app")
    samples = seen(session(1), session(2)).samples
    (finding,) = compute.findings(replace(found, samples=samples))
    assert "orders: 0.8 sequential scans a second of 200,000 rows each" in finding.evidence


# statistics


def test_a_standby_has_the_statistics_of_its_primary() -> None:
    bare = statement_state(
        tables_before=table(0, 0), tables=table(50, 10_000_000, analyzed=False), standby=True
    )
    (found,) = compute.findings(seen(session(1), session(2), state=bare))
    assert not any("ANALYZE" in one for one in (*found.evidence, *commands(found)))


# settings from elsewhere


def test_what_alter_system_does_not_override_is_named_first() -> None:
    logs = of_setting(
        "logging",
        level="warning",
        title="log_statement = all",
        evidence=[],
        why="",
        remedy=["ALTER SYSTEM SET log_statement = 'ddl'; SELECT pg_reload_conf();"],
        sure="certain",
        because="",
    )
    for sources, said in (
        ({"log_statement": "command line"}, "the command line that starts the server"),
        ({"log_statement": "database"}, "ALTER DATABASE"),
        ({"log_duration": "command line"}, ""),
    ):
        (found,) = compute.findings(seen(state=ServerState(sources=sources)), [logs])
        assert said in found.remedy[0].does
        assert len(found.remedy) == (2 if said else 1)


def test_a_mode_of_all_roles_is_taken_back_for_all_roles() -> None:
    forced = (RoleSetting("", "", "plan_cache_mode", "force_generic_plan"),)
    (found,) = compute.findings(seen(session(1), state=statement_state(role_settings=forced)))
    assert "ALTER ROLE ALL RESET plan_cache_mode;" in commands(found)
    whole = statement_state(settings={"plan_cache_mode": "force_generic_plan"})
    (found,) = compute.findings(seen(session(1), state=whole))
    assert "ALTER SYSTEM SET plan_cache_mode = auto; SELECT pg_reload_conf();" in commands(found)


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ({("", "app"): "force_generic_plan", ("shop", ""): "auto"}, False),
        ({("shop", ""): "force_generic_plan", ("shop", "app"): "force_custom_plan"}, False),
        ({("", "app"): "auto", ("shop", ""): "force_generic_plan"}, True),
        ({("other", ""): "force_generic_plan"}, False),
    ],
)
def test_of_several_modes_the_nearest_one_holds(
    places: dict[tuple[str, str], str], told: bool
) -> None:
    own = tuple(RoleSetting(*place, "plan_cache_mode", mode) for place, mode in places.items())
    found = compute.findings(seen(session(1), state=statement_state(role_settings=own)))
    assert [one.sure for one in found] == (["likely"] if told else [])
    # that of the role holds against the whole server's
    calm = (RoleSetting("shop", "", "plan_cache_mode", "auto"),)
    whole = {"plan_cache_mode": "force_generic_plan"}
    state = statement_state(role_settings=calm, settings=whole)
    assert compute.findings(seen(session(1), state=state)) == []


# limits


def full(*connections: ConnectionCount) -> Finding:
    settings = {"max_connections": "100", "superuser_reserved_connections": "3"}
    (found,) = limits.check(ServerState(settings=settings, now=ServerNow(connections=connections)))
    return found


@pytest.mark.parametrize("limit", [-1, 80])
def test_a_role_is_limited_if_that_keeps_room(limit: int) -> None:
    found = full(ConnectionCount("shop", "web", "idle", 95, limit))
    assert 'ALTER ROLE "shop" CONNECTION LIMIT 58;' in commands(found)


@pytest.mark.parametrize(
    ("sessions", "limit"), [(95, 50), (95, None), (19, -1)], ids=["lower", "superuser", "few"]
)
def test_a_role_is_not_given_a_limit_that_keeps_no_room(sessions: int, limit: int | None) -> None:
    others = [ConnectionCount(f"r{n}", "", "idle", 19) for n in range(4)] if sessions < 50 else []
    found = full(ConnectionCount("shop", "web", "idle", sessions, limit), *others)
    assert not any("CONNECTION LIMIT" in one for one in commands(found))


def test_sessions_without_a_role_have_none_to_be_altered() -> None:
    """From 18 on those are listed that have not logged in yet."""
    found = full(ConnectionCount("", "", "starting", 95, None))
    assert found.title.endswith("the most by sessions without a role")
    assert "sessions without a role: 95 connections" in found.evidence[1]
    assert commands(found) == []
    assert "not logged in yet" in found.remedy[0].does


def test_nobody_is_blamed_for_notifications_who_may_not_listen() -> None:
    dump = session(9, application="pg_dump", xact_age_s=7200.0)
    state = ServerState(after=ServerCounters(1.0, notify_usage=0.6), now=ServerNow(oldest=dump))
    (found,) = limits.check(state)
    assert "pg_dump" not in found.title
    assert found.sure == "possible"
    assert "«NOTIFY queue is»" in found.remedy[0].does
    assert all(one.does.startswith("if it is the one") for one in found.remedy[1:])
    assert not any("statement_timeout" in one for one in commands(found))


def test_a_slot_that_a_standby_has_from_its_primary_is_left_alone() -> None:
    assert "NOT (synced AND pg_is_in_recovery())" in queries.SLOTS.text
    assert "synced" not in queries.SLOTS_16.text + queries.SLOTS_BEFORE_16.text


def test_a_signal_needs_to_see_the_session() -> None:
    one = remedies.cancel(session(1), "cancels it")
    assert "pg_read_all_stats" in one.privilege
    assert "may not see it" in one.does


def test_a_timeout_of_statements_is_for_those_that_take_long() -> None:
    """A transaction of many short ones stays open all the same."""
    long = session(9, query_age_s=7100.0, xact_age_s=7200.0)
    assert "statement_timeout" in remedies.not_again(long)[0].command
    assert remedies.not_again(replace(long, query_age_s=0.1)) == []


# texts


class Texts:
    """A stand-in for a server's session: what is asked of it, and the size of its file."""

    def __init__(self, size: int | None, *, fails: bool = False) -> None:
        self.size, self.fails, self.asked = size, fails, list[str]()

    def rows(
        self, query: Query, schema: str | None = None, values: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        self.asked.append(query.name)
        if query is queries.TEXT_FILE:
            return [(self.size,)]
        if self.fails:
            raise MeasurementError("canceling statement due to statement timeout")
        return [] if query is queries.TEXTS_UNDER_WAY else [(7, "SELECT $1")]


@pytest.mark.parametrize(
    ("server", "reads"),
    [
        (Texts(1 << 20), 1),
        (Texts(600 << 20), 0),
        (Texts(None, fails=True), 1),
    ],
    ids=["small", "too large", "given up"],
)
def test_the_file_of_all_texts_is_read_once(server: Texts, reads: int) -> None:
    texts = FindingTexts(TextFile())
    for _ in range(6):
        try:
            found = texts.read(server, "public", [7], sized=server.size is not None)
        except MeasurementError:
            assert server.fails
        else:
            assert found == ({7: "SELECT $1"} if reads else {})
    assert server.asked.count(queries.SOME_TEXTS.name) == reads


def test_a_large_file_is_left_alone_for_others_as_well() -> None:
    file = TextFile()
    FindingTexts(file).read(Texts(9 << 20), "public", [7], sized=True)
    other = Texts(9 << 20)
    FindingTexts(file).read(other, "public", [8], sized=True)
    assert other.asked == [queries.TEXTS_UNDER_WAY.name]


def test_a_statement_that_has_ended_since_has_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    texts, server = FindingTexts(TextFile()), Texts(1 << 20)
    assert texts.read(server, "public", [8], sized=True) == {}
    now += 61.0
    texts.read(server, "public", [8], sized=True)
    assert server.asked.count(queries.SOME_TEXTS.name) == 2
