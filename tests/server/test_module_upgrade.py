"""An extension made by an earlier version becomes the same as a new one by ALTER EXTENSION."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from pgtare.server.modules import ensure_for_wheel
from tests.commands import failed, in_process
from tests.sessions import Connection, bare_session, one
from tests.trials import trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(60)]

#: Scripts of earlier versions, which the modules leave out of an installation.
EARLIER = {"pgtare": "0.2", "wait_event_timing": "0.1", "sql_trace": "0.1"}
#: What the extension consists of, with rights and columns.
OBJECTS = """
SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid), p.proacl::text
  FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = '{0}'
UNION ALL
SELECT c.oid::regclass::text, pg_get_viewdef(c.oid), c.relacl::text
  FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = '{0}' ORDER BY 1
"""
#: The function of each module whose row has more columns than in the earlier version.
INFO = {
    "pgtare": "pgtare.info()",
    "wait_event_timing": "wait_event_timing_info()",
    "sql_trace": "sql_trace_info()",
}


@pytest.fixture
def earlier(wheel: Binaries) -> Iterator[None]:
    scripts = []
    for module, version in EARLIER.items():
        ensure_for_wheel(wheel, module)
        script = wheel.extension_dir / f"{module}--{version}.sql"
        script.write_text((Path(__file__).parent / script.name).read_text())
        scripts.append(script)
    yield
    for script in scripts:
        script.unlink()


def objects(client: Connection, module: str) -> list[tuple[object, ...]]:
    return client.execute(OBJECTS.format(module).encode()).fetchall()


@pytest.mark.usefixtures("earlier")
def test_earlier_extensions_are_upgraded(wheel: Binaries) -> None:
    with Cluster(wheel, preload=list(EARLIER)) as cluster, bare_session(cluster) as new:
        new.execute("CREATE DATABASE before")
        with bare_session(cluster, "before") as old:
            for module, version in EARLIER.items():
                new.execute(f"CREATE EXTENSION {module}".encode())
                old.execute(f"CREATE EXTENSION {module} VERSION '{version}'".encode())
                assert objects(old, module) != objects(new, module)
                # the new library fills the row of the earlier script
                old.execute(f"SELECT * FROM {INFO[module]}".encode()).fetchall()
                old.execute(f"ALTER EXTENSION {module} UPDATE".encode())
                assert objects(old, module) == objects(new, module)
                old.execute(f"SELECT * FROM {INFO[module]}".encode()).fetchall()
            query = "SELECT extversion FROM pg_extension WHERE extname = '{}'"
            for module in ("pgtare", "wait_event_timing"):
                version = one(new, f"SELECT version FROM {INFO[module]}")
                found = query.format(module)
                assert one(old, found) == one(new, found) == version
        with trial(cluster) as running, bare_session(cluster) as client:
            client.execute("SELECT 1")
            running.observed(client, 1)


@pytest.mark.usefixtures("earlier")
def test_an_earlier_extension_is_explained_in_one_sentence(wheel: Binaries) -> None:
    settings = {"wait_event_timing.capture": "stats"}
    with (
        Cluster(wheel, settings, preload=list(EARLIER)) as cluster,
        bare_session(cluster) as client,
    ):
        for module in EARLIER:
            client.execute(f"CREATE EXTENSION {module} VERSION '{EARLIER[module]}'".encode())
        dsn = ("--dsn", cluster.dsn())
        told = failed(in_process("waits", "top", *dsn, "--interval", "0.2s"), 2)
        assert "run ALTER EXTENSION wait_event_timing UPDATE; there" in told
        told = failed(in_process("weigh", "track_io_timing", *dsn, "-d", "2"), 2)
        assert "run ALTER EXTENSION pgtare UPDATE; there" in told
        for command in (("waits", "sessions"), ("trace", "status")):
            done = in_process(*command, *dsn)
            assert done.returncode == 0, done.stderr
        report = in_process("doctor", *dsn, "--interval", "1s").stdout
        assert "ALTER EXTENSION wait_event_timing UPDATE;" in report


@pytest.mark.parametrize("module", EARLIER)
def test_a_new_row_is_asked_for_by_a_name_that_an_earlier_library_lacks(
    wheel: Binaries, module: str
) -> None:
    """It would read past the end of its own row: an ALTER EXTENSION before the restart fails."""
    ensure_for_wheel(wheel, module)
    with Cluster(wheel, preload=[module]) as cluster, bare_session(cluster) as client:
        client.execute(f"CREATE EXTENSION {module}".encode())
        name = INFO[module].removesuffix("()")
        symbol = one(client, f"SELECT prosrc FROM pg_proc WHERE oid = '{name}'::regproc")
        assert symbol not in ("pgtare_info", name)
        script = (Path(__file__).parent / f"{module}--{EARLIER[module]}.sql").read_text()
        assert symbol not in script


def test_what_comes_after_a_replacement_is_said(wheel: Binaries) -> None:
    ensure_for_wheel(wheel)
    control = wheel.extension_dir / "pgtare.control"
    control.write_text(control.read_text() + "# of an earlier version\n")
    where = ("--module", "pgtare", "--pg-config", wheel.pg_config)
    done = in_process("module", "install", "--force", *where)
    assert done.returncode == 0, done.stderr
    assert "run ALTER EXTENSION pgtare UPDATE;" in done.stdout
    assert "CREATE EXTENSION" not in done.stdout
