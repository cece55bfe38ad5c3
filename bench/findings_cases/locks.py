"""Incidents of locks that somebody keeps while others wait."""

from __future__ import annotations

import time

from bench.findings_cases.case import LOCK, Case, alone, waiting
from bench.findings_stage.hands import Stage

#: Ends a session or what it runs, or keeps it from happening again.
_END = (
    r"pg_(terminate|cancel)_backend\(|idle_in_transaction_session_timeout|"
    r"transaction_timeout|lock_timeout"
)
_PAUSE_S = 0.4


def _buy(seat: int) -> str:
    return f"UPDATE seats SET taken = taken + 1 WHERE seat = {seat};"


_LOOK = "\\set seat random(1, 2000)\nSELECT taken FROM seats WHERE seat = :seat;"


def _idle_row(on: Stage) -> str:
    held = on.hold("night-audit", "BEGIN", _buy(11))
    on.load("ticket-web", _buy(11), 7)
    return alone(held.info.backend_pid)


def _behind_reader(on: Stage) -> str:
    reader = on.session("season-report", "analyst")
    on.start(reader, "SELECT sum(taken), pg_sleep(300) FROM seats")
    time.sleep(_PAUSE_S)
    on.start(on.session("schema-change", "ferry"), "ALTER TABLE seats ADD COLUMN deck int")
    time.sleep(_PAUSE_S)
    on.load("ticket-web", _LOOK, 6)
    return alone(reader.info.backend_pid)


def _dump_and_truncate(on: Stage) -> str:
    dump = on.hold(
        "off-site-copy",
        "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        "LOCK TABLE seats, fares IN ACCESS SHARE MODE",
    )
    on.start(dump, "SELECT count(*), pg_sleep(300) FROM bookings")
    time.sleep(_PAUSE_S)
    on.start(on.session("fare-import", "ferry"), "TRUNCATE fares")
    time.sleep(_PAUSE_S)
    on.load(
        "price-api", "\\set fare random(1, 1000)\nSELECT amount FROM fares WHERE fare = :fare;", 5
    )
    return alone(dump.info.backend_pid)


def _advisory_idle(on: Stage) -> str:
    held = on.hold("feed-import", "SELECT pg_advisory_lock(880)")
    on.load("berth-plan", "BEGIN;\nSELECT pg_advisory_xact_lock(880);\nCOMMIT;", 5)
    return alone(held.info.backend_pid)


def _advisory_workers(on: Stage) -> None:
    on.load(
        "berth-worker",
        "SELECT pg_advisory_lock(52);\nSELECT work(60000);\nSELECT pg_advisory_unlock(52);",
        8,
    )


def _prepared_row(on: Stage) -> None:
    gone = on.hold("payments", "BEGIN", _buy(77), "PREPARE TRANSACTION 'pay-3141'")
    on.later(lambda: on.sql("ROLLBACK PREPARED 'pay-3141'"))
    gone.close()
    on.load("ticket-web", _buy(77), 5)


def _alter_behind_prepared(on: Stage) -> None:
    gone = on.hold("payments", "BEGIN", _buy(78), "PREPARE TRANSACTION 'pay-2718'")
    on.later(lambda: on.sql("ROLLBACK PREPARED 'pay-2718'"))
    gone.close()
    on.start(on.session("schema-change", "ferry"), "ALTER TABLE seats ADD COLUMN side char")
    time.sleep(_PAUSE_S)
    on.load("ticket-web", _LOOK, 6)


def _hot_row(on: Stage) -> None:
    on.load("turnstile", "BEGIN;\n" + _buy(1) + "\nSELECT work(3000);\nCOMMIT;", 8)


def _chain(on: Stage) -> str:
    first = on.hold("gate-console", "BEGIN", _buy(21))
    second = on.hold("stock-sync", "BEGIN", _buy(22))
    on.start(second, _buy(21))
    time.sleep(_PAUSE_S)
    on.load("ticket-web", _buy(22), 6)
    return alone(first.info.backend_pid)


def _two_roots(on: Stage) -> str:
    large = on.hold("till-7", "BEGIN", _buy(31))
    on.hold("till-9", "BEGIN", _buy(32))
    on.load("ticket-web", _buy(31), 6)
    on.load("ticket-app", _buy(32), 2)
    return alone(large.info.backend_pid)


