"""The extension image: a server with nothing of ours installed loads modules from its tree."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgtare
from pgtare.postgres import modules
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value
from tests import trace_keeper
from tests.commands import pgtare as command
from tests.installation_copies import copy_without_modules
from tests.servers import CAPTURING
from tests.sessions import eventually, one, session

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "packaging" / "container" / "extension-tree.sh"

pytestmark = [
    pytest.mark.server,
    pytest.mark.since(18, "extensions are found outside of the server's own directories"),
    pytest.mark.timeout(400),  # modules are built
]


@pytest.fixture(scope="module")
def image(wheel: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image has at its root."""
    staged, tree = (tmp_path_factory.mktemp(name) / "tree" for name in ("staged", "image"))
    modules.install_all(wheel, modules.PRELOAD_ORDER, destdir=staged)
    subprocess.run([SCRIPT, staged, wheel.pg_config, tree], check=True)
    return tree


@pytest.fixture(scope="module")
def server(wheel: Binaries, image: Path) -> Iterator[Cluster]:
    """It has the paths that CloudNativePG sets for an extension named pgtare."""
    with trace_keeper.place() as place:
        mounted = place / "extensions" / "pgtare"
        shutil.copytree(image, mounted)
        settings: dict[str, Value] = {
            "extension_control_path": f"$system:{mounted}/share",
            "dynamic_library_path": f"$libdir:{mounted}/lib",
            "sql_trace.keep_directory": str(place / "traces"),
        }
        binaries = copy_without_modules(wheel, place / "postgres")
        with Cluster(binaries, CAPTURING | settings, preload=modules.PRELOAD_ORDER) as cluster:
            with cluster.connect() as connection:
                for name in modules.PRELOAD_ORDER:
                    connection.execute(f"CREATE EXTENSION {name}".encode())
            yield cluster


def test_the_tree_has_the_modules_and_nothing_else(image: Path) -> None:
    version = pgtare.__version__
    expected = {f"lib/{name}.so" for name in modules.PRELOAD_ORDER}
    for name in modules.PRELOAD_ORDER:
        expected |= {f"share/extension/{name}{end}" for end in (".control", f"--{version}.sql")}
    found = {path for path in image.rglob("*") if path.is_file()}
    assert {str(path.relative_to(image)) for path in found} == expected


@pytest.mark.slow
def test_each_module_is_loaded_from_the_tree_and_works(server: Cluster) -> None:
    with session(server) as connection:
        maps = Path("/proc", str(connection.info.backend_pid), "maps").read_text()
        for name in modules.PRELOAD_ORDER:
            assert f"/extensions/pgtare/lib/{name}.so\n" in maps
            assert not (server.binaries.pkglibdir / f"{name}.so").exists()
        connection.execute("SELECT pg_sleep(0.1)")
        waits = (
            "SELECT calls FROM pg_stat_wait_event_timing WHERE wait_event = 'PgSleep' AND pid = "
        )
        assert one(connection, waits + "pg_backend_pid()") == 1
        assert one(connection, "SELECT slots_problem FROM pgtare.info()") is None
        assert one(connection, "SELECT sql_trace_set(pg_backend_pid(), 12)")
        assert one(connection, "SELECT level FROM sql_trace_sessions()") == 12
        # the background worker looks for its library by itself
        eventually(Path(one(connection, "SHOW sql_trace.keep_directory")).is_dir)


@pytest.mark.slow
def test_the_command_knows_what_the_server_loads(server: Cluster) -> None:
    listed = command("module list --dsn {}", server.dsn())
    assert listed.returncode == 0, listed.stderr
    for name in modules.PRELOAD_ORDER:
        assert [name, *[pgtare.__version__] * 3] in map(str.split, listed.stdout.splitlines())
