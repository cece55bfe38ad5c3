"""The server module's assignment: the runs that the seed says, in every session."""

import contextlib
import itertools
import socket
from collections.abc import Iterator

import pytest

from pgtare.estimate.trial.design import Design, Runs
from pgtare.estimate.trial.observations import NO_BLOCK, NO_SLICE, Observations, UnitFlag
from pgtare.postgres.cluster import Cluster
from tests.assignment import first_arm, permuted_block, run_length
from tests.sessions import Connection, bare_session, eventually, one
from tests.trials import MARKER, Running, flagged, trial
from tests.wire_protocol import Wire, message, query_message

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Five arms in blocks of seven: the base three times.
ARMS = tuple({MARKER: f"{k}111kB"} for k in range(1, 6))
BLOCK = (0, 1, 2, 3, 4, 0, 0)
SHORT = Runs(2, 5)

#: Block, run in it, position in that, arm, and whether in a first run.
Place = tuple[int, int, int, int, bool]


def places(design: Design, backend: int, new: int | None) -> Iterator[Place]:
    """Of each unit of a session, by the seed; `new`: its number among those that are new."""
    if new is not None:
        for position in range(run_length(design, backend, NO_BLOCK)):
            yield NO_BLOCK, 0, position, first_arm(design, new), True
    for block in itertools.count():
        for run, arm in enumerate(permuted_block(design, backend, block)):
            for position in range(run_length(design, backend, block)):
                yield block, run, position, arm, False


def assert_as_drawn(running: Running, rows: Observations, new: int | None) -> None:
    backend = int(rows["backend"][0])
    names = ("block", "run", "position", "arm")
    where = [tuple(int(row[name]) for name in names) for row in rows]
    first = flagged(rows, UnitFlag.FIRST_RUN)
    found = [(*place, is_first) for place, is_first in zip(where, first, strict=True)]
    assert found == list(itertools.islice(places(running.design, backend, new), len(rows)))
    assert not any(flagged(rows, UnitFlag.UNDRAWN))


def burst(client: Connection, count: int) -> None:
    """So many transactions, of which the first is sent by itself."""
    client.execute("SELECT 1")
    with Wire(client) as wire:
        wire.send(*[query_message("SELECT 1")] * (count - 1))
        wire.read_until_ready(count - 1)


@pytest.mark.parametrize("seed", [1, (1 << 64) - 1, 0x8000000000000001])
def test_runs_of_new_sessions_are_those_of_the_seed(server: Cluster, seed: int) -> None:
    with trial(server, ARMS, block=BLOCK, seed=seed, runs=SHORT) as running:
        for number in range(3):
            with bare_session(server) as client:
                burst(client, 200)
                rows = running.observed(client, 200)
                assert list(rows["unit"]) == list(range(200))
                assert set(rows["backend"]) == {number}
                assert_as_drawn(running, rows, number)


def test_runs_of_older_sessions_are_those_of_the_seed(server: Cluster) -> None:
    """They begin with blocks, and take no place of a new one."""
    with (
        bare_session(server) as older,
        bare_session(server) as oldest,
        trial(server, ARMS, block=BLOCK, runs=SHORT) as running,
        bare_session(server) as new,
    ):
        for client in (older, oldest):
            burst(client, 201)
            assert_as_drawn(running, running.observed(client, 200), None)
        burst(new, 20)
        assert_as_drawn(running, running.observed(new, 20), 0)


@pytest.mark.parametrize("runs", [Runs(), Runs(1, 1), Runs(255, 255)])
def test_runs_are_as_long_as_asked(server: Cluster, runs: Runs) -> None:
    count = 3 * runs.longest + 10
    with trial(server, runs=runs) as running, bare_session(server) as client:
        burst(client, count)
        rows = running.observed(client, count)
        assert_as_drawn(running, rows, 0)
    starts = [i for i, row in enumerate(rows) if row["position"] == 0]
    assert all(runs.shortest <= b - a <= runs.longest for a, b in itertools.pairwise(starts))


def visit(cluster: Cluster, how: str) -> None:
    """A connection that sends no request, and ends."""
    with contextlib.suppress(OSError), bare_session(cluster) as client:
        if how == "cut off":
            with socket.socket(fileno=client.fileno()) as raw:
                raw.shutdown(socket.SHUT_RDWR)
                raw.detach()


@pytest.mark.parametrize("how", ["politely", "cut off"])
def test_arms_of_first_runs_are_shared_out_to_those_who_ask(server: Cluster, how: str) -> None:
    """Of each seven new sessions each arm has its share; who sends nothing takes no place."""
    with trial(server, ARMS, block=BLOCK) as running:
        arms = []
        for number in range(21):
            with bare_session(server) as client:
                visit(server, how)
                client.execute("SELECT 1")
                (row,) = running.observed(client, 1)
            assert row["arm"] == first_arm(running.design, number)
            arms.append(int(row["arm"]))
        eventually(lambda: running.trials.status().sessions_now == 0)
        assert len(running.drained()) == 21
    assert [sorted(arms[i : i + 7]) for i in (0, 7, 14)] == [sorted(BLOCK)] * 3


