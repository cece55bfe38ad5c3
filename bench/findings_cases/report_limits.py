"""Incidents after public reports of outages: those of limits, which nobody waits for at first.

Each says in its docstring what was reported, by whom, and what a DBA must be told.
"""

from __future__ import annotations

import contextlib
import signal
import time

import psycopg

from bench.findings_cases.case import Case, alone
from bench.findings_stage.hands import Stage
from bench.findings_stage.server import NEW

_END = r"pg_terminate_backend\(|idle_in_transaction_session_timeout|transaction_timeout"
_SLOT = "gull_feed"
_KEPT_MB = 160
#: Transactions that have been open for less than a minute are named by nobody, s.
_OLD_S = 61.0
#: Open transactions over all partitions: so many, or as many as find room in the lock table.
_REPORTS = 40


def _few_multixacts(on: Stage) -> None:
    on.restart({"autovacuum_multixact_freeze_max_age": 10000, "autovacuum_naptime": "5s"})
    on.hold("call-import", "BEGIN", "INSERT INTO calls (harbour) SELECT harbour FROM harbours")
    on.later(lambda: on.sql("TRUNCATE calls"))
    time.sleep(_OLD_S)
    # each of them locks a harbour that the import has locked, and so makes a multixact
    on.sql(
        "SET synchronous_commit = off",
        "DO $$ BEGIN FOR n IN 1..14000 LOOP INSERT INTO calls (harbour) VALUES (1 + n % 50);"
        " COMMIT; END LOOP; END $$",
    )


def _multixact_age(on: Stage) -> str:
    """Foreign keys use up multixacts, and an open transaction keeps vacuum from removing them.

    Reported by Metronome (Cosmo Wolfe), "Root Cause Analysis: PostgreSQL MultiXact member
    exhaustion incidents", 2025, https://metronome.com/blog/
    root-cause-analysis-postgresql-multixact-member-exhaustion-incidents-may-2025: a backfill of
    rows with foreign keys filled the space of multixact members, and writes were refused for hours,
    four times. The age of transaction numbers showed nothing. Their space has four billion places,
    which cannot be filled here; so the limit of multixacts themselves is a small one.

    A DBA must be told: multixacts of database postgres are older than
    autovacuum_multixact_freeze_max_age, because the transaction of call-import is open.
    """
    on.load("call-log", "\\set n random(1, 50)\nINSERT INTO calls (harbour) VALUES (:n);", 2)
    ((pid,),) = on.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'call-import'")
    return alone(pid)


def _small_queue(on: Stage) -> None:
    on.restart({"max_notify_queue_pages": 64})
    on.hold("news-screen", "LISTEN board", "BEGIN", "SELECT count(*) FROM harbours")
    time.sleep(_OLD_S)


def _notify_full(on: Stage) -> str:
    """The queue of notifications is full, as a listener has left a transaction open.

    Reported for Hasura, https://github.com/hasura/graphql-engine/issues/6263, 2020 (79 % full, and
    a listening session with the oldest transaction), and by Mozilla,
    https://github.com/mozilla/tls-observatory/issues/109, 2016 ("too many notifications in the
    NOTIFY queue": all scanners stood still).

    A DBA must be told: the queue of notifications is full, transactions with NOTIFY fail, and the
    session of news-screen, which listens and is idle in a transaction, keeps it so. End it.
    """
    ((pid,),) = on.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'news-screen'")
    for _ in range(3):
        author = on.session("news-desk", "ferry")

        def publish(author: psycopg.Connection[object] = author) -> None:
            while not author.closed:
                full = contextlib.suppress(psycopg.errors.ProgramLimitExceeded)
                with full, author.transaction():
                    author.execute("INSERT INTO journal (line) VALUES ('late')")
                    author.execute("SELECT pg_notify('board', repeat('n', 7000))")
                time.sleep(0.05)

        on.call(publish)
    return alone(pid)


def _drop_slot(on: Stage) -> None:
    on.sql(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        f" WHERE slot_name = '{_SLOT}'",
        "SELECT pg_sleep(0.5)",
        f"SELECT pg_drop_replication_slot('{_SLOT}')",
        "TRUNCATE journal",
    )


