"""What is decided, and refused, before a trial."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgtare.errors import UsageError
from pgtare.weighing.instruments.arms import parse_arm
from pgtare.weighing.instruments.catalogue import load_catalogue
from pgtare.weighing.weigh.limit import with_together
from pgtare.weighing.weigh.plan import refuse_unsafe
from pgtare.weighing.weigh.request import Request


@pytest.mark.parametrize(
    "setting",
    [
        "log_statement=mod",
        "log_duration=t",
        "log_min_duration_statement=0ms",
        "log_min_duration_sample=0",
        "log_transaction_sample_rate=1",
        "log_executor_stats=on",
        "debug_print_plan=on",
        "log_min_messages=debug1",
        "pgaudit.log='read, write'",
    ],
)
def test_an_arm_that_floods_the_log_has_to_be_allowed(setting: str) -> None:
    request = Request((parse_arm(f"x: {setting}"),), dsn="dbname=app")
    name = setting.partition("=")[0]
    with pytest.raises(UsageError, match=rf"floods the log.*: add --allow {name} if"):
        refuse_unsafe(request)
    refuse_unsafe(replace(request, allow=frozenset({name})))


@pytest.mark.parametrize(
    "setting",
    [
        "log_statement=ddl",
        "log_duration=off",
        "log_min_duration_statement=250ms",
        "log_min_duration_sample=-1",
        "log_transaction_sample_rate=0",
        "log_transaction_sample_rate=0.0",
        "debug_print_plan=off",
        "log_min_messages=info",
        "pgaudit.log=none",
        "log_lock_waits=on",
    ],
)
def test_one_that_logs_little_is_weighed(setting: str) -> None:
    refuse_unsafe(Request((parse_arm(f"x: {setting}"),), dsn="dbname=app"))


def test_all_together_are_allowed_if_each_is() -> None:
    """Whose settings are those of all: pgaudit.log among them."""
    entries = load_catalogue()
    names = ("pgaudit", "pg_stat_statements")
    chosen = with_together([entries.choose(name) for name in names])
    request = Request(chosen, dsn="dbname=app")
    with pytest.raises(UsageError, match="add --allow pgaudit if"):
        refuse_unsafe(request)
    refuse_unsafe(replace(request, allow=frozenset({"pgaudit"})))
