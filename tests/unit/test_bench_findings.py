"""The scores of `bench.findings`, and that its cases can be told apart."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bench.findings import CASES, Result, sums, table_line
from bench.findings_judge import Expected, Verdict, cross_matches, judge, texts
from bench.findings_stage.questions import Agent, of_incident

_LOCK = Expected(r"\block", r"(?<!\d)4711(?!\d)", r"terminate", r"tickets")
_BEGAN = datetime(2025, 3, 1, 12, tzinfo=UTC)


def _finding(**fields: Any) -> dict[str, Any]:
    return {"key": "x", "level": "critical", "title": "", "evidence": [], "remedy": []} | fields


_RIGHT = _finding(
    title="6 sessions wait for a lock",
    root={"pid": 4711, "application": "night"},
    object="tickets",
    remedy=[{"command": "SELECT pg_terminate_backend(4711)"}],
)
_OTHER = _finding(title="The log is slow")


def test_the_first_finding_has_cause_and_root() -> None:
    assert judge(_LOCK, [_RIGHT, _OTHER]) == Verdict(2, "6 sessions wait for a lock", "CRMA", "")


def test_what_is_missing_of_the_right_finding_is_noted() -> None:
    found = judge(_LOCK, [_RIGHT | {"remedy": [], "object": ""}])
    assert (found.score, found.note) == (2, "remedy and rest missing")


def test_the_right_finding_is_second() -> None:
    found = judge(_LOCK, [_OTHER, _RIGHT])
    assert (found.score, found.first) == (1, "The log is slow")
    assert found.note == "number 2: 6 sessions wait for a lock"


@pytest.mark.parametrize("pid", [None, 47110])
def test_a_cause_without_its_root(pid: int | None) -> None:
    found = judge(_LOCK, [_RIGHT | {"root": {"pid": pid}}])
    assert (found.score, found.note) == (1, "root not named")


@pytest.mark.parametrize("findings", [[], [_OTHER]])
def test_nothing_or_something_else(findings: list[dict[str, Any]]) -> None:
    assert judge(_LOCK, findings).score == 0


@pytest.mark.parametrize("field", ["why", "because", "sure", "remedy", "level"])
def test_general_words_are_no_evidence(field: str) -> None:
    said = _OTHER | {field: "a lock of 4711"}
    assert judge(_LOCK, [said]).score == 0


def test_who_waits_is_no_root() -> None:
    said = _OTHER | {"evidence": ["waits for a lock"], "victims": [4711]}
    assert judge(_LOCK, [said]).note == "root not named"


def test_evidence_is_found_in_any_other_field() -> None:
    said = _OTHER | {"evidence": ["waits for a lock"], "figures": {"root_pid": 4711}}
    assert judge(_LOCK, [said]).score == 2


@pytest.mark.parametrize(
    ("levels", "score"),
    [([], 2), (["info", "info"], 2), (["info", "warning"], 1), (["warning", "critical"], 0)],
)
def test_calm(levels: list[str], score: int) -> None:
    findings = [_finding(level=level, title=level) for level in levels]
    assert judge(Expected(calm=True), findings).score == score


def test_a_finding_that_fits_many_causes_is_listed() -> None:
    causes = [("locks", "lock"), ("log", "sync"), ("clients", "client"), ("locks", "held")]
    vague = _finding(title="all", evidence=["a lock is held, a sync is slow, a client waits"])
    assert cross_matches([vague, _RIGHT], "locks", causes) == {"all": ["clients", "log"]}
    assert cross_matches([_RIGHT], "log", causes) == {}


def test_texts_name_their_fields() -> None:
    assert texts({"a": {"b": 1, "c": None}, "d": ["x", "y"]}) == "a: b: 1\nd: x\ny"


def test_findings_of_an_earlier_incident_are_left_out() -> None:
    def one(key: str, seconds: float, active_s: float) -> dict[str, Any]:
        since = (_BEGAN + timedelta(seconds=seconds)).isoformat()
        return {"key": key, "since": since, "active_s": active_s}

    before = [one("old", -50, 100.0), one("goes on", -50, 100.0), one("again", -300, 5.0)]
    after = [
        one("old", -50, 101.0),
        one("goes on", -50, 140.0),
        one("again", 3, 5.0),
        one("new", -1, 0.0),
    ]
    assert [f["key"] for f in of_incident(after, before, _BEGAN)] == ["goes on", "again", "new"]


def test_an_agent_is_asked_in_words_that_the_command_takes(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as running:
        answer = Agent(tmp_path, running).ask(_BEGAN)
        running.kill()
    assert "holds no spool" in answer.error


def test_sums_leave_out_what_was_not_staged() -> None:
    results = [
        Result("a", False, doctor=Verdict(2, "x"), agent=Verdict(1, "y")),
        Result("b", False, problem="not staged: its proof was not seen"),
        Result("c", True, doctor=Verdict(1, "z", note="false alarm (warning)")),
    ]
    assert sums(results) == [
        "incidents: doctor 2 of 2, agent 1 of 2",
        "calm: doctor 1 of 2",
        "all: doctor 3 of 4, agent 1 of 2",
        "not staged: b",
    ]
    assert "not staged" in table_line(results[1])


def test_cases_are_complete() -> None:
    incidents = [case for case in CASES if not case.calm]
    assert len(incidents) >= 44
    assert len(CASES) - len(incidents) >= 6
    assert max(Counter(case.name for case in CASES).values()) == 1
    for case in CASES:
        assert case.says.endswith(".")
        assert case.proof.startswith("SELECT")
        assert case.calm == (not case.cause)
        for pattern in (case.cause, case.root, case.remedy, case.also):
            re.compile(pattern)
