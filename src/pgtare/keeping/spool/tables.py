"""The tables of a spool: their columns, how each is rolled up, and how long it is kept.

To divide by time, take it from `ticks`, which has a row for each tick of each source even if
nothing happened. Average active sessions = sum(active_ns) of a server's waits / sum(covered_ns) of
its ticks with source 'waits'. That also holds for the rolled-up tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

#: How a column of a rolled-up row comes from those that it sums up. key: equal in all of them.
Rule = Literal["key", "sum", "max", "last"]

HISTOGRAM = tuple(f"h{bucket:02d}" for bucket in range(32))
MINUTE_S, HOUR_S = 60, 3600
_DAY_S = 86400
#: What tables have in common that are kept equally long.
Age = Literal["ticks", "sessions", "minutes", "hours"]
#: How long that is unless the configuration says otherwise, s.
KEPT_S: dict[Age, int] = {
    "ticks": 7 * _DAY_S,
    "sessions": 2 * _DAY_S,
    "minutes": 30 * _DAY_S,
    "hours": 400 * _DAY_S,
}

_TS = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Column:
    """A column; about: what it holds, with its unit, in the words of the documentation."""

    name: str
    type: pa.DataType
    about: str
    rule: Rule = "key"
    nullable: bool = False

    @property
    def field(self) -> pa.Field:
        """The column, as it is stored."""
        return pa.field(self.name, self.type, self.nullable)


@dataclass(frozen=True)
class SpoolTable:
    """A table. age: which setting says how long its rows are kept; None: always.

    source, bucket_s: of a rolled-up table, which table it sums up, and over how long.
    """

    name: str
    about: str
    columns: tuple[Column, ...]
    age: Age | None
    source: str | None = None
    bucket_s: int = 0

    @property
    def schema(self) -> pa.Schema:
        """All columns, as they are stored."""
        return pa.schema([column.field for column in self.columns])

    @property
    def kept_s(self) -> int | None:
        """How long its rows are kept unless the configuration says otherwise; None: always."""
        return None if self.age is None else KEPT_S[self.age]

    @property
    def own_columns(self) -> list[str]:
        """The names of the columns that not every table has."""
        return [column.name for column in self.columns[len(COMMON) :]]

    @property
    def row_schema(self) -> pa.Schema:
        """The columns that `Spool.commit` is given: all but `segment`, which it adds."""
        return pa.schema([field for field in self.schema if field.name != "segment"])


#: The first columns of every table.
COMMON = (
    Column("server", pa.string(), "name of the server in the agent's configuration"),
    Column("agent", pa.string(), "UUID of the agent that read it"),
    Column("segment", pa.string(), "the commit that brought the row: UUID of the spool, number"),
    Column(
        "epoch",
        pa.int64(),
        "the life of the server's counters: changes if they restart (hash of system identifier, "
        "start of the server, and resets)",
    ),
    Column("ts", _TS, "end of the interval"),
    Column("covered_ns", pa.int64(), "time that the row covers, ns", "sum"),
    Column("quality", pa.string(), "exact, approximate or sampled"),
)


def _texts(**about: str) -> tuple[Column, ...]:
    return tuple(Column(name, pa.string(), words) for name, words in about.items())


def _key(name: str, about: str, nullable: bool = False) -> Column:
    return Column(name, pa.int64(), about, "key", nullable)


def _sum(name: str, about: str) -> Column:
    return Column(name, pa.int64(), about, "sum")


def _buckets() -> tuple[Column, ...]:
    return tuple(_sum(name, _bucket(i)) for i, name in enumerate(HISTOGRAM))


def _bucket(index: int) -> str:
    if index == 0:
        return "waits of less than 2^8 ns (256 ns)"
    if index == len(HISTOGRAM) - 1:
        return f"waits of 2^{index + 7} ns (275 s) and longer"
    return f"waits of 2^{index + 7} to 2^{index + 8} ns"


_TIMES = (
    _sum("calls", "waits that ended, however many calls of libc each took"),
    _sum("total_ns", "time of the waits that ended, ns"),
    _sum("active_ns", "time that passed in waits, those in progress included, ns"),
    Column(
        "max_ns",
        pa.int64(),
        "longest wait so far, ns; NULL unless it rose in this interval",
        "max",
        True,
    ),
)
_EVENT = (
    *_texts(type="type of the wait event; CPU: it did not wait", event="wait event"),
    Column("idle", pa.bool_(), "whether the wait means that there is nothing to do"),
)
_WHO = (
    _key("role_oid", "OID of the role"),
    *_texts(role="role"),
    _key("database_oid", "OID of the database"),
    *_texts(database="database"),
)

_WAITS = (
    *COMMON,
    *_texts(backend_type="kind of process"),
    Column("background", pa.bool_(), "whether it is a process of the server's own background"),
    *_EVENT,
    *_TIMES,
    Column("sessions", pa.int32(), "processes that the figures come from", "max"),
    *_buckets(),
)
_STATEMENTS = (
    *COMMON,
    *_WHO,
    _key("query_id", "identifier of the statement on this server"),
    _key("text_hash", "hash of its text, for `texts`", True),
    *_texts(
        kind="statement; rest: all statements without a row of their own; outside: no statement"
    ),
    *_EVENT,
    *_TIMES,
    *_buckets(),
)
_SESSIONS = (
    *COMMON,
    Column("pid", pa.int32(), "process"),
    *_WHO,
    *_texts(
        application="application_name", backend_type="kind of process", state="state of the session"
    ),
    Column("type", pa.string(), "type of the wait event; NULL: it did not wait", nullable=True),
    Column("event", pa.string(), "wait event; NULL: it did not wait", nullable=True),
    _key("query_id", "identifier of its statement", True),
    _key("query_age_us", "age of its statement, µs", True),
    _key("xact_age_us", "age of its transaction, µs", True),
    Column("blockers", pa.list_(pa.int32()), "processes that it waits for", nullable=True),
)
_ACTIVITY = (
    *COMMON,
    _key("database_oid", "OID of the database"),
    *_texts(database="database"),
    _sum("commits", "transactions committed"),
    _sum("rollbacks", "transactions rolled back"),
    _sum("blocks_read", "blocks read from the system"),
    _sum("blocks_hit", "blocks found in shared buffers"),
    _sum("rows_returned", "rows read by scans"),
    _sum("rows_fetched", "rows fetched by index scans"),
    _sum("rows_inserted", "rows inserted"),
    _sum("rows_updated", "rows updated"),
    _sum("rows_deleted", "rows deleted"),
    _sum("temp_files", "temporary files"),
    _sum("temp_bytes", "bytes written to temporary files"),
    _sum("deadlocks", "deadlocks"),
    Column(
        "processors",
        pa.float64(),
        "processors that the server may use, its cgroup considered; NULL: unknown",
        "max",
        True,
    ),
    Column("sessions", pa.int32(), "connected sessions; rolled up: the most", "max"),
    Column(
        "settings",
        pa.string(),
        "settings of what observes the server, as JSON; NULL unless they changed",
        "last",
        True,
    ),
)
_TICKS = (
    *COMMON,
    *_texts(source="the table whose tick it is: waits, statements, sessions or activity"),
    _sum("ticks", "ticks: 1; rolled up: their number"),
)
_TEXTS = (
    *COMMON,
    _key("text_hash", "hash of the text"),
    *_texts(text="normalised text of the statement"),
)
_FINDINGS = (
    *COMMON,
    *_texts(
        key="the same as long as it is the same thing",
        kind="lock, statement, limit, evictions …",
        event="open, update or close",
    ),
    Column(
        "class",
        pa.int32(),
        "0 outage, 1 active time, 2 limit, 3 setting, 4 information",
    ),
    *_texts(level="critical, warning or info"),
    Column("since", _TS, "when it began"),
    Column("until", _TS, "when it was seen last; NULL unless it is closed", nullable=True),
    Column("episodes", pa.int32(), "how often it was open, with less than ten minutes in between"),
    Column("share", pa.float64(), "of all active time, from 0 to 1", nullable=True),
    Column("aas", pa.float64(), "sessions that it holds up, on average", nullable=True),
    Column("active_s", pa.float64(), "active time that it took so far, s", nullable=True),
    Column("limit_left_s", pa.float64(), "until a limit is reached, s", nullable=True),
    Column("root", pa.string(), "whom the others wait for, as JSON", nullable=True),
    Column("gate", pa.string(), "who has the others behind it, as JSON", nullable=True),
    _key("query_id", "identifier of its statement", True),
    Column("object", pa.string(), "the table or other object", nullable=True),
    Column("victims", pa.list_(pa.int32()), "processes that wait"),
    *_texts(
        title="one line",
        evidence="what was seen, a line each",
        why="why it matters",
        remedy="what to do, as JSON: command, does, risk, privilege of each",
        sure="certain, likely or possible",
        because="why so sure",
        figures="figures with the unit in the name, as JSON",
    ),
    Column("follows", pa.string(), "key of the one that came before it", nullable=True),
    Column(
        "traces",
        pa.string(),
        "traces of its sessions, as JSON: pid, id and file of each kept; what is missing, and why",
        nullable=True,
    ),
)
_RECORDINGS = (
    *COMMON,
    _key("number", "number of the recording on its server, until that is restarted"),
    *_texts(cause="what triggered it", detail="how much that was, or which error"),
    Column("started", _TS, "when it was triggered"),
    Column("pid", pa.int32(), "process that was recorded"),
    *_WHO[:4],
    *_texts(application="application_name"),
    _key("query_id", "identifier of its statement", True),
    _key("bytes", "its size in the server's memory; 0 once it is in a file"),
    Column("file", pa.string(), "its file, if it was in one when it was read", nullable=True),
    _key(
        "incident",
        "shared by the sessions of one incident: those that waited, and those that held them up",
        True,
    ),
)
#: Labels are in one column, so that every server may have others.
DESCRIPTION = (
    *_texts(labels="labels of the server, as a JSON object"),
    _key(
        "system_identifier",
        "of its data directory, which a standby has from its primary; NULL: unknown",
        True,
    ),
    Column("standby", pa.bool_(), "whether it was a standby; NULL: unknown", "key", True),
)
_SERVERS = (*COMMON, *DESCRIPTION)
_AGENT = (
    *COMMON,
    *_texts(kind="what was measured of the agent itself"),
    Column("value", pa.float64(), "the figure"),
    *_texts(unit="its unit"),
)
_GAPS = (
    *COMMON,
    *_texts(kind="restart, reset, absence, lost, disk_full, dropped, busy or unexpected"),
    Column("from_ts", _TS, "start of what is missing"),
    *_texts(detail="what is missing, and why"),
)


def _rolled(source: str, about: str, columns: tuple[Column, ...]) -> Iterator[SpoolTable]:
    """The hours of a table of minutes, or minutes and hours of a table of ticks."""
    finer = source
    if source in ("waits", "ticks"):
        finer = f"{source}_1m"
        yield SpoolTable(finer, f"{about}, by the minute", columns, "minutes", source, MINUTE_S)
    yield SpoolTable(f"{source}_1h", f"{about}, by the hour", columns, "hours", finer, HOUR_S)


_ALL = (
    SpoolTable("waits", "waits by kind of process and event, every tick", _WAITS, "ticks"),
    *_rolled("waits", "waits", _WAITS),
    SpoolTable(
        "statements",
        "waits by statement and event, every minute: the most expensive statements, the rest, and "
        "what ran outside statements",
        _STATEMENTS,
        "minutes",
    ),
    *_rolled("statements", "statements", _STATEMENTS),
    SpoolTable("sessions", "active sessions, every second", _SESSIONS, "sessions"),
    SpoolTable("activity", "what databases did, every minute", _ACTIVITY, "minutes"),
    *_rolled("activity", "what databases did", _ACTIVITY),
    SpoolTable("ticks", "time covered by each tick, also if nothing happened", _TICKS, "ticks"),
    *_rolled("ticks", "time covered", _TICKS),
    SpoolTable("texts", "texts of statements", _TEXTS, None),
    SpoolTable(
        "findings",
        "what slowed the server, and who: each opening, change and end",
        _FINDINGS,
        "hours",
    ),
    SpoolTable(
        "recordings",
        "traces that a server kept because of a trigger, each once",
        _RECORDINGS,
        None,
    ),
    SpoolTable("servers", "what servers are, each time that it changed", _SERVERS, None),
    SpoolTable("agent", "the agent's own cost and losses, every tick", _AGENT, "ticks"),
    SpoolTable("gaps", "what is missing, and why", _GAPS, "hours"),
)
#: Every table by its name.
TABLES: dict[str, SpoolTable] = {table.name: table for table in _ALL}


def rollups(source: str) -> tuple[SpoolTable, ...]:
    """The tables that sum up the rows of `source`."""
    return tuple(table for table in _ALL if table.source == source)


def rows(name: str, columns: dict[str, Any]) -> pa.Table:
    """Rows for `Spool.commit`, from columns by name (arrays or lists), in the table's types."""
    table = pa.table(columns, schema=TABLES[name].row_schema)
    for field in table.schema:
        if not field.nullable and table[field.name].null_count:
            # one would be refused only when the rows of all servers are written
            raise ValueError(f"a row of {name} has no {field.name}")
    return table
