"""Incidents after public reports of outages: those in which sessions wait or statements are slow.

Each says in its docstring what was reported, by whom, and what a DBA must be told. They were
written before anybody had looked at what is said of them. `report_limits.py` has the others.
"""

from __future__ import annotations

import time

from bench.findings_cases.case import LOCK, Case, alone, waiting, working
from bench.findings_cases.server_work import DEAD, fill_outbox, send_mail
from bench.findings_cases.statements import STATEMENT
from bench.findings_stage.hands import Stage

_END = (
    r"pg_(terminate|cancel)_backend\(|idle_in_transaction_session_timeout|"
    r"transaction_timeout|lock_timeout|statement_timeout"
)
_PAUSE_S = 0.4
#: How long a case may take to prepare what the server does itself.
_READY_S = 40.0
_WRAPAROUND = "backend_type = 'autovacuum worker' AND query LIKE '%bookings%wraparound%'"
_MIGRATION_LOCK = 7260


def _await(on: Stage, query: str) -> None:
    """Until the query gives true. Raises ValueError."""
    deadline = time.monotonic() + _READY_S
    while not on.ask(query)[0][0]:
        if time.monotonic() > deadline:
            raise ValueError(f"not within {_READY_S:g} s: {query[:80]}")
        time.sleep(0.2)


# Locks


def _prepare_wraparound(on: Stage) -> None:
    on.settings({"autovacuum_naptime": "1s"})
    on.later(
        lambda: on.sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_WRAPAROUND}",
            "SELECT pg_sleep(0.3)",
            "ALTER TABLE bookings RESET (autovacuum_enabled, autovacuum_freeze_max_age,"
            " autovacuum_vacuum_cost_delay, autovacuum_vacuum_cost_limit)",
            "DROP FUNCTION count_booking() CASCADE",
            "VACUUM (FREEZE) bookings",
        )
    )
    # vacuumed for the sake of its transaction numbers only, and slowly, as a large table is
    on.sql(
        "ALTER TABLE bookings SET (autovacuum_enabled = off, autovacuum_freeze_max_age = 100000,"
        " autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)",
        "UPDATE bookings SET remark = remark WHERE booking % 3 = 0",
        "CREATE FUNCTION count_booking() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER count_booking BEFORE INSERT ON bookings FOR EACH ROW"
        " EXECUTE FUNCTION count_booking()",
        role="ferry",
    )
    on.sql(
        "SET synchronous_commit = off",
        "DO $$ BEGIN FOR n IN 1..110000 LOOP PERFORM pg_current_xact_id(); COMMIT;"
        " END LOOP; END $$",
    )
    _await(on, f"SELECT count(*) = 1 FROM pg_stat_activity WHERE {_WRAPAROUND}")


def _wraparound_vacuum(on: Stage) -> str:
    """An autovacuum against wraparound, which gives way to nobody, and DDL behind it.

    Reported by Joyent, "Postmortem for July 27 outage of the Manta service", 2015,
    https://www.joyent.com/blog/manta-postmortem-7-27-2015: a DROP TRIGGER waited for an autovacuum
    "to prevent wraparound" of a large table, and all queries of the table behind the DROP TRIGGER.
    A fifth of all requests failed for ten hours.

    A DBA must be told: the queue waits for DROP TRIGGER (cancel it, it can be run later), and that
    waits for the autovacuum worker on bookings, which runs to prevent wraparound.
    """
    ((pid,),) = on.ask(f"SELECT pid FROM pg_stat_activity WHERE {_WRAPAROUND}")
    on.start(on.session("schema-change", "ferry"), "DROP TRIGGER count_booking ON bookings")
    time.sleep(_PAUSE_S)
    on.load(
        "ticket-web",
        "\\set n random(1, 250000)\nSELECT passenger FROM bookings WHERE booking = :n;",
        6,
    )
    return rf"autovacuum|{alone(pid)}"


def _prepare_rebates(on: Stage) -> None:
    on.later(lambda: on.sql("DROP TABLE rebates"))
    on.sql("CREATE TABLE rebates (rebate int, fare int REFERENCES fares)", role="ferry")


