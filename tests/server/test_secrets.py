"""No secret of the corpus reaches a trace: rings, recordings, exports, reports, pages."""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.pq import ExecStatus, TransactionStatus

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.ledger import Ledger
from pgtare.observing.trace.analysis.statements import report
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.output import export, page, show
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value
from tests import secrets_corpus
from tests.secrets_corpus import NEAR_MISSES, Bound, Called, Case, Copied, Pipeline, Step, Stopped
from tests.servers import tracing
from tests.sessions import Connection, eventually, one, rows, session, set_search_path
from tests.trace_recorder import recording
from tests.trace_records import Trace, trace_of
from tests.wire_protocol import Wire, call_message

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]

_LEVEL = "SET sql_trace.level = 12"


def numbered(text: str, number: int) -> str:
    """With the marker of a case."""
    return text.replace("hush", f"hush{number:03}")


@dataclass
class Player:
    """Runs cases in a traced session, and controls whose text, value and message are no secret."""

    cluster: Cluster
    connection: Connection
    pids: list[int]

    def step(self, step: Step, number: int) -> None:
        connection = self.connection.pgconn
        match step:
            case str():
                done = connection.exec_(numbered(step, number).encode())
                if done.status == ExecStatus.COPY_OUT:
                    while connection.get_copy_data(0)[0] > 0:
                        pass
                    while connection.get_result():
                        pass
            case Bound(sql, values, named):
                given = [numbered(v, number).encode() for v in values]
                text = numbered(sql, number).encode()
                if named:
                    connection.prepare(f"p{number}".encode(), text)
                    connection.exec_prepared(f"p{number}".encode(), given)
                else:
                    connection.exec_params(text, given)
            case Called(function, value):
                found = self.connection.pgconn.exec_(f"SELECT '{function}'::regproc::oid".encode())
                oid = int(found.get_value(0, 0) or b"")
                with Wire(self.connection) as wire:
                    wire.send(call_message(oid, numbered(value, number).encode()))
                    wire.read_until_ready()
            case Copied(sql, lines):
                connection.exec_(sql.encode())
                connection.put_copy_data(numbered(lines, number).encode())
                connection.put_copy_end()
                while connection.get_result():
                    pass
            case Pipeline(parses, binds):
                connection.enter_pipeline_mode()
                for name, sql in parses:
                    connection.send_prepare(name.encode(), sql.encode())
                for name, values in binds:
                    given = [numbered(v, number).encode() for v in values]
                    connection.send_query_prepared(name.encode(), given)
                connection.pipeline_sync()
                while (done := connection.get_result()) is None or (
                    done.status != ExecStatus.PIPELINE_SYNC
                ):
                    pass
                connection.exit_pipeline_mode()
            case Stopped(sql, terminate):
                self.stopped(numbered(sql, number), terminate)

    def stopped(self, sql: str, terminate: bool) -> None:
        with session(self.cluster) as client, session(self.cluster) as other:
            self.pids.append(client.info.backend_pid)
            client.execute(_LEVEL.encode())
            client.pgconn.send_query(sql.encode())
            client.pgconn.flush()
            eventually(
                lambda: one(
                    other,
                    "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s",
                    client.info.backend_pid,
                )
            )
            stop = "terminate" if terminate else "cancel"
            other.execute(f"SELECT pg_{stop}_backend(%s)", (client.info.backend_pid,))
            while client.pgconn.get_result():
                pass

    def controls(self, number: int) -> None:
        """What must be seen, so that what is not seen says something."""
        connection = self.connection.pgconn
        connection.exec_(f"SELECT 'text{number:03}' AS seen{number:03}".encode())
        connection.exec_params(b"SELECT $1::text AS control", [f"value{number:03}".encode()])
        connection.exec_(f"SELECT 'message{number:03}'::int".encode())
        connection.exec_(f"DO $$BEGIN EXECUTE 'SELECT ''nest' || 'ed{number:03}'''; END$$".encode())

    def play(self, case: Case, number: int, other: Connection) -> None:
        for sql in case.before:
            other.execute(numbered(sql, number).encode())
        for step in case.steps:
            self.step(step, number)
        if self.connection.pgconn.transaction_status != TransactionStatus.IDLE:
            self.connection.execute(b"ROLLBACK")
        self.connection.execute(_LEVEL.encode())
        self.controls(number)


@dataclass
class Played:
    """Where all cases were run: the bytes of rings, and a recording."""

    cluster: Cluster
    pids: list[int]
    rings: bytes
    trace: Trace
    recording: Path
    ledger: Ledger
    kept: bytes