def _deadlocks(on: Stage) -> None:
    step = "UPDATE fares SET amount = amount + 1 WHERE fare = {};"
    for name, one, other in (("reprice-up", 1, 2), ("reprice-down", 2, 1)):
        script = "\n".join(
            ("BEGIN;", step.format(one), "\\sleep 30 ms", step.format(other), "COMMIT;")
        )
        on.load(name, script, 3, "--max-tries=1000")


def _busy_holder(on: Stage) -> str:
    held = on.hold("loyalty-batch", "BEGIN", _buy(41))
    on.start(held, "SELECT sum(work(2000)) FROM generate_series(1, 1000000)")
    on.load("ticket-web", _buy(41), 6)
    return alone(held.info.backend_pid)


def _copying_holder(on: Stage) -> str:
    held = on.hold("ledger-load", "BEGIN", _buy(51))

    def copy() -> None:
        with held.cursor() as cursor, cursor.copy("COPY journal (line) FROM STDIN") as rows:
            for _ in range(2000):
                rows.write("nothing to declare\n" * 40)
                time.sleep(0.25)

    on.call(copy)
    on.load("ticket-web", _buy(51), 6)
    return alone(held.info.backend_pid)


def _index_build(on: Stage) -> str:
    builder = on.session("schema-change", "ferry")
    on.later(lambda: on.sql("DROP INDEX IF EXISTS slow_build"))
    on.start(builder, "CREATE INDEX slow_build ON bookings (work(2000 + booking % 2))")
    time.sleep(_PAUSE_S)
    on.load(
        "ticket-web",
        "\\set n random(1, 250000)\nUPDATE bookings SET passenger = 1 WHERE booking = :n;",
        6,
    )
    return alone(builder.info.backend_pid)


def _left_lock(on: Stage) -> str:
    held = on.hold("psql", "BEGIN", "LOCK TABLE harbours IN EXCLUSIVE MODE", role="ferry")
    on.load(
        "harbour-api",
        "\\set n random(1, 50)\nUPDATE harbours SET name = name WHERE harbour = :n;",
        5,
    )
    return alone(held.info.backend_pid)


def _parent_row(on: Stage) -> str:
    held = on.hold("map-editor", "BEGIN", "SELECT * FROM harbours WHERE harbour = 5 FOR UPDATE")
    on.load("call-log", "INSERT INTO calls (harbour) VALUES (5);", 6)
    return alone(held.info.backend_pid)


def _failed_holder(on: Stage) -> str:
    held = on.hold("refund-form", "BEGIN", _buy(61), "SAVEPOINT step")
    on.start(held, "SELECT 1 / 0")
    on.load("ticket-web", _buy(61), 6)
    return alone(held.info.backend_pid)


_ROW_WAITS = "Lock/(transactionid|tuple)"
_TABLE_WAITS = "Lock/relation"

