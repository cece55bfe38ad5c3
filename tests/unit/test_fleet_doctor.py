"""One ranked table over all servers of a fleet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import jsonschema

from pgtare.observing.doctor.fleet import Examined, document, table
from pgtare.observing.doctor.model import Report, Server
from pgtare.observing.doctor.show import view
from pgtare.observing.findings.model import Finding, of_setting
from tests.json_documents import documents
from tests.terminal import printed

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def finding(check: str, level: Literal["warning", "critical"]) -> Finding:
    return of_setting(
        check,
        level=level,
        title=f"{check} is bad",
        evidence=["it"],
        why="so",
        remedy=["SELECT 1;"],
        sure="certain",
        because="counted",
    )


def report(*findings: Finding) -> Report:
    server = Server(
        version="18.6 (x)", standby=False, started=NOW, database="app", role="r", sees_all=True
    )
    return Report(
        taken=NOW,
        duration_s=3,
        pgtare_version="0",
        server=server,
        level=findings[0].level if findings else "ok",
        findings=list(findings),
        statements=None,
        waits=None,
        clock=None,
        transactions_per_s=10,
        observers=[],
        unseen=[],
        notes=[],
    )


def test_the_worst_comes_first_then_the_heaviest_server() -> None:
    found = document(
        [
            Examined("light", {}, 1, report(finding("clock", "warning"))),
            Examined("heavy", {"env": "prod"}, 5, report(finding("logging", "warning"))),
            Examined("bad", {}, 0.1, report(finding("locks", "critical"))),
            Examined("gone", {}, 9, None, "cannot connect"),
        ]
    )
    assert [one.server for one in found.findings] == ["bad", "heavy", "light"]
    words = printed(table(found), 80).splitlines()[1].split()
    assert words == ["critical", "certain", "bad", "locks", "is", "bad"]
    assert (found.level, found.exit_status) == ("critical", 11)
    assert [one.level for one in found.servers] == ["warning", "warning", "critical", None]
    assert found.servers[3].problem == "cannot connect"
    schema = documents()["pgtare.fleet.doctor/1"].schema
    jsonschema.validate(found.model_dump(mode="json", by_alias=True), schema)


def test_a_long_finding_goes_on_in_its_column() -> None:
    title = "log_min_duration_statement = 0 writes every statement to the log"
    long = finding("logging", "critical").model_copy(update={"title": title})
    server = "db-17.production.eu-west-1.example.com"
    text = printed(table(document([Examined(server, {}, 1, report(long))])), 80)
    first, *lines = text.splitlines()
    begin = first.index("finding")
    assert " ".join(line[begin:].strip() for line in lines) == title
    assert "critical  certain  db-17.production.eu" in lines[0]


def test_a_server_that_could_not_be_looked_at_is_not_well() -> None:
    assert document([Examined("a", {}, 1, report())]).exit_status == 0
    assert document([Examined("a", {}, 1, None, "cannot connect")]).exit_status == 1


def test_a_server_whose_sessions_cannot_be_seen_is_not_well() -> None:
    """Its settings were read all the same."""
    seen = report()
    hidden = seen.model_copy(update={"server": seen.server.model_copy(update={"sees_all": False})})
    found = document([Examined("a", {}, 1, seen), Examined("b", {}, 1, hidden)])
    assert found.exit_status == 1
    assert found.servers[0].problem is None
    assert "cannot see what its sessions wait for" in (found.servers[1].problem or "")
    # a warning about a setting does not hide that either
    warned = hidden.model_copy(
        update={"level": "warning", "findings": [finding("logging", "warning")]}
    )
    found = document([Examined("b", {}, 1, warned)])
    assert (found.exit_status, found.servers[0].problem is None) == (10, False)
    for each in (hidden, warned):
        assert "Cannot see what sessions wait for" in printed(view(each), 100)
    assert "Cannot see" not in printed(view(seen), 100)
