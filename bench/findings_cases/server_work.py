"""Incidents of the server's own work: its log, checkpoints, vacuum, and what observes it."""

from __future__ import annotations

import time

from bench.findings_cases.case import Case, alone, there, waiting
from bench.findings_stage.hands import Stage

_END = r"pg_terminate_backend\(|idle_in_transaction_session_timeout|transaction_timeout"
_WRITE = (
    "\\set a random(1, 500000)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :a;"
)
_READ = "\\set a random(1, 500000)\nSELECT abalance FROM pgbench_accounts WHERE aid = :a;"
#: The time of the last checkpoint, in every version.
_CHECKPOINTS = "SELECT extract(epoch FROM checkpoint_time)::float8 FROM pg_control_checkpoint()"
DEAD = 120_000


def _no_standby(on: Stage) -> None:
    on.load("ticket-web", "INSERT INTO journal (line) VALUES ('sold');", 6)
    on.settings({"synchronous_standby_names": "harbour_b"})


def _slow_log(on: Stage) -> None:
    on.settings({"slow_fsync.delay": "25ms"})
    on.load("gate-events", "INSERT INTO journal (line) VALUES ('in');", 8)


def _notify_queue(on: Stage) -> None:
    on.settings({"slow_fsync.delay": "6ms"})
    on.load(
        "news-board",
        "BEGIN;\nINSERT INTO journal (line) VALUES ('late');\nNOTIFY board;\nCOMMIT;",
        8,
    )


def _small_log(on: Stage) -> None:
    on.settings({"max_wal_size": "48MB", "min_wal_size": "32MB"})
    on.load("loyalty-web", _WRITE, 4)


def _page_images(on: Stage) -> None:
    on.load("loyalty-web", _WRITE, 4)
    cron = on.session("backup-cron", "postgres")

    def checkpoints() -> None:
        while True:
            cron.execute("CHECKPOINT")
            time.sleep(2)

    on.call(checkpoints)


def _archiving(on: Stage) -> None:
    on.settings({"archive_command": "false"})
    on.later(lambda: on.sql("SELECT pg_stat_reset_shared('archiver')"))
    for _ in range(3):
        on.sql("INSERT INTO journal (line) VALUES ('x')", "SELECT pg_switch_wal()")


def fill_outbox(on: Stage) -> None:
    on.later(lambda: on.sql("TRUNCATE outbox"))
    on.sql(
        f"INSERT INTO outbox (body) SELECT 'mail' FROM generate_series(1, {DEAD}) n",
        "DELETE FROM outbox",
        "INSERT INTO outbox (body) SELECT 'mail' FROM generate_series(1, 40) n",
        role="ferry",
    )


def _prepare_snapshot(on: Stage) -> None:
    on.hold(
        "wall-board",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "SELECT count(*) FROM fares",
        role="analyst",
    )
    fill_outbox(on)


def _prepare_prepared(on: Stage) -> None:
    on.hold(
        "payments",
        "BEGIN",
        "INSERT INTO journal (line) VALUES ('x')",
        "PREPARE TRANSACTION 'pay-1618'",
    ).close()
    on.later(lambda: on.sql("ROLLBACK PREPARED 'pay-1618'"))
    fill_outbox(on)


def send_mail(on: Stage) -> None:
    on.load(
        "mailer",
        "INSERT INTO outbox (body) VALUES ('mail');\nDELETE FROM outbox WHERE message ="
        " (SELECT message FROM outbox ORDER BY message LIMIT 1 FOR UPDATE SKIP LOCKED);",
        3,
    )


def _old_snapshot(on: Stage) -> str:
    send_mail(on)
    ((pid,),) = on.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'wall-board'")
    return alone(pid)


def _small_table(on: Stage) -> None:
    on.restart({"pg_stat_statements.max": 100})


def _evictions(on: Stage) -> None:
    lines = [
        f"SELECT {' + '.join(['tbalance'] * n)} FROM pgbench_tellers WHERE tid = 1;"
        for n in range(1, 251)
    ]
    on.load("query-maker", "\n".join(lines), 4)


def _log_all(on: Stage) -> None:
    on.settings({"log_min_duration_statement": 0})
    on.load("loyalty-web", _READ, 4, rate=1200)


def _track_planning(on: Stage) -> None:
    on.settings({"pg_stat_statements.track_planning": True})
    on.load("loyalty-web", _READ, 16, "-j", "2")


def _explain_all(on: Stage) -> None:
    on.settings(
        {
            "auto_explain.log_min_duration": "20s",
            "auto_explain.log_analyze": True,
            "auto_explain.log_timing": True,
        }
    )
    on.load("fare-finder", "SELECT count(*) FROM fares a JOIN fares b USING (fare);", 3)


