"""What holds up replay on a standby, and the sessions behind it, is named."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from bench.truth.standby import standby

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.doctor_servers import doctor
from tests.sessions import eventually, one

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

STARTUP = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'"
REPLAYED = "SELECT count(*) FROM pg_class WHERE relname = 'fares'"
ASLEEP = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.mark.slow
def test_the_query_that_holds_up_replay_is_the_root(wheel: Binaries) -> None:
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(Cluster(wheel))
        ours = stack.enter_context(primary.connect(autocommit=True))
        other = stack.enter_context(standby(primary, {"max_standby_streaming_delay": "-1"}))

        def session(name: str) -> psycopg.Connection[Any]:
            made = psycopg.connect(other.dsn, autocommit=True, application_name=name)
            stack.callback(made.close)
            return made

        ours.execute("CREATE TABLE fares AS SELECT 1 AS fare")
        observer, report = session("observer"), session("season-report")
        shops = [session("shop") for _ in range(2)]
        eventually(lambda: one(observer, REPLAYED) == 1)
        pool = stack.enter_context(ThreadPoolExecutor(3))
        for made in (report, *shops):
            stack.callback(made.cancel_safe)
        pool.submit(report.execute, "SELECT fare, pg_sleep(90) FROM fares")
        eventually(lambda: one(observer, ASLEEP) == 1)  # its snapshot has the row
        ours.execute("TRUNCATE fares")
        eventually(lambda: one(observer, WAITING) == 1)  # the startup process itself
        for made in shops:
            pool.submit(made.execute, "SELECT fare FROM fares")
        eventually(lambda: one(observer, WAITING) == 3)
        found = doctor(other.dsn)
        startup, pid = one(observer, STARTUP), report.info.backend_pid
    (finding,) = [each for each in found["findings"] if each["kind"] == "lock"]
    assert finding["root"]["application"] == "season-report"
    assert finding["root"]["pid"] == pid
    commands = [remedy["command"] for remedy in finding["remedy"]]
    assert commands[0].startswith(f"SELECT pg_cancel_backend({pid})")
    assert not any(str(startup) in command for command in commands)
    assert "max_standby_streaming_delay" in finding["remedy"][-1]["does"]
