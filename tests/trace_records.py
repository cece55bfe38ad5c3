"""A decoder of the records of sql_trace, written from docs/trace-format.md alone."""

import contextlib
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pgtare.observing.trace.analysis.ledger import Ledger
from tests.sessions import Connection, rows

KINDS = [
    "?",
    "session",
    "text",
    "call",
    "binds",
    "plan",
    "rowsources",
    "transaction",
    "error",
    "request",
    "waitring",
    "level",
    "end",
    "lost",
    "application",
    "fused",
    "open",
]
CALLS = ["?", "parse", "bind", "plan", "execute", "fetch", "commit", "rollback", "utility"]
EVENTS = ["?", "begin", "commit", "abort", "prepare", "subabort"]
REASONS = ["?", "setting", "asked", "application", "query", "recorder"]
STATES = ["null", "whole", "cut", "redacted", "omitted"]
FAILED, SHARED, LOCAL_TEMP, WAL, ABORTED, ESTIMATED, SEVERAL = 1, 2, 4, 8, 16, 32, 64
GROUPS = (
    (SHARED, "hit read dirtied written"),
    (LOCAL_TEMP, "local_hit local_read local_dirtied local_written temp_read temp_written"),
    (WAL, "wal_records wal_bytes"),
)
# of a request in one record, and of the calls in it
BEGAN, COMMITTED = 1, 2
BINDS = 64
QUERY_ID, ROWS, PLAN = 0x100, 0x200, 0x400


@dataclass
class Record:
    """One record: its header, and its fields by name."""

    kind: str
    depth: int
    number: int
    time: int
    call: int
    fields: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None


def sqlstate(packed: int) -> str:
    return "".join(chr((packed >> (6 * i) & 63) + 48) for i in range(5)) if packed else ""


