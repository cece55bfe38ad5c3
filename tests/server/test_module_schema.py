"""What somebody else has put into pgtare's schema gains him nothing."""

from collections.abc import Iterator

import psycopg
import pytest

from pgtare.errors import UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.own_session import connect
from pgtare.weighing.trials import Trials
from tests.commands import pgtare
from tests.sessions import bare_session
from tests.trials import trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

#: Whoever runs it makes its author a superuser.
_BODY = "BEGIN ALTER ROLE mallory SUPERUSER; RETURN NULL; END"
_TRAPS = (
    "info()",
    "trial_status()",
    "trial_stop()",
    "trial_renew(integer)",
    "trial_start(text[], text[], bigint[], int[], numeric, numeric)",
    "trial_drain(bigint)",
)


@pytest.fixture
def shared(binaries: Binaries) -> Iterator[Cluster]:
    """A server that preloads the module; mallory may make schemas in its database."""
    with Cluster(binaries, preload=[loadable(binaries).library]) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE ROLE mallory LOGIN")
            connection.execute("GRANT CREATE ON DATABASE postgres TO mallory")
        yield cluster


def plant(connection: psycopg.Connection[tuple[object, ...]], *traps: str) -> None:
    for trap in traps:
        connection.execute(
            f"CREATE FUNCTION pgtare.{trap} RETURNS text LANGUAGE plpgsql AS '{_BODY}'".encode()
        )


def is_superuser(cluster: Cluster) -> bool:
    with cluster.connect() as connection:
        query = "SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'"
        row = connection.execute(query).fetchone()
    return bool(row and row[0])


def test_schema_of_somebody_else(shared: Cluster) -> None:
    """A superuser who weighs in it calls nothing that is there; no extension is made in it."""
    with bare_session(shared, user="mallory") as mallory:
        mallory.execute("CREATE SCHEMA pgtare")
        mallory.execute("GRANT ALL ON SCHEMA pgtare TO PUBLIC")
        plant(mallory, *_TRAPS)
    for command in (
        ("weigh", "track_io_timing", "--dsn", shared.dsn(), "--duration", "1"),
        ("status", "--dsn", shared.dsn()),
        ("stop", "--dsn", shared.dsn()),
    ):
        done = pgtare(*command)
        assert not is_superuser(shared)
        assert done.returncode == 2
        assert "was not made by a superuser" in done.stderr
    with connect(shared.dsn()) as conn, pytest.raises(UsageError, match="not made by a superuser"):
        Trials(conn)
    if shared.binaries.origin != "wheel":
        return  # there is no extension to be made
    with bare_session(shared, user="mallory") as mallory:
        mallory.execute("DROP FUNCTION pgtare.info(), pgtare.trial_status(), pgtare.trial_stop()")
    with shared.connect() as connection, pytest.raises(psycopg.Error, match="is there already"):
        connection.execute("CREATE EXTENSION pgtare")
    assert not is_superuser(shared)


@pytest.mark.parametrize("way", ["grant", "function"])
def test_schema_in_which_somebody_else_makes_functions(wheel: Binaries, way: str) -> None:
    with Cluster(wheel, preload=[loadable(wheel).library]) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE ROLE mallory LOGIN")
            connection.execute("CREATE SCHEMA pgtare")
            connection.execute("GRANT CREATE, USAGE ON SCHEMA pgtare TO mallory")
        if way == "function":
            with bare_session(cluster, user="mallory") as mallory:
                plant(mallory, *_TRAPS[-2:])
        with cluster.connect() as connection:
            if way == "function":
                connection.execute("REVOKE CREATE ON SCHEMA pgtare FROM mallory")
            with pytest.raises(psycopg.Error, match="is there already"):
                connection.execute("CREATE EXTENSION pgtare")
            connection.execute("DROP SCHEMA pgtare CASCADE")
            connection.execute("CREATE SCHEMA pgtare")  # as a dump has it
            connection.execute("CREATE EXTENSION pgtare")
        with trial(cluster):
            pass
        assert not is_superuser(cluster)