CASES = (
    Case(
        "no_standby",
        "All commits wait for the standby harbour_b, which is not connected.",
        _no_standby,
        waiting("IPC/SyncRep", 4),
        cause=r"SyncRep|synchronous (standby|replication)",
        root=r"harbour_b|synchronous_standby_names",
        remedy=r"synchronous_standby_names|synchronous_commit",
    ),
    Case(
        "slow_log",
        "Commits wait for the disk of the log: 25 ms a sync.",
        _slow_log,
        waiting("(IO/WALSync|LWLock/WALWrite(Lock)?)", 4),
        cause=r"WALSync|WALWrite|fsync|flush",
        root=r"\bWAL\b|WalSync|the log\b|commit",
        remedy=r"synchronous_commit|disk|storage|commit_delay|batch|larger transactions",
    ),
    Case(
        "notify_queue",
        "Commits with NOTIFY wait for each other: there is one lock for all of them.",
        _notify_queue,
        waiting("Lock/object", 3),
        cause=r"NOTIFY|Lock/object|notification",
        root=r"NOTIFY|notification",
        remedy=r"NOTIFY|notification",
    ),
    Case(
        "small_log",
        "Checkpoints are requested every few seconds, as max_wal_size is 48 MB.",
        _small_log,
        _CHECKPOINTS,
        cause=r"checkpoint",
        root=r"max_wal_size|requested",
        remedy=r"max_wal_size",
    ),
    Case(
        "page_images",
        "backup-cron makes a checkpoint every two seconds: nearly all of the log is page images.",
        _page_images,
        _CHECKPOINTS,
        cause=r"full.page|page images?|\bFPI\b|wal_fpi|checkpoint",
        root=r"CHECKPOINT|backup-cron",
        remedy=r"checkpoint|wal_compression",
    ),
    Case(
        "archiving",
        "archive_command fails: the log is kept until the disk is full.",
        _archiving,
        "SELECT failed_count > 0 FROM pg_stat_archiver",
        cause=r"archiv",
        root=r"archive_command|archiver|fail",
        remedy=r"archive_command|archive",
    ),
    Case(
        "old_snapshot",
        f"wall-board, idle in a transaction, keeps {DEAD:,} dead rows of outbox from vacuum.",
        _old_snapshot,
        f"SELECT n_dead_tup > {DEAD // 2} FROM pg_stat_user_tables WHERE relname = 'outbox'",
        cause=r"xmin|dead (row|tuple)|snapshot|horizon|vacuum",
        also=r"\boutbox\b",
        remedy=_END,
        prepare=_prepare_snapshot,
    ),
    Case(
        "prepared_horizon",
        f"The prepared transaction pay-1618 keeps {DEAD:,} dead rows of outbox from vacuum.",
        send_mail,
        f"SELECT n_dead_tup > {DEAD // 2} FROM pg_stat_user_tables WHERE relname = 'outbox'",
        cause=r"xmin|dead (row|tuple)|snapshot|horizon|vacuum",
        root=r"pay-1618",
        also=r"\boutbox\b",
        remedy=r"(ROLLBACK|COMMIT) PREPARED",
        prepare=_prepare_prepared,
    ),
    Case(
        "evictions",
        "pg_stat_statements has room for 100 statements, and query-maker sends 250.",
        _evictions,
        "SELECT dealloc::float8 FROM pg_stat_statements_info",
        cause=r"evict|dealloc",
        root=r"pg_stat_statements",
        remedy=r"pg_stat_statements\.max",
        prepare=_small_table,
        needs=frozenset({"pg_stat_statements"}),
        standby="too",
    ),
    Case(
        "log_all",
        "log_min_duration_statement = 0 writes each of 1,200 statements a second to the log.",
        _log_all,
        there("loyalty-web", 4),
        cause=r"log_min_duration_statement|every statement to the log",
        root=r"log_min_duration_statement",
        remedy=r"log_min_duration_statement",
        standby="too",
    ),
    Case(
        "track_planning",
        "pg_stat_statements.track_planning makes 16 clients take one entry's lock twice as often.",
        _track_planning,
        there("loyalty-web", 16),
        cause=r"track_planning",
        root=r"pg_stat_statements",
        remedy=r"track_planning",
        needs=frozenset({"pg_stat_statements"}),
        standby="too",
    ),
    Case(
        "explain_all",
        "auto_explain times each node of each statement.",
        _explain_all,
        there("fare-finder", 3),
        cause=r"auto_explain",
        root=r"log_timing|log_analyze",
        remedy=r"log_timing|sample_rate|log_analyze",
        needs=frozenset({"auto_explain"}),
        standby="too",
    ),
)
