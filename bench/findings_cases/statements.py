"""Incidents of statements that take much of the server."""

from __future__ import annotations

from bench.findings_cases.case import Case, waiting, working
from bench.findings_stage.hands import Stage

STATEMENT = (
    r"kind: statement|key: statement/|on (the|a) (CPU|processor)|\bCPU\b|"
    r"seq(uential)? scan|statement (takes|is busy)|nested loop"
)
_PGSS = frozenset({"pg_stat_statements"})
_TEMPORARY_WAITS = waiting("IO/BufFile(Read|Write)", 1)


def _missing_index(on: Stage) -> None:
    on.load(
        "seat-map",
        "\\set who random(1, 50000)\nSELECT count(*) FROM bookings WHERE passenger = :who;",
        4,
    )


def _disk_scan(on: Stage) -> None:
    on.load(
        "customs",
        "\\set n random(1, 9)\nSELECT count(*) FROM cargo WHERE content LIKE '%' || :n || '%';",
        3,
        role="analyst",
    )


def _prepare_manifest(on: Stage) -> None:
    on.later(lambda: on.sql("DROP TABLE manifest"))
    on.sql(
        "CREATE TABLE manifest (item int, day date, weight int) WITH (autovacuum_enabled = off)",
        "INSERT INTO manifest SELECT n, '2024-03-01', n % 7 FROM generate_series(1, 3000) n",
        "ANALYZE manifest",
        "INSERT INTO manifest SELECT n, '2024-03-02', n % 7 FROM generate_series(1, 3000) n",
        role="ferry",
    )


def _stale_statistics(on: Stage) -> None:
    on.load(
        "weigh-house",
        "SELECT count(*) FROM manifest a JOIN manifest b ON b.item = a.item"
        " WHERE a.day = '2024-03-02' AND b.day = '2024-03-02' AND a.weight <= b.weight;",
        3,
    )


def _sort_on_disk(on: Stage) -> None:
    on.load(
        "quarter-report",
        "SET work_mem = '256kB';\nSELECT count(*) FROM"
        " (SELECT remark FROM bookings ORDER BY remark, booking OFFSET 0) sorted;",
        3,
        role="analyst",
    )


def _hash_on_disk(on: Stage) -> None:
    on.load(
        "match-report",
        "SET work_mem = '256kB';\nSET enable_mergejoin = off;\nSET enable_nestloop = off;\n"
        "SELECT count(*) FROM bookings a JOIN bookings b ON b.remark = a.remark;",
        3,
        role="analyst",
    )


def _generic_plan(on: Stage) -> None:
    on.sql("ALTER ROLE office SET plan_cache_mode = force_generic_plan")
    on.later(lambda: on.sql("ALTER ROLE office RESET plan_cache_mode"))
    on.load(
        "back-desk",
        "SELECT price FROM tickets WHERE state = :state ORDER BY ticket LIMIT 5;",
        3,
        *("-M", "prepared", "-D", "state=refund"),
        role="office",
    )


def _prepare_trigger(on: Stage) -> None:
    on.later(lambda: on.sql("DROP FUNCTION price_history() CASCADE"))
    on.sql(
        "CREATE FUNCTION price_history() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE k int;"
        " BEGIN FOR n IN 1..400 LOOP SELECT count(*) INTO k FROM harbours WHERE name = n::text;"
        " END LOOP; RETURN NEW; END $$",
        "CREATE TRIGGER keep_history BEFORE UPDATE ON fares FOR EACH ROW"
        " EXECUTE FUNCTION price_history()",
        role="ferry",
    )


def _slow_trigger(on: Stage) -> None:
    on.load(
        "tariff-web",
        "\\set fare random(1, 1000)\nUPDATE fares SET amount = amount + 1 WHERE fare = :fare;",
        4,
    )


def _many_statements(on: Stage) -> None:
    sums = [" + ".join(["taken"] * (1 + n)) for n in range(150)]
    lines = [f"SELECT max({one} + work(800 + seat % 2)) FROM seats WHERE seat < 9;" for one in sums]
    on.load("query-maker", "\n".join(lines), 6)


def _lock_manager(on: Stage) -> None:
    script = "\\set stop random(1, 1000)\nSELECT count(*) FROM timetable WHERE stop = :stop;"
    on.load("stop-sign", script, 24, "-M", "prepared", "-j", "2")