STARTUP = message(b"", b"\x00\x03\x00\x00user\0postgres\0database\0postgres\0\0")


def first_values(raw: socket.socket, ready: int) -> list[str]:
    """Of each row that comes until the server has been ready so often, the first value."""
    file = raw.makefile("rb")
    values = []
    while ready:
        kind, length = file.read(1), int.from_bytes(file.read(4))
        body = file.read(length - 4)
        ready -= kind == b"Z"
        if kind == b"D":
            values.append(body[6:].decode())
    return values


def test_requests_that_came_with_the_connection_have_no_arm(server: Cluster) -> None:
    """They were there before it could be drawn; the next, which comes by itself, begins the run."""
    show = query_message(f"SHOW {MARKER}")
    with (
        trial(server, ARMS, block=BLOCK, runs=SHORT) as running,
        socket.socket(socket.AF_UNIX) as raw,
    ):
        raw.settimeout(10)
        raw.connect(f"{server.socket_directory}/.s.PGSQL.{server.port}")
        raw.sendall(STARTUP + show + show)
        assert first_values(raw, 3) == ["4MB", "4MB"]
        seen = []
        for _ in range(20):
            raw.sendall(show)
            seen += first_values(raw, 1)
        eventually(lambda: len(running.drained()) == 22)
        rows = running.drained()
    assert flagged(rows, UnitFlag.UNDRAWN) == [True] * 2 + [False] * 20
    assert seen == [ARMS[arm][MARKER] for arm in rows["arm"][2:]]
    assert_as_drawn(running, rows[2:], 0)


def test_session_that_was_there_before_joins_after_its_next_transaction(server: Cluster) -> None:
    with bare_session(server) as client:
        client.execute("SELECT 1")
        with trial(server) as running:
            for _ in range(11):
                client.execute("SELECT 1")
            assert running.observed(client, 10)["unit"][0] == 0


def test_settings_in_force_are_those_of_the_recorded_arm(server: Cluster) -> None:
    """For a whole transaction; without slices no unit belongs to one."""
    with trial(server, ARMS, block=BLOCK) as running, bare_session(server) as client:
        seen = []
        for _ in range(50):
            client.execute("BEGIN")
            seen.append({one(client, f"SELECT current_setting('{MARKER}')") for _ in range(3)})
            client.execute("COMMIT")
        rows = running.observed(client, 50)
    assert seen == [{ARMS[arm][MARKER]} for arm in rows["arm"]]
    assert set(rows["slice"]) == {NO_SLICE}


def test_session_whose_name_does_not_match_stays_outside(server: Cluster) -> None:
    with trial(server, application="app*") as running:
        with bare_session(server, application_name="other") as outside:
            outside.execute("SELECT 1")
        with bare_session(server, application_name="app-1") as inside:
            inside.execute("SELECT 1")
            running.observed(inside, 1)
        assert len(running.drained()) == 1


def test_session_joins_under_a_new_name(server: Cluster) -> None:
    """Names of one length may get each other's memory: a comparison of pointers would miss that."""
    with trial(server, application="app-*") as running, bare_session(server) as client:
        for i in range(20):
            client.execute(f"SET application_name = 'opp-{i:02}'")
        client.execute("SET application_name = 'app-00'")
        client.execute("SELECT 1")
        running.observed(client, 1)


def test_sessions_of_another_role_or_database_stay_outside(server: Cluster) -> None:
    with bare_session(server) as admin:
        admin.execute("CREATE ROLE tester LOGIN")
        admin.execute("CREATE DATABASE elsewhere")
    try:
        with trial(server, role="tester") as running:
            for parameters in ({"user": "postgres"}, {"user": "tester", "dbname": "elsewhere"}):
                with bare_session(server, **parameters) as outside:
                    outside.execute("SELECT 1")
            with bare_session(server, user="tester") as inside:
                inside.execute("SELECT 1")
                running.observed(inside, 1)
            assert len(running.drained()) == 1
    finally:
        with bare_session(server) as admin:
            admin.execute("DROP DATABASE elsewhere WITH (FORCE)")
            admin.execute("DROP ROLE tester")


def test_participation_draws_a_share_of_the_sessions(server: Cluster) -> None:
    """Of 60 sessions at a half 12 to 48 take part, but for one run in 300,000."""
    with trial(server, participation=0.5, sessions=100) as running:
        for _ in range(60):
            with bare_session(server) as client:
                client.execute("SELECT 1")
        assert 12 <= running.trials.status().sessions <= 48
