"""What the command and dpkg know of each other's files, with a package and a database of dpkg's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.postgres import build, modules
from pgtare.postgres.binaries import Binaries, from_pg_config
from pgtare.postgres.file_owner import package_of
from tests.commands import in_process, refused
from tests.installation_copies import copy_of

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg is not installed"),
]

ROOT = Path(__file__).parents[2]
NAME = "postgresql-18-pgtare"
CONTROL = f"""Package: {NAME}
Version: 9.9-1
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: a package for tests
"""


@pytest.fixture
def copied(wheel: Binaries, open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Binaries:
    """A PostgreSQL 18 of the test's own, as if a user had installed it, without our modules.

    They need not be built again: those of the original fit.
    """
    built = build.build_cached(wheel)
    monkeypatch.setattr(modules, "build_cached", lambda *_, **__: built)
    found = from_pg_config(copy_of(wheel, open_directory / "postgres").bindir / "pg_config")
    for name in modules.PRELOAD_ORDER:
        if modules.installed_version(found, name):
            modules.uninstall(found, name, force=True)
    return found


@pytest.fixture
def database(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What dpkg has installed: nothing yet."""
    found = open_directory / "dpkg"
    for name in ("info", "updates", "triggers"):
        (found / name).mkdir(parents=True)
    (found / "status").touch()
    monkeypatch.setenv("DPKG_ADMINDIR", str(found))
    return found


def installed_by_dpkg(copied: Binaries, database: Path, folder: Path) -> str:
    """Install a package with the library of pgtare; what was printed meanwhile."""
    tree = folder / "package"
    library = tree / copied.pkglibdir.relative_to("/") / "pgtare.so"
    library.parent.mkdir(parents=True)
    library.write_text("of the package")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN" / "control").write_text(CONTROL)
    script = (ROOT / "debian" / "preinst.in").read_text().replace("PGVERSION", "18")
    usual = "/usr/lib/postgresql/18/bin/pg_config"
    assert usual in script
    preinst = tree / "DEBIAN" / "preinst"
    preinst.write_text(script.replace(usual, str(copied.pg_config)))
    preinst.chmod(0o755)
    package = folder / "package.deb"
    build: list[str | Path] = ["dpkg-deb", "--root-owner-group", "--build", tree, package]
    subprocess.run(build, check=True, capture_output=True)
    done = subprocess.run(
        ["dpkg", "--force-not-root", "--force-bad-path", f"--admindir={database}", "-i", package],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_package_keeps_its_files_until_it_is_asked_to_give_them_up(
    copied: Binaries, database: Path, tmp_path: Path
) -> None:
    assert "replaces" not in installed_by_dpkg(copied, database, tmp_path)
    library = copied.pkglibdir / "pgtare.so"
    assert str(package_of(library)) == f"{NAME} 9.9-1"
    place = ("--pg-config", str(copied.pg_config))
    message = refused("module", "install", "--module", "pgtare", *place)
    assert f"installed by the package {NAME} 9.9-1 ({library})" in message
    assert f"take it out first (`apt-get remove {NAME}`)" in message
    assert library.read_text() == "of the package"
    with pytest.raises(
        UsageError,
        match=f"belongs to the package {NAME} 9.9-1, which may have others of pgtare, "
        "wait_event_timing, sql_trace: remove that with",
    ):
        modules.uninstall(copied, force=True)
    listed = " ".join(in_process("module", "list", *place).stdout.split())
    assert f"pgtare unknown {library} package {NAME} 9.9-1" in listed
    assert "sql_trace not installed nothing" in listed

    done = in_process("module", "install", "--module", "pgtare", "--force", *place)
    assert f"replaced for PostgreSQL {copied.version.split()[-1]}, a file of the package" in (
        done.stdout
    )
    assert "each new session loads the new one at once" in done.stdout
    assert f"next: the package {NAME} 9.9-1 will put its own files back" in done.stdout


def test_a_package_says_that_it_replaces_what_the_command_installed(
    copied: Binaries, database: Path, tmp_path: Path
) -> None:
    place = ("--pg-config", str(copied.pg_config))
    assert in_process("module", "install", "--module", "pgtare", *place).returncode == 0
    library = copied.pkglibdir / "pgtare.so"
    assert package_of(library) is None
    listed = " ".join(in_process("module", "list", *place).stdout.split())
    assert f"{library} `pgtare module install`" in listed
    said = installed_by_dpkg(copied, database, tmp_path)
    assert f"{NAME}: replaces {library}, which `pgtare module install` put there" in said
    assert library.read_text() == "of the package"
