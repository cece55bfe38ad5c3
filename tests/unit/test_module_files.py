"""The files of modules are put in place together, and all of them are removed again."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from pgtare.cli.module import _next
from pgtare.errors import UsageError
from pgtare.postgres import leftovers, module_package, modules
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import BuiltModule, describe
from pgtare.postgres.signals import unwind_at_exit_signals

NAMES = ("first", "second")


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Binaries:
    """One that has an older build of both modules of NAMES, whose new build is ready."""
    root = tmp_path / "postgres"
    installed = Binaries(
        pg_config=root / "bin" / "pg_config",
        bindir=root / "bin",
        pkglibdir=root / "lib",
        sharedir=root / "share",
        includedir_server=root / "include",
        pgxs=root / "pgxs.mk",
        version="PostgreSQL 18.6",
        version_num=180006,
        origin="wheel",
    )
    new = {name: made(tmp_path / "new", name, "new") for name in NAMES}
    monkeypatch.setattr(modules, "build_cached", lambda _, module, *__, **___: new[module])
    for name in NAMES:
        old = made(tmp_path / "old", name, "old")
        for path in (old.so_path, old.control_path, *old.sql_paths):
            place = installed.pkglibdir if path == old.so_path else installed.extension_dir
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    return installed


def made(directory: Path, name: str, kind: str) -> BuiltModule:
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.so").write_text(kind)
    (directory / f"{name}.control").write_text(f"default_version = '1.0'\ncomment = '{kind}'\n")
    (directory / f"{name}--1.0.sql").write_text(f"-- {kind}")
    return describe(name, directory / f"{name}.so", directory, "a test")


def kinds(installation: Binaries) -> set[str]:
    """Of all files that are there: old, new, or both, which is a mixed installation."""
    files = [*installation.pkglibdir.iterdir(), *installation.extension_dir.iterdir()]
    assert len(files) == 6, files
    return {kind for path in files for kind in ("old", "new") if kind in path.read_text()}


def in_second_library(act: Callable[[], object]) -> Callable[..., None]:
    """Copying that does something instead when it comes to the last module's library."""

    def copy(content: IO[bytes], target: IO[bytes]) -> None:
        if content.name.endswith("second.so"):
            act()
        target.write(content.read())

    return copy


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def ended() -> None:
    raise SystemExit(143)


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [(full, UsageError, "is full: make room"), (ended, SystemExit, "143")],
)
def test_what_cannot_be_written_to_its_end_changes_nothing(
    installation: Binaries,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[], None],
    error: type[BaseException],
    words: str,
) -> None:
    monkeypatch.setattr(shutil, "copyfileobj", in_second_library(act))
    with pytest.raises(error, match=words):
        modules.install_all(installation, NAMES, force=True)
    assert kinds(installation) == {"old"}


def test_a_conflict_is_told_before_the_next_module_is_built(
    installation: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, built = modules.build_cached, []

    def counted(binaries: Binaries, name: str) -> BuiltModule:
        built.append(name)
        return build(binaries, name)

    monkeypatch.setattr(modules, "build_cached", lambda at, name, **_: counted(at, name))
    with pytest.raises(UsageError, match="use --force"):
        modules.install_all(installation, NAMES)
    assert built == ["first"]
    assert kinds(installation) == {"old"}


def test_a_signal_waits_until_all_files_are_in_place(
    installation: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And control files are the last."""
    placed: list[str] = []

    def replace(source: str, target: Path, rename: Callable[..., None] = os.replace) -> None:
        rename(source, target)
        placed.append(target.suffix)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(SystemExit), unwind_at_exit_signals():
        modules.install_all(installation, NAMES, force=True)
    assert kinds(installation) == {"new"}
    assert placed[-2:] == [".control", ".control"]


def test_a_killed_first_installation_is_listed(installation: Binaries) -> None:
    assert list(leftovers.in_installation(installation, None)) == []
    (installation.pkglibdir / ".sql_trace.so.a_b1c2d3").touch()
    (found,) = leftovers.in_installation(installation, None)
    assert found.what.startswith("sql_trace (unfinished) in ")


def test_uninstall_removes_what_a_killed_installation_left(installation: Binaries) -> None:
    libraries, extensions = installation.pkglibdir, installation.extension_dir
    others = {libraries / name for name in (".first.lock", ".first.so.swp", ".firstly.so.a_b1c2d3")}
    others.add(extensions / ".second.control.a_b1c2d3")
    unfinished = {
        libraries / ".first.so.a_b1c2d3",
        extensions / ".first--1.0.sql.zzzzzzzz",
        extensions / ".first--1.0--1.1.sql.zzzzzzzz",
        extensions / ".first.control.01234567",
    }
    for path in others | unfinished:
        path.touch()
    assert unfinished < set(modules.uninstall(installation, "first", force=True))
    assert not any(path.exists() for path in unfinished)
    assert all(path.exists() for path in others)
    (libraries / ".first.so.a_b1c2d3").touch()  # of one that was killed before its first rename
    assert len(modules.uninstall(installation, "first", force=True)) == 1


def test_a_file_that_cannot_be_removed_is_reported(installation: Binaries) -> None:
    (installation.extension_dir / "first--old").mkdir()
    with pytest.raises(UsageError, match=r"cannot remove .*/first--old .*owner") as refusal:
        modules.uninstall(installation, "first", force=True)
    assert "--destdir" not in str(refusal.value)


def test_the_manifest_goes_with_the_last_module(
    installation: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "PRELOAD_ORDER", NAMES)
    manifest = installation.pkglibdir / module_package.MANIFEST
    manifest.touch()
    modules.uninstall(installation, "first", force=True)
    assert manifest.exists()
    modules.uninstall(installation, "second", force=True)
    assert not manifest.exists()


def test_only_what_was_installed_is_to_be_preloaded(installation: Binaries) -> None:
    """A server does not start if a library of that list is missing."""
    done = [modules.Installed(name, "1.0", "installed", ()) for name in NAMES]
    (step,) = _next(installation, done)
    assert "\nshared_preload_libraries = 'first, second'\n" in step


def test_a_manifest_lists_no_libraries_of_others(
    installation: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "arguments"
    script = tmp_path / "manifest.sh"
    script.write_text(f'printf "%s\\n" "$@" > {said}\n')
    monkeypatch.setattr(module_package, "source_dir", lambda: tmp_path)
    monkeypatch.setattr(module_package, "compiler_command", lambda _: "cc")
    libraries = installation.pkglibdir
    (libraries / "utf8_and_big5.so").touch()
    module_package.write_manifest(
        installation, libraries, installation.extension_dir, ("first", "second", "third")
    )
    found = [Path(line).name for line in said.read_text().splitlines()]
    assert found[-2:] == ["first.so", "second.so"]
    assert "utf8_and_big5.so" not in found
