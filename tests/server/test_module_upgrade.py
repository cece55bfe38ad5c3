"""What is said at each step of an upgrade, from another version of the modules to this one."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import pgtare
from pgtare.observing.flame import labels as flame_labels
from pgtare.postgres import modules
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import PRELOAD_ORDER, ensure_for_wheel
from tests.commands import failed, in_process
from tests.installation_copies import copy_of
from tests.servers import crashes
from tests.sessions import bare_session

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]  # modules are built

#: Of another series, and as long as ours, so that it can stand in its place in a library.
OTHER = "0.9.0"


@pytest.fixture(
    scope="module", params=["wheel", pytest.param("debian15", marks=pytest.mark.debian)]
)
def upgraded(request: pytest.FixtureRequest) -> Iterator[Binaries]:
    """An installation of the tests' own, in which all modules are, and can be replaced."""
    original: Binaries = request.getfixturevalue(request.param)
    directory = Path(tempfile.mkdtemp(prefix="pgtare-test-", dir="/var/tmp"))
    directory.chmod(0o755)
    copied = copy_of(original, directory)
    for name in PRELOAD_ORDER:
        build_cached(original, name)
        modules.install(copied, name, force=True)
    yield copied
    shutil.rmtree(directory)


def put_back(binaries: Binaries, module: str) -> None:
    """The files of another version, in the place of the installed ones."""
    for path in (
        binaries.pkglibdir / f"{module}.so",
        binaries.extension_dir / f"{module}.control",
    ):
        path.write_bytes(as_other(path.read_bytes(), path))
    script = binaries.extension_dir / f"{module}--{pgtare.__version__}.sql"
    text = script.read_bytes().replace(b"'1.0.%'", b"'0.9.%'")
    script.unlink()
    script.with_name(f"{module}--{OTHER}.sql").write_bytes(text)


def as_other(data: bytes, path: Path) -> bytes:
    """The same as of the other version. The file is new: running servers may have mapped it."""
    assert pgtare.__version__.encode() in data
    path.unlink()
    return data.replace(pgtare.__version__.encode(), OTHER.encode())


INSTALL = "run `pgtare module install --module {} --force --pg-config PATH` on the server's host"
RESTART = "restart the server"
ANEW = "run DROP EXTENSION {}; CREATE EXTENSION {}; in database postgres"
REFUSED = {
    "pgtare": [("weigh", "track_io_timing", "-d", "2"), ("status",)],
    "wait_event_timing": [("waits", "top", "--interval", "0.2s"), ("waits", "sessions")],
    "sql_trace": [("trace", "status"), ("trace", "record", "/nowhere/trace")],
}
#: Commands that end something, whatever the versions.
ENDING = {"pgtare": ("stop",), "sql_trace": ("trace", "stop")}


def check_said(cluster: Cluster, *steps: str) -> None:
    """Every command names the steps for its module, in one sentence."""
    dsn = ("--dsn", cluster.dsn())
    wanted = {name: ", then ".join(steps).replace("{}", name) for name in PRELOAD_ORDER}
    for name, commands in REFUSED.items():
        for command in commands:
            message = failed(in_process(*command, *dsn), 2)
            assert message.count("\n") == 1, message
            assert f"the versions of {name} differ" in message, (command, message)
            assert wanted[name] in message, (command, message)
    for name, command in ENDING.items():
        done = in_process(*command, *dsn)
        assert done.returncode == 0, done.stderr
        assert wanted[name] in done.stderr
    said = in_process("module", "list", *dsn).stdout.splitlines()[-len(wanted) :]
    assert said == [f"{name}: {steps}" for name, steps in wanted.items()]
    with flame_labels.labels(cluster.dsn(), None, trace=False) as joined:  # type: ignore[arg-type]
        pass
    assert any(wanted["wait_event_timing"] in note for note in joined.notes), joined.notes
    unseen = json.loads(in_process("doctor", "--interval", "1s", *dsn, "--json").stdout)["unseen"]
    remedies = {one["what"]: one["remedy"] for one in unseen}
    assert remedies["wait_event_timing"] == wanted["wait_event_timing"]


