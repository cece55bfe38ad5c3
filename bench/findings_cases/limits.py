"""Incidents of limits: connections, the log that a slot keeps, transaction numbers."""

from __future__ import annotations

from bench.findings_cases.case import Case, alone, there
from bench.findings_stage.hands import Stage
from bench.findings_stage.server import CONNECTIONS

#: Sessions of kiosks; the background, the superuser's reserve and whoever watches have the others.
_KIOSKS = CONNECTIONS - 12
_SLOT = "dock_feed"
_KEPT_MB = 160


def _full_house(on: Stage) -> None:
    for _ in range(_KIOSKS):
        on.session("kiosk", "ferry")


def _prepare_slot(on: Stage) -> None:
    on.settings({"max_slot_wal_keep_size": f"{_KEPT_MB}MB"})
    on.later(lambda: on.sql(f"SELECT pg_drop_replication_slot('{_SLOT}')"))
    on.sql(f"SELECT pg_create_logical_replication_slot('{_SLOT}', 'test_decoding')")


def _forgotten_slot(on: Stage) -> None:
    on.later(lambda: on.sql("TRUNCATE journal"))
    # nothing else may write much, or the slot is lost before anybody looks
    on.sql(
        "INSERT INTO journal (line) SELECT repeat('w', 1000) FROM generate_series(1, 90000) n",
        role="ferry",
    )


def _young_limit(on: Stage) -> None:
    on.restart({"autovacuum_freeze_max_age": 100000, "autovacuum_naptime": "5s"})
    on.hold("ledger-close", "BEGIN", "INSERT INTO journal (line) VALUES ('x')")
    on.sql(
        "SET synchronous_commit = off",
        "DO $$ BEGIN FOR n IN 1..120000 LOOP PERFORM pg_current_xact_id(); COMMIT;"
        " END LOOP; END $$",
    )


def _old_numbers(on: Stage) -> str:
    ((pid,),) = on.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'ledger-close'")
    return alone(pid)


CASES = (
    Case(
        "full_house",
        f"{_KIOSKS} sessions of kiosk are connected and idle: max_connections is nearly reached.",
        _full_house,
        there("kiosk", _KIOSKS),
        cause=r"max_connections|connections? (are|is) (in use|used|left|open)|of \d+ connections",
        root=r"\bkiosk\b",
        remedy=r"pool|max_connections|idle_session_timeout",
        standby="too",
    ),
    Case(
        "forgotten_slot",
        f"The inactive slot {_SLOT} keeps the log, and will soon be lost: drop it, or read it.",
        _forgotten_slot,
        "SELECT safe_wal_size < 80 * 1024 * 1024 AND wal_status <> 'lost' FROM pg_replication_slots"
        f" WHERE slot_name = '{_SLOT}'",
        cause=r"\bslot\b",
        root=_SLOT,
        remedy=r"pg_drop_replication_slot|max_slot_wal_keep_size",
        prepare=_prepare_slot,
    ),
    Case(
        "old_numbers",
        "The open transaction of ledger-close keeps vacuum from freezing rows: transaction numbers "
        "are older than autovacuum_freeze_max_age.",
        _old_numbers,
        "SELECT age(datfrozenxid) > 100000 FROM pg_database WHERE datname = 'postgres'",
        cause=r"wraparound|freeze|xid age|transaction (number|id)s?|age of",
        remedy=r"pg_terminate_backend\(|idle_in_transaction_session_timeout|VACUUM",
        prepare=_young_limit,
    ),
)