def _key_to_parent(on: Stage) -> str:
    """DDL on an empty table that nobody uses takes the lock of the table that it refers to.

    Reported by GoCardless (Chris Sinjakli), "Zero-downtime Postgres migrations - the hard parts",
    2015, https://gocardless.com/blog/zero-downtime-postgres-migrations-the-hard-parts/: foreign
    keys of empty tables were dropped and made anew. That needs a lock on the parent, which a long
    read held, and the API's queries of the parent waited for 15 s.

    A DBA must be told: readers of fares wait for the ALTER TABLE of rebates, and that for the long
    SELECT of season-report.
    """
    reader = on.session("season-report", "analyst")
    on.start(reader, "SELECT sum(amount), pg_sleep(300) FROM fares")
    time.sleep(_PAUSE_S)
    on.start(
        on.session("schema-change", "ferry"),
        "ALTER TABLE rebates DROP CONSTRAINT rebates_fare_fkey",
    )
    time.sleep(_PAUSE_S)
    on.load(
        "price-api", "\\set fare random(1, 1000)\nSELECT amount FROM fares WHERE fare = :fare;", 6
    )
    return alone(reader.info.backend_pid)


def _migration_ring(on: Stage) -> str:
    """CREATE INDEX CONCURRENTLY waits for the snapshot of who waits for its client's own lock.

    Reported by Hex (the package registry), https://github.com/hexpm/hexpm/pull/1835, 2026, and
    before that for Flyway, golang-migrate and postgres-migrations: two deployments started to
    migrate. The first took an advisory lock in one session, and in another one it built an index
    concurrently, for 19 minutes. The build waited for all older snapshots, one of which was that of
    the second deployment, in SELECT pg_advisory_lock. PostgreSQL sees no deadlock, as the session
    with the lock is idle. Cancelling the waiting session let the migration go on.

    A DBA must be told: the index build waits for the session of migrate-worker, which waits for an
    advisory lock that an idle session of migrate-web holds. Ending the waiting session frees both.
    """
    on.later(lambda: on.sql("DROP INDEX IF EXISTS bookings_of_passenger"))
    lock = f"SELECT pg_advisory_lock({_MIGRATION_LOCK})"
    on.hold("migrate-web", lock, role="ferry")
    worker = on.session("migrate-worker", "ferry")
    on.start(worker, lock)
    time.sleep(_PAUSE_S)
    on.start(
        on.session("migrate-web", "ferry"),
        "CREATE INDEX CONCURRENTLY bookings_of_passenger ON bookings (passenger)",
    )
    return alone(worker.info.backend_pid)


# Clients


def _undead_reader(on: Stage) -> str:
    """A client that reads no more of a large result, whose snapshot keeps dead rows.

    Reported by Zalando (Sandor Szuecs), "How to Fix What You Can't Kill: Undead PostgreSQL
    queries", 2015, https://tech.zalando.com/blog/hack-to-terminate-tcp-conn-postgres/: queries with
    large results ran for days in send(), as their clients were gone or stuck, and vacuum could not
    remove what had died since.

    A DBA must be told: the SELECT of sheet-export waits for its client, and its snapshot keeps the
    dead rows of outbox that mailer walks over. End the session.
    """
    send_mail(on)
    ((pid,),) = on.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'sheet-export'")
    return alone(pid)


def _prepare_undead(on: Stage) -> None:
    reader = on.session("sheet-export", "analyst")

    def read() -> None:
        with reader.cursor() as cursor:
            for _ in cursor.stream("SELECT * FROM bookings"):
                while not reader.closed:
                    time.sleep(0.5)

    on.call(read)
    _await(
        on,
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'sheet-export'"
        " AND wait_event = 'ClientWrite'",
    )
    fill_outbox(on)


# Statements


def _prepare_cabins(on: Stage) -> None:
    on.later(lambda: on.sql("DROP TABLE cabins"))
    on.sql(
        "CREATE TABLE cabins (cabin serial PRIMARY KEY, state text, price int)"
        " WITH (autovacuum_enabled = off)",
        "INSERT INTO cabins (state, price) SELECT CASE WHEN n > 199800 THEN 'free'"
        " WHEN n % 2 = 0 THEN 'sold' ELSE 'used' END, n FROM generate_series(1, 200000) n",
        "CREATE INDEX ON cabins (state)",
        role="ferry",
    )
    # after an upgrade the server knows nothing of what was changed, either
    on.sql("VACUUM cabins", "SELECT pg_stat_reset_single_table_counters('cabins'::regclass)")


def _no_statistics(on: Stage) -> None:
    """After an upgrade there are no statistics, and the planner takes the wrong index.

    Reported at https://kshitij10496.github.io/posts/pg-query-planning, of an upgrade of Aurora from
    10 to 11, and by BYJU'S (Santhosh Reddy),
    "Database design: The pitfalls of database upgrades", 2022: upgrades do not carry statistics
    over (before 18, and never all of them), and most queries ran into their timeouts until ANALYZE.

    A DBA must be told: SELECT ... FROM cabins takes the processors, and cabins has no statistics:
    run ANALYZE.
    """
    on.load(
        "cabin-web",
        "SELECT price FROM cabins WHERE state = 'free' ORDER BY cabin LIMIT 5;",
        4,
    )