CASES = (
    Case(
        "idle_row",
        "night-audit is idle in a transaction and keeps the row of seats that 7 sessions update.",
        _idle_row,
        waiting(_ROW_WAITS, 4),
        cause=LOCK,
        remedy=_END,
    ),
    Case(
        "behind_reader",
        "ALTER TABLE waits for the long SELECT of season-report, and all others behind the ALTER.",
        _behind_reader,
        waiting(_TABLE_WAITS, 4),
        cause=LOCK,
        also=r"ALTER TABLE|schema-change",
        remedy=_END,
    ),
    Case(
        "dump_and_truncate",
        "TRUNCATE waits for the dump off-site-copy, and the readers of fares behind it.",
        _dump_and_truncate,
        waiting(_TABLE_WAITS, 4),
        cause=LOCK,
        also=r"TRUNCATE|fare-import",
        remedy=_END,
    ),
    Case(
        "advisory_idle",
        "feed-import is idle and keeps the advisory lock 880 that 5 sessions want.",
        _advisory_idle,
        waiting("Lock/advisory", 4),
        cause=r"advisory",
        remedy=r"pg_terminate_backend\(|pg_advisory_unlock",
    ),
    Case(
        "advisory_workers",
        "8 berth-workers work in turns under one advisory lock: none of them for long.",
        _advisory_workers,
        waiting("Lock/advisory", 4),
        cause=r"advisory",
        root=r"pg_advisory_lock|berth-worker|(?<!\d)52(?!\d)",
        remedy=r"shorter|advisory|SKIP LOCKED|one worker|fewer",
    ),
    Case(
        "prepared_row",
        "The prepared transaction pay-3141 keeps the row that 5 sessions update.",
        _prepared_row,
        waiting(_ROW_WAITS, 3),
        cause=r"prepared transaction|2PC|" + LOCK,
        root=r"pay-3141",
        remedy=r"(ROLLBACK|COMMIT) PREPARED",
    ),
    Case(
        "alter_behind_prepared",
        "ALTER TABLE waits for the prepared transaction pay-2718, and all others behind it.",
        _alter_behind_prepared,
        waiting(_TABLE_WAITS, 4),
        cause=r"prepared transaction|2PC|" + LOCK,
        root=r"pay-2718",
        also=r"ALTER TABLE|schema-change",
        remedy=r"(ROLLBACK|COMMIT) PREPARED|pg_cancel_backend",
    ),
    Case(
        "hot_row",
        "8 turnstiles count in one row of seats: they wait for each other, none for long.",
        _hot_row,
        waiting(_ROW_WAITS, 4),
        cause=r"Lock/(transactionid|tuple)|same row|hot row|row lock|hotlock",
        root=r"\bseats\b",
        remedy=r"row|batch|split|shorter|queue|commit",
    ),
    Case(
        "chain",
        "gate-console keeps a row that stock-sync wants, which keeps one that 6 sessions want.",
        _chain,
        waiting(_ROW_WAITS, 5),
        cause=LOCK,
        remedy=_END,
    ),
    Case(
        "two_roots",
        "till-7 blocks 6 sessions, and till-9 blocks 2 others.",
        _two_roots,
        waiting(_ROW_WAITS, 6),
        cause=LOCK,
        also=r"till-9",
        remedy=_END,
    ),
    Case(
        "deadlocks",
        "reprice-up and reprice-down lock the same rows of fares in opposite orders.",
        _deadlocks,
        "SELECT deadlocks::float8 FROM pg_stat_database WHERE datname = 'postgres'",
        cause=r"deadlock",
        root=r"fares|reprice",
        remedy=r"order|FOR UPDATE|retry",
    ),
    Case(
        "busy_holder",
        "loyalty-batch keeps a row while it computes: 6 sessions wait until its statement is over.",
        _busy_holder,
        waiting(_ROW_WAITS, 4),
        cause=LOCK,
        also=r"work\(|on (the|a) (CPU|processor)|active",
        remedy=_END,
    ),
    Case(
        "copying_holder",
        "ledger-load keeps a row while its COPY waits for its client.",
        _copying_holder,
        waiting(_ROW_WAITS, 4),
        cause=LOCK,
        also=r"COPY|ClientRead|client",
        remedy=_END,
    ),
    Case(
        "index_build",
        "CREATE INDEX without CONCURRENTLY blocks all writers of bookings.",
        _index_build,
        waiting(_TABLE_WAITS, 4),
        cause=LOCK,
        also=r"CREATE INDEX",
        remedy=r"CONCURRENTLY|pg_(cancel|terminate)_backend\(",
    ),
    Case(
        "left_lock",
        "Somebody left psql with LOCK TABLE harbours in an open transaction.",
        _left_lock,
        waiting(_TABLE_WAITS, 4),
        cause=LOCK,
        remedy=_END,
    ),
    Case(
        "parent_row",
        "map-editor, idle in a transaction, locked a harbour that 6 inserts refer to.",
        _parent_row,
        waiting(_ROW_WAITS, 4),
        cause=LOCK,
        also=r"harbours|foreign key|calls",
        remedy=_END,
    ),
    Case(
        "failed_holder",
        "refund-form failed after a savepoint, and its transaction still keeps a row.",
        _failed_holder,
        waiting(_ROW_WAITS, 4) + " AND EXISTS (SELECT FROM pg_stat_activity WHERE state = "
        "'idle in transaction (aborted)')",
        cause=LOCK,
        also=r"aborted",
        remedy=_END,
    ),
)
