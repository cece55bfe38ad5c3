"""What the doctor says of settings that log: by thresholds, samples and levels."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pgtare.observing.doctor import check_logging
from pgtare.observing.doctor.model import Server
from pgtare.observing.doctor.observed import DoctorFacts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVER = Server(
    version="18.6", standby=False, started=NOW, database="app", role="monitor", sees_all=True
)
#: As PostgreSQL has them by default, with auto_explain and pgaudit loaded.
DEFAULTS = {
    "log_min_messages": "warning",
    "log_min_duration_statement": "-1",
    "log_min_duration_sample": "-1",
    "log_statement_sample_rate": "1",
    "log_transaction_sample_rate": "0",
    "log_statement": "none",
    "log_duration": "off",
    "auto_explain.log_min_duration": "-1",
    "auto_explain.sample_rate": "1",
    "auto_explain.log_level": "log",
    "pgaudit.log": "none",
}
EVERY = {"log_min_duration_statement": "0"}
PLANS = {"auto_explain.log_min_duration": "0"}
NODES = {"auto_explain.log_min_duration": "1000", "auto_explain.log_analyze": "on"}
SAMPLE = {"log_min_duration_sample": "0", "log_statement_sample_rate": "0.01"}


def findings(settings: dict[str, str], per_s: float) -> list[tuple[str, str, list[str]]]:
    facts = DoctorFacts(SERVER, {**DEFAULTS, **settings}, None, None, False, None)
    found = check_logging.check(facts, per_s)
    return [(one.level, one.title, one.commands) for one in found]


@pytest.mark.parametrize(
    ("settings", "per_s", "expected"),
    [
        ({}, 1e5, None),
        # the name is looked up even if no connection is logged
        ({"log_hostname": "on"}, 10, "warning: every connection looks up a host name"),
        (EVERY, 10, "warning: log_min_duration_statement = 0 writes every statement to"),
        (EVERY, 5000, "critical: log_min_duration_statement = 0 writes every statement to"),
        # its sample rate belongs to log_min_duration_sample
        ({**EVERY, "log_statement_sample_rate": "0"}, 5000, "critical: log_min_duration_statement"),
        ({"log_min_duration_statement": "100"}, 1e5, None),
        (SAMPLE, 1000, None),  # ten a second
        (SAMPLE, 20_000, "warning: log_min_duration_sample = 0 writes 1.0 % of the statements to"),
        (SAMPLE, 200_000, "critical: log_min_duration_sample = 0 writes 1.0 % of the"),
        ({**SAMPLE, "log_min_duration_sample": "100"}, 1e6, None),
        ({**SAMPLE, "log_statement_sample_rate": "0"}, 1e6, None),
        (
            {"log_transaction_sample_rate": "0.5"},
            1000,
            "warning: log_transaction_sample_rate = 0.5 writes the statements of 50 % of the "
            "transactions to",
        ),
        ({"log_statement": "all"}, 1000, "critical: log_statement = all writes every statement to"),
        ({"log_statement": "mod"}, 100, None),
        ({"log_statement": "mod"}, 5000, "warning: log_statement = mod writes every change of"),
        ({"log_duration": "on"}, 10, "warning: log_duration = on writes the duration of every"),
        (PLANS, 1000, "critical: auto_explain.log_min_duration = 0 writes the plan of every"),
        ({**PLANS, "auto_explain.sample_rate": "0.01"}, 1000, None),
        (
            {**PLANS, "auto_explain.sample_rate": "0.1"},
            1000,
            "warning: auto_explain.log_min_duration = 0 writes the plans of 10 % of the statements",
        ),
        (NODES, 10, "warning: auto_explain times every plan node of every statement"),
        ({**NODES, "auto_explain.sample_rate": "0.01"}, 1e5, None),
        ({**NODES, "auto_explain.sample_rate": "0.5"}, 10, "warning: auto_explain times every pla"),
        ({"pgaudit.log": "all, -misc"}, 1000, "critical: pgaudit.log = all, -misc writes every st"),
        ({"pgaudit.log": "all, -read"}, 1000, "warning: pgaudit.log = all, -read writes every ch"),
        ({"pgaudit.log": "ddl, role"}, 1e5, None),
        # what is written at all: LOG is above ERROR, and below FATAL
        ({**EVERY, "log_min_messages": "error"}, 1000, "critical: log_min_duration_statement"),
        ({**EVERY, "log_min_messages": "log"}, 1000, "critical: log_min_duration_statement"),
        ({**EVERY, "log_min_messages": "fatal"}, 1000, None),
        ({"log_executor_stats": "on", "log_min_messages": "panic"}, 1000, None),
        ({**EVERY, "log_min_messages": "warning, backend:fatal"}, 1000, None),
        ({**EVERY, "log_min_messages": "fatal, backend:log"}, 1000, "critical: log_min_duration_s"),
        ({**PLANS, "auto_explain.log_level": "notice"}, 1000, None),
        ({**NODES, "log_min_messages": "fatal"}, 10, "warning: auto_explain times every plan node"),
        ({"log_min_messages": "debug1"}, 10, "critical: output for debugging is on: log_min_mess"),
    ],
)
def test_what_is_written(settings: dict[str, str], per_s: float, expected: str | None) -> None:
    found = [f"{level}: {title}" for level, title, _ in findings(settings, per_s)]
    assert [title[: len(expected or "")] for title in found] == ([expected] if expected else [])


def test_remedies_say_what_the_role_needs_and_that_an_audit_may_be_a_duty() -> None:
    for settings in (EVERY, {"pgaudit.log": "all"}):
        facts = DoctorFacts(SERVER, {**DEFAULTS, **settings}, None, None, False, None)
        (found,) = check_logging.check(facts, 1000)
        assert all("pg_reload_conf()" in one.privilege for one in found.remedy)
        assert ("must be audited" in found.remedy[0].does) == ("pgaudit.log" in settings)


@pytest.mark.parametrize("settings", [{**SAMPLE}, {**PLANS, "auto_explain.sample_rate": "0.2"}])
def test_a_smaller_sample_is_no_finding_any_more(settings: dict[str, str]) -> None:
    ((_, _, remedy),) = findings(settings, 20_000)
    name, _, value = remedy[-1].partition(";")[0].removeprefix("ALTER SYSTEM SET ").split(" ")
    assert findings({**settings, name: value}, 20_000) == []
