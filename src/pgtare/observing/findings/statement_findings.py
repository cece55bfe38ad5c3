"""Findings of statements: which takes the active time, and what explains that."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pgtare.kit import numbers
from pgtare.observing.findings import remedies
from pgtare.observing.findings.causes import Cause
from pgtare.observing.findings.finding_parts import of_cause, share_line, short, spent, table_of
from pgtare.observing.findings.model import ACTIVE, INFORMATION, Finding, Remedy
from pgtare.observing.findings.observation import (
    Observation,
    RoleSetting,
    ServerState,
    StatementKey,
    StatementTotals,
    TableTotals,
)
from pgtare.observing.findings.partition import Partition

#: A table that is read from end to end: so many rows a second, and rows a scan.
_ROWS_S, _ROWS_A_SCAN = 100_000.0, 10_000.0
_SCANS = 2
#: Temporary blocks a second (of 8 kB) from which on a statement spills.
_TEMP_BLOCKS_S = 50.0
_BLOCK = 8192
#: Of a statement's time, in one LWLock.
_CONTENDED = 0.3
#: How many times slower than before, and calls before that make a history.
_SLOWER, _HISTORY_CALLS = 2.0, 20
#: Sessions that want a processor, for each there is: fewer is what a busy server has.
CROWDED = 1.5
#: More memory than this is not offered, MB; for all sessions of a role less.
_MOST_MB, _MOST_OF_ROLE_MB = 1024, 64
_COMPARED = re.compile(
    r"""(?<![\w"])([a-z_][a-z0-9_]*|"[^"]+")\s*=\s*(?:\$\d+|\?)""", re.IGNORECASE
)
_HAS_CONDITIONS = re.compile(r"\b(WHERE|HAVING|ON)\b", re.IGNORECASE)
#: With it one index on all of these columns does not fit.
_OR = re.compile(r"\bOR\b", re.IGNORECASE)
#: What is set is no condition: an index on it would be in the way of each update.
_SET = re.compile(r"\bSET\b.*?(?=\b(?:FROM|WHERE)\b|$)", re.IGNORECASE | re.DOTALL)
#: What may name a table: with two of them nothing tells whose a column is.
_NAMES_TABLE = re.compile(r"\b(?:FROM|JOIN|USING)\b|^\s*UPDATE\b", re.IGNORECASE)
_LISTED_TABLES = re.compile(r"\bFROM\s+[\w.\"\s]+,", re.IGNORECASE)
#: What stands where a statement names tables: a column may have the name of a table.
_BEFORE_TABLES = r"FROM|JOIN|USING|INTO|UPDATE|ONLY|TABLE|COPY|VACUUM|ANALYZE"
_TABLES_OF = re.compile(
    rf"\b(?:{_BEFORE_TABLES})\b((?:\"[^\"]*\"|[^\"])*?)(?=\b(?:{_BEFORE_TABLES}|ON|WHERE|SET"
    r"|SELECT|VALUES|GROUP|ORDER|HAVING|LIMIT|OFFSET|FETCH|FOR|RETURNING|WINDOW|UNION|EXCEPT"
    r"|INTERSECT)\b|[()=;]|\"[^\"]*\Z|\Z)",
    re.IGNORECASE,
)
#: What may be executed once more: no mere call of a function, and nothing that locks rows.
_READS = re.compile(
    r"\s*SELECT\b(?=.*\bFROM\b)(?!.*\b(?:INTO|FOR\s+(?:NO\s+KEY\s+|KEY\s+)?(?:UPDATE|SHARE))\b)",
    re.IGNORECASE | re.DOTALL,
)
_PARAMETER = re.compile(r"\$\d+")
_MODE, _FORCED = "plan_cache_mode", "force_generic_plan"
#: What builds indexes, which has maintenance_work_mem.
_BUILDS = re.compile(
    r"\s*(CREATE\s+(UNIQUE\s+)?INDEX|REINDEX|CLUSTER|REPACK|VACUUM|ALTER\s+TABLE)\b", re.I
)
#: Locks of pages are LWLocks up to version 18, and waits of the class Buffer from 19 on. There
#: whoever waits for the pins of others to go (vacuum) queues for nothing.
_QUEUES, _WAITS_FOR_PINS = ("LWLock/", "Buffer/"), "Buffer/BufferCleanup"
_PAGES = (
    "single pages that many sessions change at once",
    "spread what they change over more pages: another key, a lower fillfactor",
)
#: What sessions queue for in memory, and what helps.
_CONTENTION = {
    "LockManager": (
        "the table of locks: each execution locks more relations than a session can by itself "
        "(16, or more from PostgreSQL 18 on), as plans over many partitions or indexes do",
        "let it name fewer partitions (a condition on the partition key), or prepare it so that "
        "partitions are pruned at plan time; drop indexes that nobody uses",
    ),
    "BufferContent": _PAGES,
    "BufferExclusive": _PAGES,
    "BufferShare": _PAGES,
    "BufferMapping": (
        "the table of buffers, as pages come and go all the time",
        "raise shared_buffers, or read fewer pages",
    ),
    "Subtrans": (
        "the parents of subtransactions: savepoints, or exceptions in PL/pgSQL, while a "
        "transaction is open for long",
        "use fewer savepoints a transaction (64 at most), end long transactions",
    ),
    "MultiXact": (
        "rows that several transactions lock at once, as foreign keys do",
        "let fewer transactions refer to the same row at once, and end them sooner",
    ),
}


@dataclass(frozen=True)
class Explanation:
    """Why a statement takes its time. title: of the finding, after the statement's text."""

    name: str
    title: str
    evidence: tuple[str, ...]
    why: str
    remedy: tuple[Remedy, ...]
    object: str | None = None
    sure: bool = True


def statement(cause: Cause, whole: Partition, *, busy: bool) -> Finding | None:
    """A statement that takes more than it should; with `busy` also one that only works."""
    # the most telling first
    finds = (_generic, _spill, _scan, _contention, _slower, _crowded)
    explained = next(filter(None, (find(cause, whole) for find in finds)), None)
    share, aas = whole.share(cause), whole.aas(cause)
    if explained is None and not (busy and share >= 0.5 and aas >= 1.0):
        return None
    key = next(iter(cause.statements))
    text = whole.observation.text(key) or "statements without text"
    query_id = key[1] if isinstance(key[1], int) else None
    if explained is None:
        explained = Explanation(
            "busy",
            "is what the sessions are busy with",
            (),
            "that is work that was asked for, and no fault by itself",
            (_look(text),),
            sure=False,
        )
    unknown = _not_analyzed(key, whole.observation)
    events = [
        f"{event} {numbers.percent(100 * cause.events[event] / cause.seconds)}"
        for event in cause.events.most(3)
    ]
    roles = [role for role, _ in cause.applications.most(2)]
    applications = [name for _, name in cause.applications.most(2) if name]
    by = f"role {', '.join(dict.fromkeys(roles))}"
    if applications:
        by += f", application {', '.join(dict.fromkeys(applications))}"
    return of_cause(
        cause,
        whole,
        class_=INFORMATION if explained.name == "busy" else ACTIVE,
        level="info" if explained.name == "busy" else "warning",
        query_id=None if query_id is None else str(query_id),
        object=explained.object,
        title=f"«{short(text)}» {explained.title}",
        evidence=[
            f"{share_line(share, aas)}: {', '.join(events)}",
            *explained.evidence,
            *_calls(cause, whole),
            *(f"no ANALYZE of {name} is known since counters were reset" for name in unknown),
            f"by {by}",
        ],
        why=explained.why,
        remedy=[
            *(
                Remedy(
                    command=f"ANALYZE {remedies.table(name)};",
                    does="without statistics of it, as after an upgrade, the planner guesses",
                    privilege="the table's owner, or MAINTAIN",
                )
                for name in unknown
            ),
            *explained.remedy,
        ],
        sure="certain" if explained.sure else "likely",
        because="its sessions were seen at work on it, and the figures are the server's own",
        figures={"sessions": aas},
    )


def _not_analyzed(key: StatementKey, observation: Observation) -> list[str]:
    if observation.state.standby:
        return []  # nothing is analyzed there: it has the statistics of the primary
    tables = [name for name, one in observation.state.tables.items() if not one.analyzed]
    return [name for name in tables if is_of_table(key, name, observation)][:3]


def _text(cause: Cause, whole: Partition) -> str:
    return whole.observation.text(next(iter(cause.statements)))


def _totals(cause: Cause, whole: Partition) -> StatementTotals | None:
    return whole.state.statements.get(next(iter(cause.statements)))


def _calls(cause: Cause, whole: Partition) -> list[str]:
    found = _totals(cause, whole)
    if found is None or not found.calls:
        return []
    return [
        f"{found.calls:,.0f} calls just now, {spent(found.exec_s / found.calls)} and "
        f"{found.rows / found.calls:,.1f} rows each (pg_stat_statements)"
    ]


def _look(text: str) -> Remedy:
    if not _READS.match(text):
        return Remedy(
            does=f"EXPLAIN {short(text, 200)} with values of its parameters shows its plan; "
            "ANALYZE would execute it"
        )
    return Remedy(
        does=f"EXPLAIN (ANALYZE, BUFFERS) {short(text, 200)} with values of its parameters "
        "executes it, and shows which node takes the time"
    )


def _generic(cause: Cause, whole: Partition) -> Explanation | None:
    database, _ = next(iter(cause.statements))
    role = cause.applications.most()[0][0]
    text = _text(cause, whole)
    if not _PARAMETER.search(text) or (cause.event != "CPU" and not cause.event.startswith("IO/")):
        return None
    own = _own_setting(whole.state, _MODE, role, database)
    if (whole.state.settings.get(_MODE) if own is None else own.value) != _FORCED:
        return None
    again = "for new sessions: the server decides again"
    if own is None:
        where, reset = "the whole server", remedies.setting(_MODE, "auto", again)
    else:
        where = _altered(own)
        reset = Remedy(
            command=f"{where} RESET plan_cache_mode;", does=again, privilege="the right to alter it"
        )
    return Explanation(
        "generic",
        "runs a generic plan, made for any value of its parameters (plan_cache_mode)",
        (f"plan_cache_mode = {_FORCED}, set by {where}",),
        "a plan that must fit every value may read a whole table where an index would do for this "
        "one",
        (
            Remedy(
                command="SET plan_cache_mode = force_custom_plan;",
                does="in a session of its own, to see whether the statement is faster",
            ),
            reset,
        ),
        table_of(text),
        sure=False,  # what is not prepared has values in place of parameters, whatever the mode
    )


def _own_setting(state: ServerState, name: str, role: str, database: str) -> RoleSetting | None:
    """What ALTER ROLE or ALTER DATABASE set for these sessions; None: nothing did."""
    own = {(one.role, one.database): one for one in state.role_settings if one.name == name}
    places = ((role, database), (role, ""), ("", database), ("", ""))  # the first one holds
    return next((own[place] for place in places if place in own), None)


def _altered(one: RoleSetting) -> str:
    database = remedies.identifier(one.database)
    if not one.role:
        return f"ALTER DATABASE {database}" if one.database else "ALTER ROLE ALL"
    within = f" IN DATABASE {database}" if one.database else ""
    return f"ALTER ROLE {remedies.identifier(one.role)}{within}"


def _spill(cause: Cause, whole: Partition) -> Explanation | None:
    found = _totals(cause, whole)
    seconds = whole.observation.counted_s
    blocks = found.temp_blocks if found is not None else 0.0
    text = _text(cause, whole)
    waited = sum(s for event, s in cause.events.items() if event.startswith("IO/BufFile"))
    if blocks / seconds < _TEMP_BLOCKS_S and waited < 0.1 * cause.seconds:
        return None
    evidence = [f"{numbers.percent(100 * waited / cause.seconds)} in temporary files"]
    each = 0.0
    if found is not None and blocks:
        each = blocks * _BLOCK / max(found.calls, 1.0)
        evidence = [
            f"{numbers.volume(blocks * _BLOCK)} written to temporary files, "
            f"{numbers.volume(each)} a call"
        ]
    builds = _BUILDS.match(text) is not None
    name = "maintenance_work_mem" if builds else "work_mem"
    of_what = "the index" if builds else "its sorts or hashes"
    return Explanation(
        "spill",
        f"spills to temporary files: {name} is too small for {of_what}",
        tuple(evidence),
        f"what does not fit into {name} is written to files and read again",
        tuple(_more_maintenance(whole) if builds else _more_memory(cause, whole, each)),
        table_of(text),
    )


def _more_maintenance(whole: Partition) -> Iterator[Remedy]:
    now = (whole.state.number("maintenance_work_mem") or 0.0) / 1024
    if now < _MOST_MB:
        yield Remedy(
            command=f"SET maintenance_work_mem = '{_MOST_MB}MB';",
            does="in its session, before the statement; a very large index needs files all the "
            "same",
            risk="the statement and its workers together take as much",
        )
    else:
        yield Remedy(does=f"let it be: it has {now:,.0f} MB of memory already")


def _more_memory(cause: Cause, whole: Partition, each: float) -> Iterator[Remedy]:
    """Each: what a call wrote to files, in bytes; 0: not known."""
    role, database = cause.applications.most()[0][0], next(iter(cause.statements))[0]
    now = _work_mem_mb(whole.state, role, str(database))
    wanted = 2 ** max(2, (int(2.5 * each) >> 20).bit_length()) if each else 4 * (now or 16)
    size = min(_MOST_MB, int(wanted))
    risk = "each sort of each session may take as much, each hash hash_mem_multiplier times that"
    if now is not None and size <= now:
        yield Remedy(
            does=f"see its plan: it spills although its sessions have {now:,.3g} MB for each sort "
            "or hash (work_mem), unless they set less themselves"
        )
    else:
        yield Remedy(
            command=f"SET work_mem = '{size}MB';",
            does="in its session or transaction, before the statement"
            + ("" if now is None else f"; it has {now:,.3g} MB now, if it did not set its own"),
            risk=risk,
        )
        if size <= _MOST_OF_ROLE_MB:
            yield remedies.role_setting(
                role, "work_mem", f"'{size}MB'", "for all new sessions of the role", risk
            )
    yield remedies.setting("log_temp_files", "'10MB'", "logs which statements spill")


def _work_mem_mb(state: ServerState, role: str, database: str) -> float | None:
    """What sessions of a role have; None if it is not known."""
    own, kib = _own_setting(state, "work_mem", role, database), state.number("work_mem")
    if own is not None:
        return _megabytes(own.value)
    return None if kib is None else kib / 1024


def _megabytes(value: str) -> float | None:
    """A setting whose unit is kB, as somebody wrote it; None if it cannot be read."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB)?\s*", value)
    if found is None:
        return None
    powers = {"B": -2, "kB": -1, "MB": 0, "GB": 1, "TB": 2}
    return float(found[1]) * 1024.0 ** powers[found[2] or "kB"]


def _scanned(observation: Observation) -> dict[str, TableTotals]:
    """Tables that were read from end to end again and again, with what they grew by."""
    found = {}
    seconds = observation.tables_s
    for name, after in observation.state.tables.items():
        before = observation.state.tables_before.get(name)
        if before is None:
            continue
        scans, rows = after.scans - before.scans, after.rows_scanned - before.rows_scanned
        if scans >= _SCANS and rows / seconds >= _ROWS_S and rows / scans >= _ROWS_A_SCAN:
            found[name] = TableTotals(name, scans, rows, after.live, after.dead, None)
    return found


@functools.lru_cache(maxsize=64)
def _parts_with_tables(text: str) -> tuple[str, ...]:
    return tuple(_TABLES_OF.findall(text))


def names_table(text: str, table: str) -> bool:
    """Whether a statement's text names a table: with its schema, or with none."""
    found = remedies.SCHEMA.match(table)
    schema, bare = (found[0][:-1], table[found.end() :]) if found else ("public", table)
    if bare.strip('"').casefold() not in text.casefold():
        return False  # as of nearly all tables
    own = schema.strip('"').casefold()
    name = re.compile(
        rf"(?:(\w+|\"[^\"]+\")\s*\.\s*)?(?<!\w)\"?{re.escape(bare.strip(chr(34)))}\"?(?!\w)",
        re.IGNORECASE,
    )
    places = (one for part in _parts_with_tables(text) for one in name.finditer(part))
    return any(not one[1] or one[1].strip('"').casefold() == own for one in places)


def is_of_table(statement: StatementKey, table: str, observation: Observation) -> bool:
    """Whether a statement names a table of the connected database; others may have it as well."""
    known = observation.state.database in ("", statement[0])
    return known and names_table(observation.text(statement), table)


def _scan(cause: Cause, whole: Partition) -> Explanation | None:
    key, observation = next(iter(cause.statements)), whole.observation
    text = observation.text(key)
    scanned = _scanned(observation).items()
    tables = [one for name, one in scanned if is_of_table(key, name, observation)]
    if not tables:
        return None
    table, seconds = max(tables, key=lambda one: one.rows_scanned), observation.tables_s
    conditions = _SET.sub("", text)
    columns = list(dict.fromkeys(_COMPARED.findall(conditions)))
    unclear = (
        not columns
        or _OR.search(conditions)
        or len(_NAMES_TABLE.findall(text)) > 1
        or _LISTED_TABLES.search(text)
    )
    if not _HAS_CONDITIONS.search(conditions):
        fix = Remedy(
            does="no index helps if it needs all rows: run it less often, or keep its result"
        )
    elif unclear:
        fix = Remedy(
            does=f"if few rows of {table.name} match its conditions, an index on the column that "
            "these compare finds them: see the plan first"
        )
    else:
        fix = Remedy(
            command=f"CREATE INDEX CONCURRENTLY ON {remedies.table(table.name)} "
            f"({', '.join(columns[:3])});",
            does="if few rows match: then an index finds them; see the plan first",
            risk="it takes room, and every change of the table keeps it up to date; if it fails or "
            "is cancelled, it leaves an INVALID index to be dropped",
            privilege="the table's owner",
        )
    return Explanation(
        "scan",
        f"reads {table.name} from end to end at every call (sequential scans)",
        (
            f"{table.name}: {table.scans / seconds:,.1f} sequential scans a second of "
            f"{table.rows_scanned / table.scans:,.0f} rows each",
        ),
        "every call reads all rows of the table, most of them in vain if few are wanted",
        (fix, _look(text)),
        table.name,
    )


def _contention(cause: Cause, whole: Partition) -> Explanation | None:
    events = {e: s for e, s in cause.events.items() if is_queue(e)}
    if not events or whole.aas(cause) < 1.0:
        return None
    event = max(events, key=lambda name: events[name])
    if events[event] < _CONTENDED * cause.seconds:
        return None
    why, does = contention(event)
    text = _text(cause, whole)
    return Explanation(
        "contention",
        f"queues for {event}",
        (f"{event}: {numbers.percent(100 * events[event] / cause.seconds)} of its time",),
        f"sessions queue for {why}",
        (Remedy(does=does),),
        table_of(text),
    )


def is_queue(event: str) -> bool:
    """Whether sessions that wait for it queue for something in shared memory."""
    return event.startswith(_QUEUES) and event != _WAITS_FOR_PINS


def contention(event: str) -> tuple[str, str]:
    """What a lock in shared memory protects, and what helps."""
    name = event.partition("/")[2]
    for part, words in _CONTENTION.items():
        if part.lower() in name.lower():
            return words
    return (
        "something in shared memory that one session at a time may use",
        "let fewer sessions run at once, with a pooler in front of the server",
    )


def _slower(cause: Cause, whole: Partition) -> Explanation | None:
    key, found = next(iter(cause.statements)), _totals(cause, whole)
    database, past = key[0], whole.state.history.get(key)
    if found is None or past is None or past.calls < _HISTORY_CALLS or not found.calls:
        return None
    now, before = found.exec_s / found.calls, past.exec_s / past.calls
    if now < _SLOWER * before or now < 0.001:
        return None
    text = _text(cause, whole)
    return Explanation(
        "slower",
        "takes longer than it used to",
        (f"{spent(now)} a call now, {spent(before)} on average before (pg_stat_statements)",),
        "its plan changed, its table grew, or what it reads is no longer in memory",
        (
            _look(text),
            Remedy(
                command=f"ANALYZE {table_of(text)};" if table_of(text) else "",
                does=f"in database {database}, if the table has changed much since its statistics "
                "were made",
            ),
        ),
        table_of(text),
        sure=False,
    )


def _crowded(cause: Cause, whole: Partition) -> Explanation | None:
    processors = whole.state.processors
    on_cpu = cause.events.get("CPU", 0.0)
    if processors is None or whole.on_cpu <= CROWDED * processors or on_cpu < 0.5 * cause.seconds:
        return None
    text = _text(cause, whole)
    return Explanation(
        "crowded",
        "takes most of the processors",
        (
            f"{whole.on_cpu:.1f} sessions want a processor at once, and there are "
            f"{processors:g} (CPU)",
        ),
        "more sessions compute than there are processors: all of them wait for their turn",
        (_look(text), Remedy(does="run it in fewer sessions at once, by a pooler's limit")),
        table_of(text),
    )