@pytest.fixture(scope="module")
def played(each_server: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """All cases, once on each server."""
    settings: dict[str, Value] = {
        "sql_trace.ring_size": "32MB",
        "sql_trace.bind_length": -1,
        "sql_trace.cpu_interval": 0,
        "wait_event_timing.capture": "stats",
    }
    recorded = tmp_path_factory.mktemp("secrets") / "recorded"
    with (
        tracing(each_server, settings) as cluster,
        session(cluster) as other,
        psycopg.connect(cluster.dsn(), autocommit=True) as client,
    ):
        set_search_path(client)
        for sql in secrets_corpus.SETUP:
            client.execute(sql.encode())
        player = Player(cluster, client, [client.info.backend_pid])
        with recording(cluster, recorded, "--armed"):
            eventually(recorded.exists)
            client.execute(_LEVEL.encode())
            for number, case in enumerate(secrets_corpus.CASES):
                player.play(case, number, other)
            for number, sql in enumerate(NEAR_MISSES):
                client.pgconn.exec_(sql.replace("plain", f"plain{number:03}").encode())
            client.execute(b"SELECT 'all done'")
        rings = b"".join(
            one(other, "SELECT data FROM sql_trace_drain(%s, 0)", pid) for pid in player.pids
        )
        trace = trace_of(other, player.pids[0])
        client.execute(b"SET sql_trace.keep_slower_than = 0")
        client.execute(b"SELECT 'kept'")
        kept = one(other, "SELECT sql_trace_kept_file(max(id)) FROM sql_trace_kept()")
        kept += repr(rows(other, "SELECT * FROM sql_trace_kept()")).encode()
        with contextlib.suppress(psycopg.Error):
            client.close()
        book = ledgers.ledger(load(recorded))
        yield Played(cluster, player.pids, rings, trace, recorded, book, kept)


def bytes_of(recording: Path) -> bytes:
    """As it is, and without compression."""
    streams = [data for chunks in load(recording).streams.values() for _, data in chunks]
    return b"".join([recording.read_bytes(), *streams])


def leaks(data: bytes) -> list[str]:
    """Names of cases whose secret is in there, as it is or in hexadecimal."""
    found = {m.group(1) or b"" for m in re.finditer(rb"hush(\d{3})?", data, re.IGNORECASE)}
    found |= {
        bytes.fromhex((m.group(1) or b"").decode())
        for m in re.finditer(rb"68757368((?:3\d){3})?", data)
    }
    return [secrets_corpus.CASES[int(n)].name if n else "?" for n in sorted(found)]


def unseen(data: bytes, *controls: str) -> list[str]:
    """Controls of cases that are not in there."""
    return [
        f"{control}{n:03}"
        for n in range(len(secrets_corpus.CASES))
        for control in controls
        if f"{control}{n:03}".encode() not in data
    ]


_CONTROLS = ("text", "value", "message", "nested")


def test_rings_hold_no_secret(played: Played) -> None:
    assert not unseen(played.rings, *_CONTROLS)
    assert leaks(played.rings) == []


def test_statements_that_look_like_secrets_are_shown(played: Played) -> None:
    shown = [f"plain{n:03}".encode() in played.rings for n in range(len(NEAR_MISSES))]
    assert [sql for sql, seen in zip(NEAR_MISSES, shown, strict=True) if not seen] == []


def test_recordings_hold_no_secret(played: Played) -> None:
    data = bytes_of(played.recording)
    assert not unseen(data, *_CONTROLS)
    assert leaks(data) == []


def test_what_is_kept_holds_no_secret(played: Played) -> None:
    assert not unseen(played.kept, *_CONTROLS)
    assert leaks(played.kept) == []


def test_exports_hold_no_secret(played: Played, tmp_path: Path) -> None:
    export.write(played.ledger, tmp_path / "tables", "jsonl")
    data = b"".join(path.read_bytes() for path in (tmp_path / "tables").iterdir())
    assert not unseen(data, "text", "message", "nested")
    values = {f"value{n:03}".encode().hex() for n in range(len(secrets_corpus.CASES))}
    assert all(value.encode() in data for value in values)
    # identifiers can have any digits, also those that spell a secret in hexadecimal
    assert leaks(re.sub(rb"(?<=[:,\[ ])-?\d+(?=[,\]}\s])", b"0", data)) == []


def test_pages_and_reports_hold_no_secret(played: Played) -> None:
    """And name no statement by a literal."""
    found = report(played.ledger)
    shown = json.dumps([s.text for s in found]).encode()
    shown += "".join(show.one_line(s.text, 400) for s in found).encode()
    drawn = page.page(played.ledger).encode()
    for text in (shown, drawn):
        assert b"seen" in text
        assert leaks(text) == []
        assert not re.search(rb"(text|value|message|nested)\d{3}", text)


def test_what_is_known_of_a_secret_text(played: Played) -> None:
    """Neither identifier is made from the text: it would allow guesses."""
    hidden = [t for t in played.trace.of("text") if t.flags & 2]
    assert len(hidden) > len(secrets_corpus.CASES)
    assert all(t.length > 0 and t.stored == 0 for t in hidden)
    ids = {t.text for t in hidden}
    calls = [c for c in played.trace.calls("utility") if c.text in ids]
    assert len(calls) > 40
    assert {c.query_id for c in calls} == {0}
    sql = "ALTER ROLE keeper PASSWORD 'shared'"
    found = []
    with session(played.cluster) as other:
        for _ in range(2):
            with session(played.cluster) as client:
                client.execute(_LEVEL.encode())
                client.execute(sql.encode())
                (text,) = [
                    t
                    for t in trace_of(other, client.info.backend_pid).of("text")
                    if t.length == len(sql) and t.flags & 2
                ]
                found.append(text.text)
    assert len(set(found)) == 2


@pytest.mark.parametrize("part", ["x://u:p", "digest /*", "alter options /**/ "])
def test_a_search_takes_time_that_grows_with_the_length(played: Played, part: str) -> None:
    """Under a second of a processor, then; were it the square of the length, it would be many."""
    sql = f"SELECT length('{part * 60_000}')".encode()
    with session(played.cluster) as client:
        client.execute(_LEVEL.encode())
        process = psutil.Process(client.info.backend_pid)
        before = sum(process.cpu_times()[:2])
        client.execute(sql)
        assert sum(process.cpu_times()[:2]) - before < 5
