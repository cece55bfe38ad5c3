"""Calm cases: much may go on, and nothing is wrong."""

from __future__ import annotations

import time

from bench.findings_cases.case import Case, there
from bench.findings_stage.hands import BACKGROUND, Stage

_SLOT = "quiet_feed"


def _idle_server(on: Stage) -> None:
    on.without_background()


def _light_load(on: Stage) -> None:
    script = "\\set seat random(1, 2000)\nSELECT taken FROM seats WHERE seat = :seat;"
    on.load("ticket-web", script, 6, rate=60)


def _candidates(on: Stage) -> None:
    on.hold("chief-pilot", "SELECT pg_advisory_lock(7)")
    for _ in range(3):
        on.start(on.session("chief-pilot"), "SELECT pg_advisory_lock(7)")


def _nightly_dump(on: Stage) -> None:
    # again and again, as this database takes seconds
    on.repeat("pg_dump", "--file=/dev/null", "--compress=6", on.dsn("pg_dump"))


def _nightly_batch(on: Stage) -> None:
    on.load(
        "night-batch",
        "INSERT INTO journal (line) SELECT remark FROM bookings ORDER BY booking LIMIT 20000;",
        1,
        role="office",
    )
    on.later(lambda: on.sql("TRUNCATE journal"))


def _housekeeping(on: Stage) -> None:
    on.sql("UPDATE bookings SET remark = remark WHERE booking <= 60000", role="ferry")
    on.start(
        on.session("maintenance", "postgres"),
        "CHECKPOINT",
        "VACUUM bookings",
        "SELECT pg_sleep(60)",
    )


def _explain_some(on: Stage) -> None:
    on.settings(
        {
            "auto_explain.log_min_duration": "2s",
            "auto_explain.log_analyze": True,
            "auto_explain.sample_rate": 0.01,
        }
    )


def _prepare_consumer(on: Stage) -> None:
    on.later(lambda: on.sql(f"SELECT pg_drop_replication_slot('{_SLOT}')"))
    on.sql(f"SELECT pg_create_logical_replication_slot('{_SLOT}', 'test_decoding')")


def _consumer(on: Stage) -> None:
    options = ("--slot", _SLOT, "--start", "--file=/dev/null", "--no-loop", "-d")
    on.program("pg_recvlogical", *options, on.dsn("feed-reader", "postgres"))


def _sleepers(on: Stage) -> None:
    for _ in range(4):
        on.start(on.session("poller"), "SELECT pg_sleep(120)")


def _listeners(on: Stage) -> None:
    for _ in range(6):
        on.hold("display", "LISTEN board")
    speaker = on.session("speaker")

    def speak() -> None:
        while True:
            speaker.execute("NOTIFY board")
            time.sleep(1)

    on.call(speak)


CASES = (
    Case(
        "idle_server",
        "Nothing happens at all.",
        _idle_server,
        f"SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = '{BACKGROUND}'",
        calm=True,
        standby="too",
    ),
    Case(
        "light_load",
        "A hundred short statements a second.",
        _light_load,
        there("ticket-web", 6),
        calm=True,
        standby="too",
    ),
    Case(
        "candidates",
        "A leader keeps an advisory lock for good, and three candidates stand by.",
        _candidates,
        "SELECT count(*) = 3 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
        calm=True,
    ),
    Case(
        "nightly_dump",
        "pg_dump runs next to a light load.",
        _nightly_dump,
        there("pg_dump"),
        calm=True,
        standby="too",
    ),
    Case(
        "nightly_batch",
        "One client inserts many rows, and nobody waits for it.",
        _nightly_batch,
        there("night-batch"),
        calm=True,
    ),
    Case(
        "housekeeping",
        "A checkpoint and a vacuum next to a light load.",
        _housekeeping,
        there("maintenance"),
        calm=True,
    ),
    Case(
        "explain_some",
        "auto_explain looks at one statement in a hundred.",
        _explain_some,
        "SELECT setting = '0.01' FROM pg_settings WHERE name = 'auto_explain.sample_rate'",
        calm=True,
        needs=frozenset({"auto_explain"}),
        standby="too",
    ),
    Case(
        "consumer",
        "A reader of a logical slot has nothing to do.",
        _consumer,
        f"SELECT active FROM pg_replication_slots WHERE slot_name = '{_SLOT}'",
        calm=True,
        prepare=_prepare_consumer,
    ),
    Case(
        "sleepers",
        "Four sessions sleep in pg_sleep.",
        _sleepers,
        there("poller", 4),
        calm=True,
        standby="too",
    ),
    Case(
        "listeners",
        "Six sessions listen, and one notifies them once a second.",
        _listeners,
        there("display", 6),
        calm=True,
    ),
)