def _prepare_consumer(on: Stage) -> None:
    on.settings({"max_slot_wal_keep_size": f"{_KEPT_MB}MB", "wal_sender_timeout": "10min"})
    on.later(lambda: _drop_slot(on))
    on.sql(f"SELECT pg_create_logical_replication_slot('{_SLOT}', 'test_decoding')")
    options = ("--slot", _SLOT, "--start", "--file=/dev/null", "--no-loop", "-d")
    sink = on.program("pg_recvlogical", *options, on.dsn("gull-sink", "postgres"))
    active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{_SLOT}'"
    for _ in range(50):
        if on.ask(active)[0][0]:
            break
        time.sleep(0.2)
    sink.send_signal(signal.SIGSTOP)


def _frozen_consumer(on: Stage) -> str:
    """The consumer of a slot is connected, and confirms nothing.

    Reported by Free Law Project, https://github.com/freelawproject/courtlistener/issues/1049, 2019
    (storage shrank because the server of one subscriber had frozen), and by many users of Debezium,
    as Gunnar Morling wrote in "The Insatiable Postgres Replication Slot", 2022: the slot is active,
    so a look for inactive slots finds nothing, while its WAL fills the disk.

    A DBA must be told: slot gull_feed keeps WAL until it is lost, because its consumer gull-sink is
    connected but does not confirm. Restart the consumer: an active slot cannot be dropped.
    """
    # nothing else may write much, or the slot is lost before anybody looks
    on.sql(
        "INSERT INTO journal (line) SELECT repeat('w', 1000) FROM generate_series(1, 90000) n",
        role="ferry",
    )
    ((pid,),) = on.ask(f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{_SLOT}'")
    return rf"gull-sink|{alone(pid)}"


def _small_lock_table(on: Stage) -> None:
    on.restart({"max_locks_per_transaction": 10})


def _lock_table_full(on: Stage) -> None:
    """A few transactions over many partitions fill the lock table, and others fail.

    Reported for FlowKit of Flowminder, https://github.com/Flowminder/FlowKit/issues/5157, 2022
    (five transactions over two years of daily partitions would do), for commcare-cloud of Dimagi,
    https://github.com/dimagi/commcare-cloud/pull/2912, 2019, and many more: "out of shared memory.
    You might need to increase max_locks_per_transaction", in whichever session asks next.

    A DBA must be told: the lock table is nearly full, or full, by the transactions of season-report
    that are idle and hold locks of all partitions of timetable; max_locks_per_transaction is 10.
    """
    with contextlib.suppress(psycopg.errors.OutOfMemory):
        for _ in range(_REPORTS):
            on.hold(
                "season-report",
                "BEGIN",
                "SELECT count(*) FROM timetable WHERE stop = 7",
                role="analyst",
            )
    reader = on.session("stop-sign", "ferry")

    def read() -> None:
        while not reader.closed:
            with contextlib.suppress(psycopg.errors.OutOfMemory):
                reader.execute("SELECT count(*) FROM timetable WHERE stop = 9")
            time.sleep(0.2)

    on.call(read)


CASES = (
    Case(
        "multixact_age",
        "The open transaction of call-import keeps multixacts, which are older than "
        "autovacuum_multixact_freeze_max_age.",
        _multixact_age,
        "SELECT mxid_age(datminmxid) > 10500 FROM pg_database WHERE datname = 'postgres'",
        cause=r"multixact|mxid",
        remedy=_END,
        prepare=_few_multixacts,
    ),
    Case(
        "notify_full",
        "The queue of notifications is full, as news-screen listens and is idle in a transaction.",
        _notify_full,
        "SELECT pg_notification_queue_usage() > 0.9",
        cause=r"NOTIFY|notification",
        remedy=_END,
        prepare=_small_queue,
        needs=frozenset({NEW}),  # in older versions the queue has 8 GB
    ),
    Case(
        "frozen_consumer",
        f"gull-sink is connected to the slot {_SLOT} but confirms nothing: WAL is kept, and the "
        "slot soon lost.",
        _frozen_consumer,
        "SELECT active AND safe_wal_size < 80 * 1024 * 1024 AND wal_status <> 'lost'"
        f" FROM pg_replication_slots WHERE slot_name = '{_SLOT}'",
        cause=_SLOT,
        remedy=r"consumer|restart|pg_terminate_backend|max_slot_wal_keep_size",
        prepare=_prepare_consumer,
    ),
    Case(
        "lock_table_full",
        "Open transactions of season-report over 400 partitions fill the lock table.",
        _lock_table_full,
        # those of stop-sign, which fail
        "SELECT xact_rollback::float8 FROM pg_stat_database WHERE datname = 'postgres'",
        cause=r"max_locks_per_transaction|lock table|shared memory",
        root=r"season-report",
        remedy=r"max_locks_per_transaction|" + _END,
        prepare=_small_lock_table,
    ),
)
