"""`pgtare clock --query`: a statement's plan from a server, predicted and, where asked for, run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pgtare.seeing.clock import explain_timing, plan_source
from pgtare.seeing.clock.schema import ClockReport
from pgtare.server.cluster import Cluster
from tests.commands import failed, pgtare
from tests.unit.sample_clock_report import sample

pytestmark = [pytest.mark.server, pytest.mark.timeout(60)]


@pytest.fixture
def table(server: Cluster) -> Iterator[Cluster]:
    """A server with a table to read and one to find out whether something wrote."""
    with server.connect() as conn:
        for statement in (
            "CREATE TABLE clock_t AS SELECT i FROM generate_series(1, 20000) i",
            "ANALYZE clock_t",
            "CREATE TABLE clock_ran (i int)",
        ):
            conn.execute(statement.encode())
        yield server
        conn.execute("DROP TABLE clock_t, clock_ran")


def clock(server: Cluster, query: str, *arguments: str | Path) -> Any:
    """The command on this server, reading but the clock that it needs."""
    return pgtare(
        "clock", "--clock", "monotonic", "--query", query, "--dsn", server.dsn(), *arguments
    )


def test_the_session_tells_which_clock_its_server_reads(table: Cluster) -> None:
    chosen: dict[str, bool | None] = {}
    for source in ("system", "auto"):
        options = f"-c timing_clock_source={source}" if table.binaries.major >= 19 else ""
        with explain_timing.explainer(table.dsn(options=options), "SELECT 1") as session:
            chosen[source] = session.by_counter
    if table.binaries.major < 19:
        assert chosen == {"system": None, "auto": None}
    else:
        assert chosen["system"] is False
        with table.connect() as conn:
            shown = conn.execute("SHOW timing_clock_source").fetchone()
        assert shown is not None
        assert chosen["auto"] is (shown[0] == "auto (tsc)")


def test_a_statement_is_predicted_without_running_it(table: Cluster) -> None:
    # it would fail if it ran
    done = clock(table, "SELECT 1 / (i - i)\nFROM clock_t", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, ClockReport.model_json_schema(by_alias=True))
    plan = report["plan"]
    assert plan["source"] == "SELECT 1 / (i - i) FROM clock_t"
    assert plan["postgresql"] == table.binaries.major
    assert plan["rows_and_loops"] == "estimated"
    assert plan["calls"]["likely"] == pytest.approx(20_002, rel=0.02)
    assert plan["read_ns"] == report["clocks"][0]["read_ns"]
    assert plan["measured"] is None
    assert done.stderr == ""
    # a statement that writes is planned as any other
    found = plan_source.from_server("INSERT INTO clock_ran SELECT i FROM clock_t", table.dsn())
    assert not found.plan.analyzed
    with table.connect() as conn:
        assert conn.execute("SELECT count(*) FROM clock_ran").fetchone() == (0,)


def test_a_prediction_is_checked_by_running_the_statement(table: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    done = clock(table, "SELECT * FROM clock_t", "--measure", "--output", path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(path.read_text())["plan"]
    assert plan["rows_and_loops"] == "actual"
    assert plan["calls"] == dict.fromkeys(("lo", "likely", "hi"), 20_002)
    measured = plan["measured"]
    assert measured["pairs"] == explain_timing.DEFAULT_PAIRS
    assert measured["by"] == "processor time"
    assert 0 < measured["without_timing_ms"]["estimate"] < 1000
    assert "\nMeasured: " in done.stdout


@pytest.mark.parametrize(
    ("query", "arguments", "message"),
    [
        ("SELECT 1; SELECT 2", (), "multiple commands"),
        ("SELECT * FROM nowhere", (), 'relation "nowhere" does not exist'),
        ("INSERT INTO clock_ran VALUES (1)", ("--measure",), "only statements that change nothing"),
    ],
)
def test_a_statement_that_will_not_do_is_refused_in_a_sentence(
    table: Cluster, query: str, arguments: tuple[str, ...], message: str
) -> None:
    done = clock(table, query, *arguments)
    assert message in failed(done, 2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_ctrl_c_keeps_the_finished_pairs(table: Cluster) -> None:
    def interrupt(seconds: float, text: str) -> None:
        if text.startswith("8 of 15 pairs"):
            raise KeyboardInterrupt

    found = plan_source.run_on_server("SELECT * FROM clock_t", table.dsn(), interrupt)
    report = sample()
    found.predict(report)
    assert report.stopped_by == "interrupt"
    assert report.plan is not None
    assert report.plan.measured is not None
    assert (report.plan.measured.pairs, report.plan.measured.interrupted) == (8, True)


def test_a_server_elsewhere_is_noted(table: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan_source.from_server("SELECT 1", table.dsn())
    assert found.notes == ()
    monkeypatch.setattr(explain_timing.Explainer, "local", False)
    found = plan_source.from_server("SELECT 1", table.dsn())
    report = sample()
    found.predict(report)
    assert report.plan is not None
    assert report.plan.notes[0].startswith("the server is on another machine")
