"""Which clock the modules take, as the kernel trusts the processor's counter or gives it up."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.own_mounts import kernel_clock
from tests.servers import with_everything
from tests.sessions import rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

KernelClock = Callable[..., None]


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
