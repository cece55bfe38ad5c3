"""Modules that were built elsewhere: which packages are taken, and what is said of the others."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pgtare
from pgtare.errors import UsageError
from pgtare.postgres import module_package, modules
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached, source_dir
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.module_package import MANIFEST
from tests.commands import in_process, refused
from tests.installation_copies import copy_of, copy_without_modules

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]  # modules are built


@pytest.fixture(scope="module")
def package(wheel: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of all modules for PostgreSQL 18, as --destdir gives it."""
    tree = tmp_path_factory.mktemp("package")
    modules.install_all(wheel, modules.PRELOAD_ORDER, destdir=tree)
    return tree


@pytest.fixture
def copied(wheel: Binaries, open_directory: Path) -> Binaries:
    """A PostgreSQL 18 of the test's own, without the modules that others put into the original."""
    return copy_without_modules(wheel, open_directory / "postgres")


@pytest.fixture(scope="module")
def untouched(wheel: Binaries) -> Iterator[Binaries]:
    """The same for all tests in which nothing may be installed."""
    with tempfile.TemporaryDirectory(prefix="pgtare-test-", dir="/var/tmp") as directory:
        yield copy_without_modules(wheel, Path(directory, "postgres"))


def install(binaries: Binaries, package: Path) -> list[str]:
    with module_package.opened(package, binaries.major) as opened:
        module_package.require_fit(opened, binaries)
        names = modules.PRELOAD_ORDER
        return [done.outcome for done in modules.install_all(binaries, names, package=opened)]


def change(package: Path, **fields: object) -> None:
    (manifest,) = package.rglob(MANIFEST)
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | fields))


@pytest.fixture
def changeable(package: Path, tmp_path: Path) -> Path:
    return shutil.copytree(package, tmp_path / "changeable")


