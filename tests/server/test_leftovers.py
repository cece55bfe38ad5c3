"""What `pgtare uninstall` finds on a server, and the statements that take it away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.errors import PgtareError, UsageError
from pgtare.postgres import leftovers, modules
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load.database import mark
from pgtare.postgres.module_usage import uses_on_server
from tests.commands import in_process
from tests.installation_copies import copy_without_modules

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

#: Names that need their quotes.
ROLE, DATABASE = 'it\'s "Ann"', 'a "shop"; DROP'
AS_SQL = '"it\'s ""Ann"""', '"a ""shop""; DROP"'


@pytest.fixture
def cluster(wheel: Binaries, own_place: Path) -> Iterator[Cluster]:
    with Cluster(wheel) as running:
        yield running


def run(cluster: Cluster, *statements: str) -> None:
    with cluster.connect(autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_settings_of_roles_and_databases_are_listed_and_taken_back(cluster: Cluster) -> None:
    role, database = AS_SQL
    both = f"ALTER ROLE {role} IN DATABASE {database}"
    preload = '"session_preload_libraries"'
    run(
        cluster,
        f"CREATE ROLE {role}",
        f"CREATE DATABASE {database}",
        f"ALTER ROLE {role} SET pgtare.enabled = 'a secret'",
        f"ALTER ROLE {role} SET session_preload_libraries = '/opt/a,b/x', '$libdir/pgtare', 'c'",
        f"ALTER ROLE {role} SET work_mem = '5MB'",
        f"ALTER DATABASE {database} SET sql_trace.enabled = on",
        f"ALTER DATABASE {database} SET session_preload_libraries = 'auto_explain'",
        f"{both} SET wait_event_timing.capture = 'stats'",
        f"{both} SET local_preload_libraries = 'sql_trace.so'",
        "ALTER ROLE ALL SET pgtare.ring_memory = 8",
    )
    undone = {
        f"{what} of a role or database: {statement};"
        for what, statement in {
            "setting pgtare.enabled": f'ALTER ROLE {role} RESET "pgtare"."enabled"',
            "pgtare's libraries in session_preload_libraries (/opt/a,b/x, c stay)": (
                f"ALTER ROLE {role} SET {preload} = '/opt/a,b/x', 'c'"
            ),
            "setting sql_trace.enabled": (f'ALTER DATABASE {database} RESET "sql_trace"."enabled"'),
            "setting wait_event_timing.capture": f'{both} RESET "wait_event_timing"."capture"',
            "pgtare's libraries in local_preload_libraries": (
                f'{both} RESET "local_preload_libraries"'
            ),
            "setting pgtare.ring_memory": 'ALTER ROLE ALL RESET "pgtare"."ring_memory"',
        }.items()
    }
    assert {each.what for each in leftovers.on_server(cluster.dsn())} == undone
    listed = in_process("uninstall", "--dsn", cluster.dsn()).stdout
    assert undone < set(listed.splitlines())
    assert "nothing of pgtare is left here" not in listed
    for each in leftovers.on_server(cluster.dsn()):
        assert each.remove is not None
        each.remove()
    assert list(leftovers.on_server(cluster.dsn())) == []
    with cluster.connect() as connection:
        left = connection.execute(
            "SELECT c FROM pg_db_role_setting, unnest(setconfig) c ORDER BY 1"
        ).fetchall()
    assert left == [
        ('session_preload_libraries="/opt/a,b/x", c',),
        ("session_preload_libraries=auto_explain",),
        ("work_mem=5MB",),
    ]


@pytest.mark.slow
def test_databases_of_loads_are_dropped_unless_one_runs(cluster: Cluster) -> None:
    """As a kill -9 of `pgtare weigh --dsn --load` leaves them."""
    run(
        cluster,
        "CREATE DATABASE pgtare_bench_ours",
        "CREATE DATABASE pgtare_bench_theirs",
        f"COMMENT ON DATABASE pgtare_bench_ours IS '{mark('pgtare_bench_ours')}'",
        # of a copy or a renamed one
        f"COMMENT ON DATABASE pgtare_bench_theirs IS '{mark('pgtare_bench_ours')}'",
    )
    (found,) = leftovers.on_server(cluster.dsn())
    assert found.what == "database pgtare_bench_ours of a load"
    assert found.remove is not None
    with cluster.connect("pgtare_bench_ours"), pytest.raises(UsageError, match="other users"):
        found.remove()
    found.remove()
    assert list(leftovers.on_server(cluster.dsn())) == []


def test_a_name_in_another_encoding_is_listed_and_left(cluster: Cluster) -> None:
    run(
        cluster,
        'CREATE ROLE "Zoë"',
        'ALTER ROLE "Zoë" SET pgtare.enabled = off',
        "CREATE DATABASE ascii ENCODING SQL_ASCII TEMPLATE template0 LOCALE 'C'",
    )
    (found,) = leftovers.on_server(cluster.dsn("ascii"))
    assert 'ALTER ROLE "Zoë" RESET "pgtare"."enabled";' in found.what
    assert found.remove is not None
    with pytest.raises(UsageError, match="give --dsn another database"):
        found.remove()


def test_a_list_of_libraries_keeps_what_is_not_ours(cluster: Cluster) -> None:
    """A comma in a path is none of the list: split there, the server would not start."""
    run(cluster, "ALTER SYSTEM SET shared_preload_libraries = '/opt/a,b/x', 'pgtare'")
    (found,) = leftovers.on_server(cluster.dsn())
    assert found.remove is not None
    found.remove()
    settings = (cluster.data_directory / "postgresql.auto.conf").read_text()
    assert "shared_preload_libraries = '\"/opt/a,b/x\"'" in settings


def test_names_in_configuration_files_may_have_capitals(cluster: Cluster, wheel: Binaries) -> None:
    """A server that has not read them yet takes them when it starts."""
    conf = cluster.data_directory / "postgresql.conf"
    with conf.open("a") as file:
        file.write("Shared_Preload_Libraries = 'pgtare'\nSQL_Trace.Enabled = on\n")
    found = [each.what for each in leftovers.on_server(cluster.dsn())]
    assert [what.partition(" in ")[0] for what in found] == [
        "shared_preload_libraries",
        "sql_trace.enabled",
    ]
    uses = uses_on_server(cluster.dsn(), "pgtare", wheel.pkglibdir)
    assert uses == [f"shared_preload_libraries in {conf}"]


@pytest.mark.slow
def test_an_extension_in_use_is_left_after_seconds(
    wheel: Binaries, own_place: Path, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that goes on may hold its views for days."""
    monkeypatch.setattr(leftovers, "_SHORT_WAIT", "lock_timeout = '50ms'")
    copied = copy_without_modules(wheel, open_directory / "postgres")
    (copied.extension_dir / "pgtare.control").write_text("default_version = '1'\n")
    (copied.extension_dir / "pgtare--1.sql").write_text("CREATE VIEW pgtare_view AS SELECT 1;\n")
    with Cluster(copied) as cluster:
        run(cluster, "CREATE EXTENSION pgtare")
        (found,) = leftovers.on_server(cluster.dsn())
        assert found.remove is not None
        with cluster.connect() as reader:
            reader.execute("SET idle_in_transaction_session_timeout = '30s'; BEGIN")
            reader.execute("TABLE pgtare_view")
            with pytest.raises(UsageError, match="lock timeout"):
                found.remove()
        found.remove()
        assert list(leftovers.on_server(cluster.dsn())) == []


def test_a_module_that_is_held_back_stays_so_until_the_restart(wheel: Binaries) -> None:
    """Without the setting, what an emergency turned off would be on again."""
    preload = modules.loadable(wheel).library
    with Cluster(wheel) as cluster:
        run(cluster, f"ALTER SYSTEM SET shared_preload_libraries = '{preload}'")
        run(cluster, "ALTER SYSTEM SET pgtare.enabled = off")
        cluster.restart()
        setting, libraries = leftovers.on_server(cluster.dsn())
        assert setting.remove is not None
        assert libraries.remove is not None
        with pytest.raises(PgtareError, match="restart the server without pgtare first"):
            setting.remove()
        libraries.remove()
        with cluster.connect() as connection:
            assert connection.execute("SHOW pgtare.enabled").fetchone() == ("off",)
        cluster.restart()
        (setting,) = leftovers.on_server(cluster.dsn())
        assert setting.remove is not None
        setting.remove()
        assert list(leftovers.on_server(cluster.dsn())) == []


def test_directories_with_traces_are_named_and_kept(cluster: Cluster, open_directory: Path) -> None:
    kept = open_directory / "kept"
    kept.mkdir()
    (kept / "kept-notes.txt").touch()
    kept.chmod(0o755)
    run(cluster, f"ALTER SYSTEM SET sql_trace.keep_directory = '{kept}'")
    assert not any("holds traces" in each.what for each in leftovers.on_server(cluster.dsn()))
    (kept / "kept-20260101T000000-12-3-0000abcd-app.pgtrace").touch()
    (kept / ".kept-20260101T000000-12-3-0000abcd-app.pgtrace.partial").touch()
    done = in_process("uninstall", "--dsn", cluster.dsn(), "--yes")
    held = "holds traces with statements and their values"
    assert f"left: sql_trace.keep_directory {kept} {held} (2): delete them" in done.stdout
    assert (done.returncode, len(list(kept.iterdir()))) == (1, 3)
    run(cluster, f"ALTER SYSTEM SET sql_trace.keep_directory = '{kept}/kept-notes.txt'")
    _, directory = leftovers.on_server(cluster.dsn())
    assert "could not be looked at: could not open directory" in directory.what