def _subtransactions(on: Stage) -> None:
    on.hold("long-import", "BEGIN", "INSERT INTO journal (line) VALUES ('x')")
    script = (
        "DO $$ BEGIN FOR n IN 1..150 LOOP BEGIN UPDATE fares SET amount = amount + 1"
        " WHERE fare = (random() * 9)::int + :client_id * 40 + 1; EXCEPTION WHEN division_by_zero"
        " THEN NULL; END; END LOOP; PERFORM pg_sleep(0.05); END $$;"
    )
    on.load("nested-import", script, 16)
    on.load("price-api", "SELECT sum(amount) FROM fares;", 16)


CASES = (
    Case(
        "missing_index",
        "SELECT count(*) FROM bookings WHERE passenger = … scans the table: there is no index.",
        _missing_index,
        working("seat-map", 2),
        cause=STATEMENT,
        root=r"\bbookings\b",
        remedy=r"\bindex\b",
        standby="too",
    ),
    Case(
        "disk_scan",
        "SELECT … FROM cargo reads the whole table from disk each time.",
        _disk_scan,
        waiting("IO/(DataFileRead|AioIoCompletion|DataFilePrefetch)|LWLock/.*Buffer.*", 1),
        cause=r"DataFileRead|AioIoCompletion|DataFilePrefetch|from disk|blocks read|" + STATEMENT,
        root=r"\bcargo\b",
        remedy=r"index|shared_buffers|memory|partition",
        standby="too",
    ),
    Case(
        "stale_statistics",
        "The join of manifest with itself is a nested loop, since its statistics are old: ANALYZE.",
        _stale_statistics,
        working("weigh-house", 2),
        cause=STATEMENT,
        root=r"\bmanifest\b",
        remedy=r"ANALYZE",
        prepare=_prepare_manifest,
    ),
    Case(
        "sort_on_disk",
        "The sort over bookings of quarter-report writes temporary files: work_mem is 256 kB.",
        _sort_on_disk,
        _TEMPORARY_WAITS,
        cause=r"temp(orary)?\b|work_mem|BufFile|spill",
        root=r"\bbookings\b",
        remedy=r"work_mem|log_temp_files",
        standby="too",
    ),
    Case(
        "hash_on_disk",
        "The hash join over bookings of match-report writes temporary files.",
        _hash_on_disk,
        _TEMPORARY_WAITS,
        cause=r"temp(orary)?\b|work_mem|BufFile|spill",
        root=r"\bbookings\b",
        remedy=r"work_mem|hash_mem|log_temp_files",
        standby="too",
    ),
    Case(
        "generic_plan",
        "SELECT … FROM tickets WHERE state = $1 runs a generic plan, which walks over all.",
        _generic_plan,
        working("back-desk", 2),
        cause=r"generic|plan_cache_mode",
        root=r"\btickets\b",
        remedy=r"plan_cache_mode|custom",
        needs=_PGSS,
    ),
    Case(
        "slow_trigger",
        "UPDATE fares takes long because of its trigger function price_history.",
        _slow_trigger,
        working("tariff-web", 2),
        cause=STATEMENT,
        root=r"UPDATE fares|price_history",
        remedy=r"trigger|track = .?all|auto_explain|plan|index",
        also=r"trigger|price_history",
        prepare=_prepare_trigger,
    ),
    Case(
        "many_statements",
        "The processors are busy with many different statements of query-maker.",
        _many_statements,
        working("query-maker", 2),
        cause=r"\bCPU\b|processors?",
        root=r"query-maker|many (different )?statements|no (single )?statement",
        remedy=r"processor|CPU|cores?|pool|rate|parameter|fewer",
        standby="too",
    ),
    Case(
        "lock_manager",
        "A statement over 400 partitions takes 800 locks each time: LWLock/LockManager.",
        _lock_manager,
        waiting("LWLock/LockManager", 4),
        cause=r"LockManager|partition lock|lock table",
        root=r"\btimetable\b",
        remedy=r"partition|prun|max_locks_per_transaction|key",
        standby="too",
    ),
    Case(
        "subtransactions",
        "Transactions with over 64 subtransactions make readers look parents up in their SLRU.",
        _subtransactions,
        waiting("LWLock/Subtrans.*", 4),
        cause=r"Subtrans",
        root=r"nested-import|DO \$\$|savepoint|subtransaction",
        remedy=r"savepoint|exception|subtransaction|fewer",
    ),
)