def _prepare_notices(on: Stage) -> None:
    on.later(lambda: on.sql("DROP TABLE notices"))
    words = (
        "array_to_tsvector(ARRAY(SELECT DISTINCT 'w' || (random() * 5000)::int"
        " FROM generate_series(1, 12) WHERE n > 0))"
    )
    insert = (
        "INSERT INTO notices (words, body) SELECT {}, repeat(md5(n::text), 30)"
        " FROM generate_series(1, {}) n"
    )
    on.sql(
        "CREATE TABLE notices (notice serial PRIMARY KEY, words tsvector, body text)"
        " WITH (autovacuum_enabled = off)",
        "ALTER TABLE notices ALTER body SET STORAGE PLAIN",
        insert.format(words, 40000),
        "CREATE INDEX notices_words ON notices USING gin (words)"
        " WITH (gin_pending_list_limit = 131072)",
        role="ferry",
    )
    on.sql("VACUUM ANALYZE notices")
    on.sql(insert.format(words, 40000), role="ferry")


def _pending_list(on: Stage) -> None:
    """After a large import each search walks over the pending list of a GIN index.

    Reported by Michal Drozd, "GIN Index Pending List Overflow: Fast Writes, Slow Searches",
    https://www.michal-drozd.com/en/blog/gin-index-pending-list-overflow/: full-text search went
    from 5 to 500 ms after an import of 100,000 documents. In its other form, a writer that must
    empty the list waits for seconds: Joao Vieira,
    https://joaovieira.xyz/postgresql-gin-index-long-queries, and GitLab.

    A DBA must be told: SELECT ... FROM notices takes the processors, because of what was imported;
    VACUUM (or gin_clean_pending_list) makes it fast.
    """
    on.load(
        "notice-search",
        "\\set one random(1, 5000)\n\\set two random(1, 5000)\nSELECT count(*) FROM notices"
        " WHERE words @@ (('w' || :one) || ' & ' || ('w' || :two))::tsquery;",
        4,
    )


_TABLE_WAITS = waiting("Lock/relation", 4)

CASES = (
    Case(
        "wraparound_vacuum",
        "DROP TRIGGER waits for an autovacuum against wraparound of bookings, and all behind it.",
        _wraparound_vacuum,
        f"{_TABLE_WAITS} AND EXISTS (SELECT FROM pg_stat_activity WHERE {_WRAPAROUND})",
        cause=LOCK,
        also=r"DROP TRIGGER|schema-change",
        remedy=r"pg_cancel_backend\(|lock_timeout",
        prepare=_prepare_wraparound,
    ),
    Case(
        "key_to_parent",
        "ALTER TABLE rebates, which is empty, waits for the SELECT of season-report from fares, "
        "and readers of fares behind it.",
        _key_to_parent,
        _TABLE_WAITS,
        cause=LOCK,
        also=r"rebates|schema-change",
        remedy=_END,
        prepare=_prepare_rebates,
    ),
    Case(
        "migration_ring",
        "An index build waits for migrate-worker, which waits for the advisory lock of the "
        "build's own client.",
        _migration_ring,
        waiting("Lock/virtualxid", 1),
        cause=r"advisory|virtualxid|CREATE INDEX",
        also=r"migrate-web",
        remedy=_END,
    ),
    Case(
        "undead_reader",
        f"sheet-export reads no more; its snapshot keeps {DEAD:,} dead rows of outbox.",
        _undead_reader,
        f"SELECT n_dead_tup > {DEAD // 2} FROM pg_stat_user_tables WHERE relname = 'outbox'",
        cause=r"xmin|dead (row|tuple)|snapshot|horizon|ClientWrite|for its client",
        also=r"\boutbox\b",
        remedy=_END,
        prepare=_prepare_undead,
    ),
    Case(
        "no_statistics",
        "SELECT ... FROM cabins takes the wrong index, as cabins was never analyzed: ANALYZE.",
        _no_statistics,
        working("cabin-web", 2),
        cause=STATEMENT,
        root=r"\bcabins\b",
        also=r"statistics|never analy[sz]ed",
        remedy=r"\bANALYZE (public\.)?cabins",
        prepare=_prepare_cabins,
    ),
    Case(
        "pending_list",
        "SELECT ... FROM notices walks over the pending list of a GIN index: VACUUM.",
        _pending_list,
        working("notice-search", 2),
        cause=STATEMENT,
        root=r"\bnotices\b",
        remedy=r"VACUUM|\bgin|fastupdate|pending",
        prepare=_prepare_notices,
    ),
)
