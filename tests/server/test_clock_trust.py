"""Which clock the modules take, as the kernel trusts the processor's counter or gives it up."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value
from tests.commands import pgtare
from tests.own_mounts import kernel_clock
from tests.servers import SESSIONS_LOAD_MODULES, with_everything
from tests.sessions import one, rows, session
from tests.trace_records import traced
from tests.waits import waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

KernelClock = Callable[..., None]
SETTINGS = ("wait_event_timing.clock", "sql_trace.clock")
SLEEP_NS = 200_000_000


@pytest.fixture
def kernel(open_directory: Path) -> Iterator[KernelClock]:
    with kernel_clock(open_directory) as name:
        yield name


def said(cluster: Cluster) -> list[tuple[str, str]]:
    """The clock of each module and its reason."""
    with session(cluster) as connection:
        return [
            rows(connection, query)[0]
            for query in (
                "SELECT clock, clock_reason FROM pgtare.info()",
                "SELECT clock, clock_reason FROM wait_event_timing_info()",
                "SELECT current_setting('sql_trace.clock'), clock_reason FROM sql_trace_info()",
            )
        ]


def in_a_worker(cluster: Cluster) -> list[str]:
    """The clocks' settings as a parallel worker of a new session has them."""
    forced = "debug_parallel_query" if cluster.binaries.major >= 16 else "force_parallel_mode"
    with session(cluster) as connection:
        connection.execute(f"SET {forced} = on".encode())
        shown = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
        query = f"SELECT {shown} FROM pg_class LIMIT 1"
        plan = rows(connection, f"EXPLAIN (ANALYZE, COSTS off) {query}")
        assert any("Workers Launched: 1" in line for (line,) in plan), plan
        return list(rows(connection, query)[0])


@pytest.mark.slow
def test_counter_that_the_kernel_does_not_trust(binaries: Binaries, kernel: KernelClock) -> None:
    """It is no clock then; where the kernel trusts it, it is."""
    with with_everything(binaries, {}) as cluster:
        assert said(cluster) == [("tsc", "the kernel reads the time by tsc")] * 3
        for current, available in (
            ("hpet", "hpet acpi_pm"),
            ("hpet", "tsc hpet"),
            ("kvm-clock", "kvm-clock"),
            ("", ""),
        ):
            kernel(current, available)
            cluster.restart()
            reason = (
                f"the kernel reads the time by {current}, not by the processor's counter"
                if current
                else "the kernel does not say by which clock it reads the time"
            )
            assert said(cluster) == [("monotonic", reason)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("explicit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_parallel_queries_go_on_when_the_counter_is_given_up(
    binaries: Binaries, kernel: KernelClock, explicit: bool
) -> None:
    """A worker takes over its leader's settings, whatever the clock is and was."""
    chosen = dict.fromkeys(SETTINGS, "tsc") if explicit else {}
    with with_everything(binaries, chosen) as cluster:
        assert in_a_worker(cluster) == ["tsc", "tsc"]
        kernel("hpet", "hpet acpi_pm")
        assert in_a_worker(cluster) == ["monotonic" if explicit else "tsc"] * 2
        cluster.configure(dict.fromkeys(SETTINGS, "monotonic_coarse"))
        cluster.reload()
        assert in_a_worker(cluster) == ["monotonic_coarse"] * 2
        # the default is no longer the counter
        cluster.configure(dict.fromkeys(SETTINGS))
        cluster.reload()
        assert in_a_worker(cluster) == ["monotonic"] * 2


@pytest.mark.slow
def test_a_counter_given_up_is_still_said_to_be_in_use(
    wheel: Binaries, kernel: KernelClock
) -> None:
    with with_everything(wheel, {"wait_event_timing.capture": "stats"}) as cluster:
        kernel("hpet", "hpet acpi_pm")
        weighing, *others = said(cluster)
        reason = "the kernel reads the time by hpet, not by the processor's counter"
        assert weighing == ("monotonic", reason)  # which is decided for each trial
        given_up = f"chosen when the server started, or later, but no longer trusted: {reason}"
        assert others == [("tsc", given_up)] * 2
        done = pgtare("waits", "top", "--interval", "0.2s", "--dsn", cluster.dsn())
        assert "note: times may be wrong, as the clock that waits are timed by" in done.stdout
        done = pgtare("waits", "sessions", "--dsn", cluster.dsn())
        assert f"{given_up}; take another with ALTER SYSTEM" in done.stderr
        done = pgtare("doctor", "--interval", "1s", "--json", "--dsn", cluster.dsn())
        (found,) = [one for one in json.loads(done.stdout)["findings"] if one["kind"] == "clock"]
        assert given_up in found["evidence"][0]
        with session(cluster) as connection:
            for name in SETTINGS:
                with pytest.raises(psycopg.errors.InvalidParameterValue):
                    connection.execute(f"SET {name} = tscp".encode())


def test_a_counter_trusted_later_has_its_own_rate(wheel: Binaries, kernel: KernelClock) -> None:
    """The kernel read the time by another clock when the server started."""
    kernel("hpet", "tsc hpet")
    with (
        with_everything(wheel, {"wait_event_timing.capture": "stats"}) as cluster,
        session(cluster) as observer,
        session(cluster) as client,
    ):
        assert in_a_worker(cluster) == ["monotonic", "monotonic"]
        kernel("tsc")
        assert said(cluster)[0][0] == "tsc"
        for name in SETTINGS:
            client.execute(f"SET {name} = tsc".encode())
        client.execute("SET sql_trace.rowsource_sampling = 1")
        began = time.monotonic_ns()
        trace = traced(observer, client, f"SELECT pg_sleep({SLEEP_NS / 1e9})", level=1)
        most = time.monotonic_ns() - began
        (sources,) = trace.of("rowsources")
        for ns in (
            waits(observer, "PgSleep", client.info.backend_pid)[2] * 1e6,
            max(record.time for record in trace.records) - trace.of("request")[0].start,
            sources.entries[0]["time"],
        ):
            assert SLEEP_NS * 0.999 < ns < most


@SESSIONS_LOAD_MODULES
def test_sessions_that_choose_the_clock_themselves_share_its_rate(
    wheel: Binaries, kernel: KernelClock
) -> None:
    """The first that loads the module measures it, whatever the kernel reads then."""
    module = loadable(wheel, "wait_event_timing")
    settings: dict[str, Value] = {
        "session_preload_libraries": module.library,
        "wait_event_timing.capture": "stats",
    }
    kernel("hpet", "tsc hpet")
    with Cluster(wheel, settings) as cluster:
        with cluster.connect() as first:
            first.execute(module.create_sql.encode())
            assert one(first, "SHOW wait_event_timing.clock") == "monotonic"
        kernel("tsc")
        with session(cluster) as second:
            assert one(second, "SHOW wait_event_timing.clock") == "tsc"
            began = time.monotonic_ns()
            second.execute(f"SELECT pg_sleep({SLEEP_NS / 1e9})".encode())
            most = time.monotonic_ns() - began
            counted = waits(second, "PgSleep", second.info.backend_pid)[2] * 1e6
    assert SLEEP_NS * 0.999 < counted < most