def _fixed(layout: str, names: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.calcsize("<" + layout)
    values = struct.unpack_from("<" + layout, data)
    return dict(zip(names.split(), values, strict=True)), data[size:]


def _name(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode()


def _session(data: bytes) -> dict[str, Any]:
    names = (
        "version pid started system_identifier session_started role database server_version_num "
        "clock ring_bytes application role_name database_name encoding"
    )
    fields, _ = _fixed("IiqqqIIiIQ64s64s64s24s", names, data)
    return {k: _name(v) if isinstance(v, bytes) else v for k, v in fields.items()}


def _text(data: bytes) -> dict[str, Any]:
    fields, rest = _fixed("QqIIII", "text query_id length stored flags _", data)
    return {**fields, "sql": rest[: fields["stored"]].decode(errors="replace")}


def _call(data: bytes) -> dict[str, Any]:
    names = "call_kind flags sqlstate parent text query_id plan execution start busy cpu rows"
    fields, rest = _fixed("HHIQQqQQqqqQ", names, data)
    fields["call_kind"] = CALLS[fields["call_kind"]]
    fields["sqlstate"] = sqlstate(fields["sqlstate"])
    for flag, group in GROUPS:
        counters = dict.fromkeys(group.split(), 0)
        if fields["flags"] & flag:
            counters, rest = _fixed("Q" * len(counters), group, rest)
        fields.update(counters)
    fields["fetches"] = 1
    if fields["flags"] & SEVERAL:
        several, rest = _fixed("Q", "fetches", rest)
        fields.update(several)
    assert not rest
    return fields


def _binds(data: bytes) -> dict[str, Any]:
    fields, rest = _fixed("II", "parameters entries", data)
    values = []
    for _ in range(fields["entries"]):
        entry, rest = _fixed("IBBHII", "type state form _ length stored", rest)
        entry["state"] = STATES[entry["state"]]
        entry["bytes"] = rest[: entry["stored"]]
        rest = rest[(entry["stored"] + 7) // 8 * 8 :]
        values.append(entry)
    assert not rest
    return {**fields, "values": values}


def _plan(data: bytes) -> dict[str, Any]:
    fields, rest = _fixed("QQII", "plan text stored nodes", data)
    return {**fields, "json": rest[: fields["stored"]].decode()}


def _rowsources(data: bytes) -> dict[str, Any]:
    fields, rest = _fixed("QII", "plan sampling nodes", data)
    entries = []
    for _ in range(fields["nodes"]):
        entry, rest = _fixed("iIQQQqqq", "node flags calls rows loops time low high", rest)
        entries.append(entry)
    return {**fields, "entries": entries}


def _transaction(data: bytes) -> dict[str, Any]:
    fields, _ = _fixed("IIQq", "event _ xid start", data)
    return {**fields, "event": EVENTS[fields["event"]]}


def _error(data: bytes) -> dict[str, Any]:
    fields, rest = _fixed("IIQII", "sqlstate severity text length stored", data)
    message = rest[: fields["stored"]].decode(errors="replace")
    return {**fields, "sqlstate": sqlstate(fields["sqlstate"]), "message": message}


def _request(data: bytes) -> dict[str, Any]:
    fields, _ = _fixed("qqII", "start cpu status messages", data)
    return {**fields, "status": chr(fields["status"])}


def _waitring(data: bytes) -> dict[str, Any]:
    return _fixed("qqII", "wait_started zero exact _", data)[0]


def _level(data: bytes) -> dict[str, Any]:
    fields, _ = _fixed("IId", "level reason statement_rate", data)
    return {**fields, "reason": REASONS[fields["reason"]]}


def _lost(data: bytes) -> dict[str, Any]:
    return _fixed("Q", "bytes", data)[0]


def _application(data: bytes) -> dict[str, Any]:
    return {"application": _name(data[:64])}


def _fused(data: bytes) -> dict[str, Any]:
    names = "flags status _ messages start cpu text query_id xid transaction began __"
    fields, rest = _fixed("IBBHqqQqQqII", names, data)
    items = []
    while rest:
        item, rest = _fixed("BBHIII", "kind number flags start end busy", rest)
        if item["kind"] == BINDS:
            values = rest[: item["start"]]
            rest = rest[item["start"] :]
            parsed = _binds(struct.pack("<II", item["flags"], item["flags"]) + values)
            items.append({**parsed, "number": item["number"], "time": item["end"]})
            continue
        item["rows"] = item["plan"] = 0
        for flag, group in ((ROWS, "rows"), (PLAN, "plan"), *GROUPS):
            counters = dict.fromkeys(group.split(), 0)
            if item["flags"] & flag:
                counters, rest = _fixed("Q" * len(counters), group, rest)
            item.update(counters)
        items.append(item)
    return {**fields, "items": items}


def _unfused(record: Record) -> list[Record]:
    """The records that a request in one record is the same as."""
    f = record.fields
    start, first, made = f["start"], record.call, []

    def add(kind: str, time: int, call: int, **fields: Any) -> None:
        made.append(Record(kind, 0, record.number, time, call, fields))

    if f["flags"] & BEGAN:
        add("transaction", start + f["began"], 0, event="begin", xid=0, start=f["transaction"])
    end = 0
    for item in f["items"]:
        number = first + item["number"]
        if "values" in item:
            fields = {name: item[name] for name in ("parameters", "entries", "values")}
            add("binds", start + item["time"], number, **fields)
            continue
        end = start + item["end"]
        call = {
            **item,
            "call_kind": CALLS[item["kind"]],
            "flags": item["flags"] & 0xFF,
            "sqlstate": "",
            "parent": 0,
            "text": f["text"],
            "query_id": f["query_id"] if item["flags"] & QUERY_ID else 0,
            "execution": 0,
            "start": start + item["start"],
            "cpu": -1,
            "fetches": 1,
        }
        for name in ("kind", "number", "end"):
            del call[name]
        add("call", end, number, **call)
    if f["flags"] & COMMITTED:
        add("transaction", end, 0, event="commit", xid=f["xid"], start=f["transaction"])
    if record.kind == "fused":
        answered = {name: f[name] for name in ("start", "cpu", "messages")}
        add("request", record.time, 0, status=chr(f["status"]), **answered)
    return made


PARSERS = {
    "session": _session,
    "text": _text,
    "call": _call,
    "binds": _binds,
    "plan": _plan,
    "rowsources": _rowsources,
    "transaction": _transaction,
    "error": _error,
    "request": _request,
    "waitring": _waitring,
    "level": _level,
    "lost": _lost,
    "application": _application,
    "fused": _fused,
    "open": _fused,
}


def decode(data: bytes) -> list[Record]:
    """All records of a stream, as if none were fused; anything torn fails."""
    records = []
    while data:
        size, kind, depth, number, time, call = struct.unpack_from("<IHHQqQ", data)
        assert 32 <= size <= len(data), f"torn record: {data[:32]!r}"
        assert size % 8 == 0
        assert 0 < kind < len(KINDS), f"record of kind {kind}"
        parser = PARSERS.get(KINDS[kind])
        fields = parser(data[32:size]) if parser else {}
        record = Record(KINDS[kind], depth, number, time, call, fields)
        records += _unfused(record) if record.kind == "fused" else [record]
        data = data[size:]
    return records


@dataclass
class Trace:
    """What has been drained of a session's trace."""

    records: list[Record]

    def of(self, kind: str) -> list[Record]:
        return [r for r in self.records if r.kind == kind]

    def texts(self) -> dict[int, str]:
        return {r.text: r.sql for r in self.of("text")}

    def calls(self, kind: str | None = None, like: str = "") -> list[Record]:
        """Calls of a kind whose text begins so."""
        texts = self.texts()
        return [
            r
            for r in self.of("call")
            if (kind is None or r.call_kind == kind) and texts.get(r.text, "").startswith(like)
        ]

    def one(self, kind: str, like: str = "") -> Record:
        found = self.calls(kind, like)
        assert len(found) == 1, f"{len(found)} calls of {kind} {like}: {self.describe()}"
        return found[0]

    def describe(self) -> str:
        """All of it, for a failed test."""
        texts = self.texts()
        return "\n".join(
            f"{r.number} {r.kind} d{r.depth} #{r.call} {r.fields} "
            f"{texts.get(r.fields.get('text', 0), '')[:60]!r}"
            for r in self.records
        )


def drain(connection: Connection, pid: int, start: int = 0) -> tuple[int, int, bool, list[Record]]:
    """Where to go on, the bytes lost, whether the session has ended, and the records."""
    ((following, lost, ended, data),) = rows(
        connection, "SELECT next, lost, ended, data FROM sql_trace_drain(%s, %s)", pid, start
    )
    return following, lost, ended, decode(data)


def trace_of(connection: Connection, pid: int, start: int = 0) -> Trace:
    return Trace(drain(connection, pid, start)[3])


def traced(observer: Connection, session: Connection, *statements: str, level: int = 1) -> Trace:
    """What the trace of a session tells of these statements."""
    session.execute(f"SET sql_trace.level = {level}".encode())
    pid = session.info.backend_pid
    start = drain(observer, pid)[0]
    for statement in statements:
        session.execute(statement.encode())
    after = drain(observer, pid, start)[3]
    # texts that were written before count as well
    earlier = [r for r in drain(observer, pid)[3] if r.kind == "text"]
    return Trace([r for r in earlier if r.number < after[0].number] + after)


@contextlib.contextmanager
def tracing_session(observer: Connection, session: Connection, level: int = 1) -> Iterator[Trace]:
    """The trace of what a session does within the block, which is there after it."""
    session.execute(f"SET sql_trace.level = {level}".encode())
    pid = session.info.backend_pid
    start = drain(observer, pid)[0]
    trace = Trace([])
    yield trace
    trace.records += drain(observer, pid, start)[3]


def check_whole(trace: Trace) -> None:
    """No gap, no time that runs back, no time in two calls."""
    numbers = [r.number for r in trace.records if r.number]
    assert numbers == sorted(numbers)
    times = [r.time for r in trace.records if r.number]
    assert times == sorted(times), trace.describe()
    inner: defaultdict[int, int] = defaultdict(int)
    for call in trace.of("call"):
        assert 0 <= call.busy <= call.time - call.start, call
        inner[call.parent] += call.busy
    for call in trace.of("call"):
        assert inner[call.call] <= call.busy, trace.describe()
    # calls without a parent fit into the requests
    requests = trace.of("request")
    if requests:
        answered = requests[-1].number
        outer = sum(c.busy for c in trace.of("call") if not c.parent and c.number <= answered)
        assert outer <= sum(r.time - r.start for r in requests), trace.describe()


def call_texts(book: Ledger) -> list[str]:
    """Of all calls, in order."""
    found = []
    for process, call in zip(book.call_process, book.calls, strict=True):
        text = book.processes[process].stream.texts.get(int(call["text"]))
        found.append(text.text if text else "")
    return found


def grant_usage(admin: Connection, *roles: str) -> None:
    """Let roles use the modules' functions, also where these have schemas of their own."""
    schemas = rows(
        admin,
        "SELECT DISTINCT quote_ident(nspname) FROM pg_namespace n JOIN pg_proc p "
        "ON n.oid = pronamespace WHERE proname IN ('sql_trace_drain', 'wait_event_timing_rings')",
    )
    for (schema,) in schemas:
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {', '.join(roles)}".encode())
