"""Statements of unusual size and shape, from the server to every report of a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.profile import GROUPINGS, profile
from pgtare.observing.trace.file.reader import load
from pgtare.observing.trace.file.records import CallKind
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process
from tests.sessions import Connection, one, session
from tests.trace_recorder import recording, wait_until_traced

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MB = 1 << 20
#: Sizes of statements: 16 kB of a text are kept.
RING, WHOLE, KEPT, CUT = "32MB", 12_000, 16_384, 8 * MB
NODES = 500
DEPTH = 100
PARAMETERS = 1000
RECURSE = f"""
CREATE OR REPLACE FUNCTION dive(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN IF n = 0 THEN RETURN 0; END IF; RETURN (SELECT 1 + dive(n - 1)); END $$;
DROP TABLE IF EXISTS shapes; CREATE TABLE shapes (n int); INSERT INTO shapes VALUES ({DEPTH})
"""


def _run(app: Connection) -> None:
    """All of them, in one session."""
    for size in WHOLE, CUT:
        app.execute(f"SELECT /*{size}*/ length('" + "x" * size + "') AS huge")
    values = ", ".join(["%s::int"] * PARAMETERS)
    app.execute(f"SELECT {values} /*many*/".encode(), tuple(range(PARAMETERS)), binary=True)
    branches = " UNION ALL ".join(["SELECT n FROM shapes"] * NODES)
    assert one(app, f"SELECT count(*) FROM ({branches}) AS wide") == NODES
    assert one(app, f"SELECT dive({DEPTH}) AS deep") == DEPTH
    with app.cursor().copy("COPY shapes FROM STDIN /*in*/") as copy:
        for n in range(1000):
            copy.write_row((n,))
    with app.cursor().copy("COPY shapes TO STDOUT /*out*/") as copy:
        assert len(list(copy.rows())) == 1001
    for statement in (
        "BEGIN",
        "DELETE FROM shapes /*two-phase*/",
        "PREPARE TRANSACTION 'shapes'",
        "ROLLBACK PREPARED 'shapes'",
    ):
        app.execute(statement.encode())
    for raw in (b"\xc3\x28\xff", b"\x00\xfe", b"\xed\xa0\x80"):
        with pytest.raises(psycopg.Error):
            app.execute("SELECT convert_from(%s::bytea, 'UTF8') AS invalid", (raw,))
    # bytes that are no UTF-8 in the statement, and in a value that claims to be text
    with pytest.raises(psycopg.errors.CharacterNotInRepertoire):
        app.execute(b"SELECT '\xff\xfe'")
    found = app.pgconn.exec_params(b"SELECT $1::text", [b"\xff\xfe"])
    assert found.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"22021"
    found = app.pgconn.exec_params(b"SELECT $1::int8 /*short*/", [b"\0"], [20], [1])
    assert found.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"08P01"
    app.execute("SELECT 'the end'")


@pytest.fixture(scope="module")
def recorded() -> dict[str, Path]:
    """The recording of each server, made when it is first asked for."""
    return {}


@pytest.fixture
def rec(
    tracer: Cluster,
    onlooker: Connection,
    recorded: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    name = str(one(onlooker, "SHOW server_version_num"))
    if name not in recorded:
        onlooker.execute(RECURSE.encode())
        path = tmp_path_factory.mktemp("shapes") / "rec"
        with session(tracer, application_name="shapes") as app:
            app.execute(f"SET sql_trace.ring_size = '{RING}'".encode())
            app.execute("SET sql_trace.bind_length = -1")
            with recording(tracer, path, "--pid", str(app.info.backend_pid)):
                wait_until_traced(onlooker, app)
                _run(app)
        recorded[name] = path
    return recorded[name]


@pytest.fixture
def book(rec: Path) -> ledgers.Ledger:
    return ledgers.ledger(load(rec))


def executions(book: ledgers.Ledger, like: str, kind: CallKind = CallKind.EXECUTE) -> list[Any]:
    texts = book.processes[0].stream.texts
    return [
        call
        for call in book.calls
        if call["kind"] == kind and like in getattr(texts.get(int(call["text"])), "text", "")
    ]


def test_nothing_of_them_is_lost_or_misread(book: ledgers.Ledger) -> None:
    assert not book.notes
    assert [process.leader_pid for process in book.processes].count(None) == 1
    assert not book.processes[0].stream.notes
    totals = [sum(line.total_ns for line in profile(book, by).lines) for by in GROUPINGS]
    assert totals == pytest.approx([totals[0]] * len(totals), rel=1e-9)
    assert executions(book, "SELECT 'the end'")


def test_long_statements(book: ledgers.Ledger) -> None:
    (whole,) = executions(book, f"/*{WHOLE}*/")
    (cut,) = executions(book, f"/*{CUT}*/")
    texts = [book.processes[0].stream.texts[int(call["text"])] for call in (whole, cut)]
    assert [text.cut for text in texts] == [False, True]
    assert WHOLE < len(texts[0].text) < WHOLE + 100
    assert len(texts[1].text) == KEPT


def test_a_thousand_parameters_and_500_nodes(book: ledgers.Ledger) -> None:
    stream = book.processes[0].stream
    (many,) = executions(book, "/*many*/")
    assert len(stream.binds[int(many["call"])]) == PARAMETERS
    (wide,) = executions(book, "AS wide")
    nodes = stream.plans[int(wide["plan"])]
    assert len([n for n in nodes if n.get("kind") == "Seq Scan"]) == NODES


def test_bytes_that_are_no_text(book: ledgers.Ledger) -> None:
    stream = book.processes[0].stream
    invalid = [
        value.data for call in stream.binds for value in stream.binds[call] if value.type == 17
    ]
    assert invalid == [b"\xc3\x28\xff", b"\x00\xfe", b"\xed\xa0\x80"]
    states = [error.sqlstate for error in stream.errors]
    assert states == ["22021"] * 5 + ["08P01"]


@pytest.mark.parametrize("kind", [pytest.param("parquet", marks=pytest.mark.slow), "jsonl"])
def test_every_report_bears_them(rec: Path, tmp_path: Path, kind: str) -> None:
    for arguments in (
        ["profile", rec, "--by", "statement"],
        ["statements", rec],
        ["statements", rec, "--json"],
        ["clients", rec],
        ["report", rec, "--html", tmp_path / "page.html"],
        ["export", rec, tmp_path / kind, "--format", kind],
    ):
        done = in_process("trace", *arguments)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        # no statement of megabytes makes a line, or a page, of megabytes
        if "--json" in arguments:
            assert json.loads(done.stdout)
        else:
            assert len(done.stdout) < MB
    page = (tmp_path / "page.html").read_text()
    assert "AS huge" in page  # its name, without the literal
    assert "x" * 30_000 not in page
