"""The server module's assignment: the permuted blocks that the seed says, in every session."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from pgtare.estimate.trial.design import Runs
from pgtare.estimate.trial.observations import NO_SLICE, Observations, UnitFlag
from pgtare.server.cluster import Cluster
from tests.assignment import RUNS_AFTER, filler, permuted_block, run_before, run_drawn
from tests.sessions import bare_session, one
from tests.trials import MARKER, NO_BLOCK, Running, flagged, trial
from tests.wire_protocol import Wire, query_message

pytestmark = [pytest.mark.server, pytest.mark.timeout(60)]

#: Five arms in blocks of seven: the base three times.
ARMS = tuple({MARKER: f"{k}111kB"} for k in range(1, 6))
BLOCK = (0, 1, 2, 3, 4, 0, 0)


def assert_as_drawn(running: Running, rows: Observations) -> None:
    """Every arm as the seed says, and a filler before each block that should have one."""
    next_block = {int(backend): 0 for backend in rows["backend"]}
    for row in rows:
        backend, block = int(row["backend"]), int(row["block"])
        if row["unit"] == 0:
            assert block == NO_BLOCK
            assert permuted_block(running.design, backend, NO_BLOCK)[0] == row["arm"]
        elif block == NO_BLOCK:
            assert filler(running.design, backend, next_block[backend]) == row["arm"]
        else:
            assert permuted_block(running.design, backend, block)[row["position"]] == row["arm"]
            next_block[backend] = block + 1
    blocks = rows["block"][rows["block"] != NO_BLOCK]
    expected = [filler(running.design, int(rows["backend"][0]), int(b)) for b in np.unique(blocks)]
    drawn = np.count_nonzero((rows["block"] == NO_BLOCK) & (rows["unit"] > 0))
    # the last block's filler may be drawn, and its first unit not yet
    assert 0 <= drawn - sum(arm is not None for arm in expected) <= 1


@pytest.mark.parametrize("seed", [1, (1 << 64) - 1, 0x8000000000000001])
def test_arms_are_those_of_the_seed(server: Cluster, seed: int) -> None:
    with trial(server, ARMS, block=BLOCK, seed=seed) as running:
        for _ in range(3):
            with bare_session(server) as client, Wire(client) as wire:
                wire.send(*[query_message("SELECT 1")] * 200)
                wire.read_until_ready(200)
                rows = running.observed(client, 200)
                assert list(rows["unit"]) == list(range(200))
                assert flagged(rows, UnitFlag.UNBLOCKED) == list(rows["block"] == NO_BLOCK)
                assert_as_drawn(running, rows)
                blocked = rows[rows["block"] != NO_BLOCK][:70]
                for block in range(10):
                    assert sorted(blocked["arm"][blocked["block"] == block]) == sorted(BLOCK)
                assert list(blocked["position"]) == list(range(7)) * 10
        assert len(np.unique(running.drained()["backend"])) == 3


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


def test_closing_a_trial_lets_sessions_finish_their_blocks(server: Cluster) -> None:
    with trial(server, ARMS, block=BLOCK) as running, bare_session(server) as client:
        for _ in range(10):
            client.execute("SELECT 1")
        with server.connect() as operator:
            operator.execute("SELECT pgtare.trial_close()")
        with bare_session(server) as late:
            late.execute("SELECT 1")
            late_pid = late.info.backend_pid
        for _ in range(30):
            client.execute("SELECT 1")
        rows = running.drained()
        own = rows[rows["pid"] == client.info.backend_pid]
    assert late_pid not in rows["pid"]
    in_blocks = own[own["block"] != NO_BLOCK]
    assert len(in_blocks) in (len(BLOCK), 2 * len(BLOCK))
    assert in_blocks["position"][-1] == len(BLOCK) - 1


#: A pair before every block but those that a session begins with.
RUNS = Runs(turns=(1, 1, 2, 3, 4), every=1, shortest=3, longest=9)


def in_turn(running: Running, rows: Observations) -> Iterator[tuple[int, int, int, bool]]:
    """Arm, block or run, position, and whether in a run, of each unit after the first, by seed."""
    design, backend = running.design, int(rows["backend"][0])
    run = 0
    for block in itertools.count():
        if run_before(design, backend, block):
            for number in (run, run + 1):
                arm, length = run_drawn(design, backend, number)
                yield from ((arm, number, position, True) for position in range(length))
            run += 2
        if (arm := filler(design, backend, block)) is not None:
            yield arm, NO_BLOCK, 0, False
        for position, arm in enumerate(permuted_block(design, backend, block)):
            yield arm, block, position, False


@pytest.mark.parametrize("every", [1, 4])
def test_runs_are_those_of_the_seed(server: Cluster, every: int) -> None:
    runs = dataclasses.replace(RUNS, every=every)
    with trial(server, ARMS, block=BLOCK, runs=runs, seed=(1 << 64) - 3) as running:
        for _ in range(2):
            with bare_session(server) as client, Wire(client) as wire:
                wire.send(*[query_message("SELECT 1")] * 700)
                wire.read_until_ready(700)
                rows = running.observed(client, 700)[1:]
            expected = itertools.islice(in_turn(running, rows), len(rows))
            in_run = rows["flags"] & UnitFlag.RUN != 0
            assert np.count_nonzero(in_run) > 100
            assert np.all(rows["flags"][in_run] & UnitFlag.UNBLOCKED != 0)
            found = zip(rows["arm"], rows["block"], rows["position"], in_run, strict=True)
            assert list(found) == list(expected)


def test_a_session_begins_with_blocks(server: Cluster) -> None:
    with trial(server, ARMS, block=BLOCK, runs=RUNS) as running, bare_session(server) as client:
        for _ in range(RUNS_AFTER + 20):
            client.execute("SELECT 1")
        rows = running.observed(client, RUNS_AFTER + 20)
    first = int(np.argmax(rows["flags"] & UnitFlag.RUN != 0))
    assert np.count_nonzero(rows["block"][:first] != NO_BLOCK) == -(-RUNS_AFTER // 7) * 7


def test_closing_a_trial_lets_sessions_finish_their_runs(server: Cluster) -> None:
    runs = Runs(turns=(1,), every=1, shortest=20, longest=20)
    with trial(server, runs=runs) as running, bare_session(server) as client:
        while True:
            client.execute("SELECT 1")
            rows = running.drained()
            if len(rows) and rows["flags"][-1] & UnitFlag.RUN:
                break
        with server.connect() as operator:
            operator.execute("SELECT pgtare.trial_close()")
        for _ in range(60):
            client.execute("SELECT 1")
        rows = running.drained()
        own = rows[rows["pid"] == client.info.backend_pid]
    ran = own[own["flags"] & UnitFlag.RUN != 0]
    assert list(ran["block"]) == [0] * 20 + [1] * 20
    assert set(ran["arm"]) == {0, 1}
    assert np.array_equal(own[-40:], ran)