def check_well(cluster: Cluster) -> None:
    """No command has anything to say of versions."""
    dsn = ("--dsn", cluster.dsn())
    for command in (("status",), ("waits", "sessions"), ("trace", "status"), ("stop",)):
        done = in_process(*command, *dsn)
        assert (done.returncode, done.stderr) == (0, ""), command
    head, _, *rows = in_process("module", "list", *dsn).stdout.splitlines()
    assert head == f"this command: {pgtare.__version__}"
    assert [row.split() for row in rows] == [
        [name, *[pgtare.__version__] * 3] for name in PRELOAD_ORDER
    ]


def check_role(cluster: Cluster, role: str) -> None:
    """A role without privileges finds no mismatch, even where it may not call the functions."""
    _, _, *rows = in_process("module", "list", "--dsn", cluster.dsn(user=role)).stdout.splitlines()
    assert [row.split()[0] for row in rows] == list(PRELOAD_ORDER)  # and nothing behind the table
    assert [row.split()[-1] for row in rows] == [pgtare.__version__] * 3


@pytest.mark.slow
def test_each_step_of_an_upgrade_is_said(upgraded: Binaries) -> None:
    """From the other version to this one, and what is said if a library is put back."""
    for name in PRELOAD_ORDER:
        put_back(upgraded, name)
    with Cluster(upgraded, {"wait_event_timing.capture": "stats"}, PRELOAD_ORDER) as cluster:
        with bare_session(cluster) as client:
            for name in PRELOAD_ORDER:
                client.execute(f"CREATE EXTENSION {name}".encode())
        check_said(cluster, INSTALL, RESTART, ANEW)
        for name in PRELOAD_ORDER:
            modules.install(upgraded, name, force=True)
        check_said(cluster, RESTART, ANEW)
        with bare_session(cluster) as client:
            for name in PRELOAD_ORDER:
                with pytest.raises(psycopg.errors.RaiseException, match="Restart the server"):
                    client.execute(anew(name))
        cluster.restart()
        check_said(cluster, ANEW)
        with bare_session(cluster) as client:
            client.execute(anew("pgtare"))
            weigh = ("weigh", "wait_event_timing", "--dry-run", "--dsn", cluster.dsn())
            message = failed(in_process(*weigh), 2)
            assert ANEW.replace("{}", "wait_event_timing") in message
            for name in ("wait_event_timing", "sql_trace"):
                client.execute(anew(name))
            client.execute("CREATE ROLE anybody LOGIN")
            client.execute("CREATE ROLE observer LOGIN IN ROLE pg_read_all_stats")
        check_well(cluster)
        for role in ("anybody", "observer"):
            check_role(cluster, role)
        for name in PRELOAD_ORDER:
            put_back(upgraded, name)
        cluster.restart()
        check_said(cluster, INSTALL, RESTART)
        assert crashes(cluster) == []
    for name in PRELOAD_ORDER:
        modules.install(upgraded, name, force=True)


def anew(module: str) -> bytes:
    """One transaction: if it is refused, nothing has changed."""
    return f"DROP EXTENSION {module}; CREATE EXTENSION {module}".encode()


def test_what_comes_after_a_replacement_is_said(wheel: Binaries) -> None:
    ensure_for_wheel(wheel)
    control = wheel.extension_dir / "pgtare.control"
    control.write_text(control.read_text() + "# of another version\n")
    where = ("--module", "pgtare", "--pg-config", wheel.pg_config)
    done = in_process("module", "install", "--force", *where)
    assert done.returncode == 0, done.stderr
    assert "run DROP EXTENSION pgtare; CREATE EXTENSION pgtare; in each" in done.stdout
