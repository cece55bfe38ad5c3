"""Events that have one name, as a server may give to locks of modules that it does not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.keeping.agent.rows import Batch
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.agent_rows import look, new_looks
from tests.servers import CAPTURING
from tests.sessions import Connection, rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MODULES = Path(__file__).parent / "modules"
WAITED = (
    "SELECT waits, total_ns >= 1000000 * waits, processes FROM {} WHERE wait_event_type = 'LWLock' "
    "AND wait_event = any(ARRAY['extension', '???']) AND backend_type = 'client backend'"
)


@pytest.fixture(
    scope="module", params=["wheel", pytest.param("debian15", marks=pytest.mark.debian)]
)
def namesakes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A server that captures waits, and has the module whose locks have one name."""
    binaries: Binaries = request.getfixturevalue(request.param)
    ours = loadable(binaries, "wait_event_timing")
    theirs = loadable(binaries, "namesakes", MODULES)
    with Cluster(binaries, dict(CAPTURING), preload=[ours.library]) as cluster:
        with session(cluster) as connection:
            connection.execute(ours.create_sql.encode())
            connection.execute(theirs.create_sql.encode())
        yield cluster


@pytest.fixture
def connection(namesakes: Cluster) -> Iterator[Connection]:
    with session(namesakes) as connection:
        connection.execute("SET search_path = public, wait_event_timing, namesakes")
        yield connection


def wait(connection: Connection, *locks: int) -> None:
    """Wait a millisecond for each of these locks."""
    for number in locks:
        connection.execute("SELECT namesakes_wait(%s, 1000)", [number])


def calls(batch: Batch) -> int:
    """Waits for those locks in the rows of a look."""
    found = [row for part in batch.rows.get("waits", []) for row in part.to_pylist()]
    return sum(row["calls"] for row in found if row["event"] in ("extension", "???"))


@pytest.mark.parametrize("name", ["moment", "system"])
def test_events_of_one_name_are_one_row(connection: Connection, name: str) -> None:
    source = f"wait_event_timing_{name}()"
    before = rows(connection, WAITED.format(source))
    wait(connection, 1, 2, 2, 3)
    ((waits, long, processes),) = rows(connection, WAITED.format(source))
    assert waits - sum(row[0] for row in before) == 4
    assert long
    assert processes >= 1


def test_no_key_is_given_twice(connection: Connection) -> None:
    wait(connection, 1, 2)
    query = "SELECT backend_type, wait_event_type, wait_event, idle FROM wait_event_timing_moment()"
    assert max(Counter(rows(connection, query)).values()) == 1


def test_the_agent_goes_on(namesakes: Cluster, connection: Connection) -> None:
    looks = new_looks()
    wait(connection, 1, 2)
    with ServerSession(namesakes.dsn()) as opened:
        looks.begin(opened)
        look(looks, opened)
        for locks in ((1, 2, 2), (1,), (2, 3, 4, 4)):
            wait(connection, *locks)
            assert calls(look(looks, opened)) == len(locks)
