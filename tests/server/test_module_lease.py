"""The lease of a trial: a client that falls silent leaves no trial behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest

from pgtare.postgres.cluster import Cluster
from pgtare.weighing.trials import Population, Trials
from tests.sessions import Connection, bare_session, eventually, one, setting
from tests.trials import MARKED, design_of, start, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

STATUS = "SELECT end_reason FROM pgtare.trial_status()"

OWNER = """
import sys, time
from pgtare.postgres.own_session import connect
from pgtare.weighing.trials import Population, Trials
from tests.trials import design_of
trials = Trials(connect(sys.argv[1]))
trials.start(design_of([{"work_mem": "1111kB"}] * 2), Population("postgres"), 600)
assert trials.renew(2)
for n in range(1000):
    assert trials.renew(float(sys.argv[2]))
    if n == 12:
        print("renewed", flush=True)
    time.sleep(0.2)
"""


@pytest.fixture
def operator(server: Cluster) -> Iterator[Connection]:
    with bare_session(server, application_name="pgtare") as connection:
        yield connection
        connection.execute("SELECT pgtare.trial_stop()")


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGSTOP, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_trial_ends_when_its_client_falls_silent(
    server: Cluster, operator: Connection, how: signal.Signals
) -> None:
    """The renewals go on for longer than the first lease: it runs as long as they come."""
    # a long one where it is not to expire: the owner may be kept from the processor for a while
    lease = "2" if how == signal.SIGSTOP else "60"
    command = [sys.executable, "-c", OWNER, server.dsn(), lease]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "renewed\n"
            with bare_session(server) as client:
                assert setting(client)[0] == "1111kB"
                os.kill(owner.pid, how)
                # no status is asked for: the session finds out by itself
                eventually(lambda: setting(client) == ("4MB", "default"))
            wanted = "lease expired" if how == signal.SIGSTOP else "owner gone"
            assert one(operator, STATUS) == wanted
        finally:
            owner.kill()


def test_a_trial_that_was_never_renewed_has_no_lease(server: Cluster) -> None:
    """Nor does it inherit that of the trial before."""
    with trial(server, MARKED) as running:
        assert running.trials.renew(0.1)
        eventually(lambda: not running.trials.status().running)
        assert running.trials.status().end_reason == "lease expired"
        assert not running.trials.renew(60)
        assert not running.trials.status().running
    with trial(server, MARKED) as running, bare_session(server) as client:
        time.sleep(0.3)
        for _ in range(5):
            client.execute("SELECT 1")
        running.observed(client, 5)
        assert running.trials.status().running


@pytest.mark.slow
def test_deadline_comes_before_a_longer_lease(server: Cluster) -> None:
    with trial(server, MARKED, seconds=4.0) as running:
        assert running.trials.renew(60)
        eventually(lambda: not running.trials.status().running)
        assert running.trials.status().end_reason == "deadline"


@pytest.mark.parametrize("seconds", ["0", "-1", "'NaN'", "'Infinity'", "604801"])
def test_unusable_lease_is_refused(operator: Connection, seconds: str) -> None:
    start(operator)
    with pytest.raises(psycopg.Error, match="a lease must be above 0 and at most 604800 seconds"):
        operator.execute(f"SELECT pgtare.trial_renew({seconds})".encode())


def test_nothing_to_renew(operator: Connection) -> None:
    operator.execute("SELECT pgtare.trial_stop()")
    assert Trials(operator).renew(5) is False


def test_a_client_that_hung_leaves_a_later_trial_alone(
    server: Cluster, operator: Connection
) -> None:
    with bare_session(server, application_name="pgtare") as hung:
        slow, later = Trials(hung), Trials(operator)
        slow.start(design_of(MARKED), Population("postgres"), 60)
        assert slow.renew(0.2)
        eventually(lambda: not slow.status().running)
        number = later.start(design_of(MARKED), Population("postgres"), 60)
        assert slow.renew(0.001) is False
        with pytest.raises(psycopg.Error, match="a later one has taken its place"):
            slow.drain()
        assert slow.stop() is False
        status = later.status()
        assert status.running
        assert status.trial == number
        assert later.renew(5)
        assert later.stop()