def test_a_tar_installs_without_a_compiler_and_the_server_runs_it(
    copied: Binaries, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = tmp_path / "modules.tar.xz"
    with tarfile.open(tar, "w:xz") as archive:
        archive.add(package, arcname=".")
    monkeypatch.setattr(modules, "build_cached", no_build)
    assert install(copied, tar) == ["installed"] * 3
    assert install(copied, tar) == ["unchanged"] * 3
    with Cluster(copied, preload=modules.PRELOAD_ORDER) as cluster, cluster.connect() as conn:
        for name in modules.PRELOAD_ORDER:
            conn.execute(f"CREATE EXTENSION {name}".encode())
        row = conn.execute("SELECT version, usable FROM pgtare.info()").fetchone()
        assert row == (pgtare.__version__, True)


def no_build(*_: object, **__: object) -> None:
    raise AssertionError("nothing may be built")


@pytest.mark.debian
def test_an_archive_of_the_files_is_one(
    debian15: Binaries, open_directory: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    modules.install(debian15, "pgtare", destdir=tree)
    (libraries,) = tree.rglob("pgtare.so")
    (control,) = tree.rglob("pgtare.control")
    module_package.write_manifest(debian15, libraries.parent, control.parent, modules.PRELOAD_ORDER)
    archive = tmp_path / "p.tar"
    subprocess.run(["tar", "-cf", archive, "-C", tree, "."], check=True, capture_output=True)
    copied = copy_of(debian15, open_directory / "postgres")
    with module_package.opened(archive, 15) as opened:
        assert opened.manifest.modules == ["pgtare"]
        module_package.require_fit(opened, copied)
        assert modules.install(copied, "pgtare", package=opened).outcome == "installed"
    archive.write_bytes(archive.read_bytes()[:5000])
    refusal = pytest.raises(UsageError, match=r"cannot be unpacked \(.*\): name a directory")
    with refusal, module_package.opened(archive, 15):
        pass


def test_the_command_takes_a_directory(wheel: Binaries, package: Path, tmp_path: Path) -> None:
    destdir = tmp_path / "elsewhere"
    arguments = ("module", "install", "--pg-config", str(wheel.pg_config))
    done = in_process(*arguments, "--from", package, "--destdir", destdir)
    assert f"sql_trace {pgtare.__version__} installed for PostgreSQL" in done.stdout
    assert len(list(destdir.rglob("*.so"))) == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"version": "0.9.1"},
            rf"has modules of version 0\.9\.1, and this command is {pgtare.__version__}: get the "
            rf"package of version {pgtare.__version__}, or install version 0\.9\.1 of the command$",
        ),
        (
            {"postgresql": 15},
            r"is for PostgreSQL 15, and .*pg_config belongs to PostgreSQL 18\S*: "
            r"get the package for PostgreSQL 18$",
        ),
        (
            {"architecture": "aarch64"},
            r"is for aarch64, and .*/postgres is for x86_64: get the package for x86_64$",
        ),
        (
            {"libc": "glibc 2.999"},
            r"needs glibc 2\.999 or later, and this machine has glibc 2\.\d+: build the modules "
            r"here \(without --from\), or get a package for this release of the system$",
        ),
        ({"modules": "pgtare"}, r"is damaged, or made for another version of the command: "),
        ({"version": "0.4\n\x1b[2Jhello"}, "is damaged, or made for another version"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_installed(
    untouched: Binaries, changeable: Path, fields: dict[str, object], words: str
) -> None:
    change(changeable, **fields)
    with pytest.raises(UsageError, match=words) as raised:
        install(untouched, changeable)
    assert str(changeable) in str(raised.value)
    assert raised.value.exit_status == 2
    assert modules.installed_version(untouched, "pgtare") is None


def test_of_several_packages_the_servers_version_is_taken(
    copied: Binaries, changeable: Path, tmp_path: Path
) -> None:
    both = tmp_path / "both"
    shutil.copytree(changeable, both / "18")
    change(changeable, postgresql=15)
    shutil.move(changeable, both / "15")
    with module_package.opened(both, 18) as opened:
        assert opened.manifest.postgresql == 18
    refusal = pytest.raises(UsageError, match=r"several packages \(15/.*, 18/.*\): name one")
    with refusal, module_package.opened(both, 17):
        pass


@pytest.mark.slow
def test_a_forced_installation_leaves_no_manifest_of_what_was_replaced(
    copied: Binaries, package: Path
) -> None:
    (libraries,) = [path.parent for path in package.rglob(MANIFEST)]
    shutil.copy(libraries / MANIFEST, copied.pkglibdir)
    assert install(copied, package) == ["installed"] * 3
    assert not (copied.pkglibdir / MANIFEST).exists()
    shutil.copy(libraries / MANIFEST, copied.pkglibdir)
    assert install(copied, package) == ["unchanged"] * 3
    assert (copied.pkglibdir / MANIFEST).exists()


def test_an_unpacking_that_is_ended_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(archive: tarfile.TarFile, into: Path) -> None:
        (into / "half").touch()
        raise SystemExit(128 + signal.SIGTERM)

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(module_package, "_take", ended)
    with tarfile.open(tmp_path / "p.tar", "w") as archive:
        archive.add(__file__, "pgtare.sql")
    with pytest.raises(SystemExit), module_package.opened(tmp_path / "p.tar", 18):
        pass
    assert not list(scratch.iterdir())


def test_what_is_no_package_is_said(wheel: Binaries, tmp_path: Path) -> None:
    arguments = ["module", "install", "--pg-config", str(wheel.pg_config), "--from"]
    absent, text = tmp_path / "absent.tar", tmp_path / "text.tar"
    text.write_text("no archive\n" * 1000)
    assert "there is no " in refused(*arguments, str(absent))
    assert "cannot be unpacked" in refused(*arguments, str(text))
    (tmp_path / "empty").mkdir()
    assert f"holds no {MANIFEST}" in refused(*arguments, str(tmp_path / "empty"))


def test_modules_in_the_package_of_the_command_need_no_build(
    copied: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = dataclasses.replace(copied, origin="wheel")
    assert module_package.embedded(own) is None  # a checkout has none
    prebuilt = tmp_path / "_prebuilt"
    prebuilt.mkdir()
    built = build_cached(copied, "pgtare")
    for path in (built.so_path, built.control_path, *built.sql_paths):
        shutil.copy(path, prebuilt)
    module_package.write_manifest(copied, prebuilt, prebuilt, modules.PRELOAD_ORDER)
    monkeypatch.setattr(module_package, "_embedded_directory", lambda: prebuilt)
    monkeypatch.setattr(modules, "build_cached", no_build)
    modules.ensure_for_wheel(own, "pgtare")
    assert modules.installed_version(own, "pgtare") == pgtare.__version__
    assert module_package.embedded(copied) is None  # not for others' installations
    change(prebuilt, version="0.0.1")
    assert module_package.embedded(own) is None


def test_a_compiler_for_musl_is_refused_in_one_sentence(wheel: Binaries, tmp_path: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc is not installed (Debian: musl-tools)")
    sources = shutil.copytree(source_dir(), tmp_path / "server")
    command = ["make", "-C", str(sources / "sql_trace"), f"PG_CONFIG={wheel.pg_config}"]
    done = subprocess.run([*command, "CC=musl-gcc"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (said,) = done.stderr.strip().splitlines()
    assert "the server modules need glibc, and this compiler (musl-gcc) builds for another" in said


def test_objects_that_were_built_for_another_server_are_not_taken(
    wheel: Binaries, tmp_path: Path
) -> None:
    sources = shutil.copytree(source_dir(), tmp_path / "server")
    old = sources / "pgtare" / "module.o"
    command = ["make", "-s", "-C", str(sources), f"PG_CONFIG={wheel.pg_config}", "same_server"]
    old.touch()
    subprocess.run(command, check=True)
    assert not old.exists()
    old.touch()
    subprocess.run(command, check=True)
    assert old.exists()
    (sources / ".built-for").write_text("PostgreSQL 15.1 in /usr/include/postgresql/15/server\n")
    subprocess.run(command, check=True)
    assert not old.exists()


# What a package of somebody else's could do


def link(script: Path) -> None:
    secret = script.with_name("secret")
    secret.write_text("-- of another user")
    script.unlink()
    script.symlink_to(secret)


def pipe(control: Path) -> None:
    control.unlink()
    os.mkfifo(control)


def give_to_a_group(library: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(library.parent, -1, 12_345)
    library.parent.chmod(0o775)


def cut(length: int) -> Callable[[Path], object]:
    return lambda library: library.write_bytes(library.read_bytes()[:length])


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        ("sql_trace.so", Path.unlink, r"gave no sql_trace\.so of sql_trace 1"),
        # it is not followed
        (f"pgtare--{pgtare.__version__}.sql", link, r"is damaged: pgtare--.*sql cannot be read"),
        # it is not waited for
        ("sql_trace.control", pipe, r"sql_trace.control is no file of a module"),
        *(
            ("wait_event_timing.so", cut(length), r"timing.so is no module of PostgreSQL")
            for length in (40, 64, 4096, 30_000)
        ),
        (
            "pgtare.so",
            lambda library: shutil.copy("/bin/true", library),
            r"pgtare.so is no module of PostgreSQL",
        ),
        (
            "pgtare.so",
            lambda library: library.parent.chmod(0o777),
            r"other users can change .*: copy it to a directory",
        ),
        (
            "pgtare.so",
            give_to_a_group,
            r"other users can change .*: copy it to a directory",
        ),
    ],
)
def test_a_spoilt_package_installs_nothing(
    untouched: Binaries,
    changeable: Path,
    name: str,
    spoil: Callable[[Path], object],
    words: str,
) -> None:
    (path,) = changeable.rglob(name)
    spoil(path)
    with pytest.raises(UsageError, match=words):
        install(untouched, changeable)
    assert modules.installed_version(untouched) is None


@pytest.mark.slow
def test_a_flipped_bit_in_a_compressed_package_is_noticed(
    copied: Binaries, package: Path, tmp_path: Path
) -> None:
    for mode in ("gz", "xz"):
        tar = tmp_path / f"modules.tar.{mode}"
        with tarfile.open(tar, f"w:{mode}") as archive:
            archive.add(package, arcname=".")
        content = bytearray(tar.read_bytes())
        content[len(content) // 2] ^= 0x10
        tar.write_bytes(content)
        with pytest.raises(UsageError, match=r"cannot be unpacked|is damaged"):
            install(copied, tar)
    assert modules.installed_version(copied) is None


def test_what_lies_outside_of_a_package_stays_there(
    copied: Binaries, package: Path, tmp_path: Path
) -> None:
    tar = tmp_path / "modules.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(package, arcname=".")
        (library,) = package.rglob("pgtare.so")
        archive.add(library, arcname="../outside.so")
    with pytest.raises(UsageError, match=r"cannot be unpacked \(\.\./outside.so lies outside"):
        install(copied, tar)


def test_a_manifest_cannot_name_a_directory_elsewhere(
    copied: Binaries, changeable: Path, tmp_path: Path
) -> None:
    change(changeable, extension="../" * 40 + "tmp/evil")
    tar = tmp_path / "modules.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(changeable, arcname=".")
    with pytest.raises(UsageError, match="its manifest names a directory outside of it"):
        install(copied, tar)


@pytest.mark.slow
def test_a_conflict_in_one_module_installs_none(copied: Binaries, package: Path) -> None:
    (copied.pkglibdir / "sql_trace.so").write_bytes(b"another build")
    with pytest.raises(UsageError, match="sql_trace is already installed"):
        install(copied, package)
    assert modules.installed_version(copied) is None
    (copied.sharedir / "extension" / "sql_trace.control").mkdir()
    with pytest.raises(UsageError, match="is no file: move it away"):
        install(copied, package)
