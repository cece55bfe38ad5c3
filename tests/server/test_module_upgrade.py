"""An extension made by an earlier version becomes the same as a new one by ALTER EXTENSION."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from pgtare.server.modules import ensure_for_wheel

from .module_tools import Session, one, session, trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(60)]

EARLIER = Path(__file__).parent / "pgtare--0.2.sql"
#: What the extension consists of, with rights and comments.
OBJECTS = """
SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid), p.proacl::text
  FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pgtare' ORDER BY 1
"""


@pytest.fixture
def earlier(wheel: Binaries) -> Iterator[str]:
    """The version whose script can be used, which the module leaves out of an installation."""
    ensure_for_wheel(wheel)
    script = wheel.extension_dir / EARLIER.name
    script.write_text(EARLIER.read_text())
    yield "0.2"
    script.unlink()


def objects(client: Session) -> list[tuple[object, ...]]:
    return client.execute(OBJECTS.encode()).fetchall()


def test_earlier_extension_is_upgraded(wheel: Binaries, earlier: str) -> None:
    with Cluster(wheel, preload=["pgtare"]) as cluster, session(cluster) as new:
        new.execute("CREATE DATABASE before")
        new.execute("CREATE EXTENSION pgtare")
        with session(cluster, "before") as old:
            old.execute(f"CREATE EXTENSION pgtare VERSION '{earlier}'".encode())
            assert objects(old) != objects(new)
            old.execute("ALTER EXTENSION pgtare UPDATE")
            assert objects(old) == objects(new)
            query = "SELECT extversion FROM pg_extension WHERE extname = 'pgtare'"
            version = one(new, "SELECT version FROM pgtare.info()")
            assert one(old, query) == one(new, query) == version
        with trial(cluster) as running, session(cluster) as client:
            client.execute("SELECT 1")
            running.observed(client, 1)
