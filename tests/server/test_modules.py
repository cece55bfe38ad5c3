"""Building, installing and removing a server module, tried with a tiny one."""

import dataclasses
import shutil
import threading
from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.postgres import build, directories, modules
from pgtare.postgres.binaries import Binaries, from_pg_config
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.module_usage import loaded_by, uses_on_server
from tests.commands import in_process, refused
from tests.installation_copies import copy_of
from tests.module_sources import write_module
from tests.sessions import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

CODE = """
#include "postgres.h"
#include "fmgr.h"
#include "../common/answer.h"
PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(tiny_answer);
Datum tiny_answer(PG_FUNCTION_ARGS) { PG_RETURN_INT32(ANSWER); }
"""
CONTROL = """
comment = 'a module for tests'
relocatable = false
schema = tiny
"""
SCRIPT = """/* tiny--1.0.sql */
\\echo Use "CREATE EXTENSION tiny" to load this file. \\quit
CREATE FUNCTION @extschema@.answer() RETURNS int AS 'MODULE_PATHNAME', 'tiny_answer' LANGUAGE C;
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The sources of a module `tiny` with one function, which answers 42."""
    root = tmp_path / "the sources"  # with a blank: they are copied before make sees them
    write_module(root, "tiny", CODE, CONTROL, SCRIPT)
    set_answer(root, 42)
    return root


def set_answer(source: Path, answer: int) -> None:
    (source / "common" / "answer.h").write_text(f"#define ANSWER {answer}\n")


@pytest.fixture
def copied(wheel: Binaries, open_directory: Path) -> Binaries:
    """A PostgreSQL 18 of the test's own, as if a user had installed it."""
    copy = copy_of(wheel, open_directory / "postgres")
    return from_pg_config(copy.bindir / "pg_config")


@pytest.fixture(scope="module")
def built(wheel: Binaries) -> dict[str, Path]:
    """Every module as built for the original of `copied`, in the usual place."""
    return {name: build.build_cached(wheel, name).so_path for name in modules.PRELOAD_ORDER}


def wait_until_unloaded(library: Path) -> None:
    """Backends end a little after their connections."""
    eventually(lambda: not loaded_by(library), 10)


def answer_of(cluster: Cluster, create_sql: str) -> int:
    with cluster.connect() as connection:
        connection.execute(create_sql.encode())
        row = connection.execute("SELECT tiny.answer()").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.debian
def test_throwaway_server_loads_the_module_with_nothing_installed(
    debian15: Binaries, own_place: Path, source: Path
) -> None:
    ready = modules.loadable(debian15, "tiny", source)
    assert Path(ready.library).is_relative_to(own_place)
    with Cluster(debian15, preload=[ready.library]) as cluster:
        assert answer_of(cluster, ready.create_sql) == 42
    assert modules.installed_version(debian15, "tiny") is None


def test_wheel_copy_gets_the_module_and_its_changes(
    wheel: Binaries, copied: Binaries, own_place: Path, source: Path
) -> None:
    own_wheel = dataclasses.replace(copied, origin="wheel")
    ready = modules.loadable(own_wheel, "tiny", source)
    assert ready.library == "tiny"
    first = (own_wheel.pkglibdir / "tiny.so").stat()
    modules.loadable(own_wheel, "tiny", source)
    assert (own_wheel.pkglibdir / "tiny.so").stat() == first
    set_answer(source, 43)
    ready = modules.loadable(own_wheel, "tiny", source)
    with Cluster(own_wheel, preload=["tiny"]) as cluster:
        assert answer_of(cluster, ready.create_sql) == 43


@pytest.mark.slow
def test_wheel_copy_prepared_twice_at_once(copied: Binaries, own_place: Path, source: Path) -> None:
    own_wheel = dataclasses.replace(copied, origin="wheel")
    failures: list[BaseException] = []

    def prepare() -> None:
        try:
            modules.ensure_for_wheel(own_wheel, "tiny", source)
        except BaseException as ex:
            failures.append(ex)

    threads = [threading.Thread(target=prepare) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert modules.installed_version(own_wheel, "tiny") == "1.0"
    assert [p.name for p in (own_place / "modules").glob("tiny-*")] != []


def test_only_the_wheel_is_installed_into_unasked(copied: Binaries, source: Path) -> None:
    with pytest.raises(ValueError, match="private copy of the wheel"):
        modules.ensure_for_wheel(copied, "tiny", source)


@pytest.mark.slow
def test_same_sources_give_the_same_library(
    binaries: Binaries, source: Path, open_directory: Path
) -> None:
    made = []
    for name in ("a", "elsewhere"):
        (open_directory / name).mkdir()
        made.append(build.build(binaries, "tiny", open_directory / name, source))
    assert made[0].so_path.read_bytes() == made[1].so_path.read_bytes()
    assert made[0].version == "1.0"


def test_leftovers_of_a_build_in_the_checkout_do_not_matter(wheel: Binaries, source: Path) -> None:
    before = build.build_key(wheel, "tiny", source)
    (source / "tiny" / "tiny.o").write_bytes(b"not an object")
    (source / "tiny" / "tiny.so").write_bytes(b"not a library")
    assert build.build_key(wheel, "tiny", source) == before
    set_answer(source, 1)
    assert build.build_key(wheel, "tiny", source) != before


@pytest.mark.parametrize("version", ["PostgreSQL 19devel", "PostgreSQL 19rc1 (Debian)"])
def test_a_server_built_again_in_place_needs_another_build(
    wheel: Binaries, source: Path, tmp_path: Path, version: str
) -> None:
    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "pg_config.h").write_text("/* #undef USE_ASSERT_CHECKING */\n")
    (headers / "proc.h").write_text("struct PGPROC;\n")
    pg_config = tmp_path / "pg_config"

    def configured(options: str, flags: str = "-O2") -> None:
        # --cc comes alone
        pg_config.write_text(f"#!/bin/sh\n[ $1 = --cc ] && echo gcc || echo {options} {flags}\n")
        pg_config.chmod(0o755)

    configured("--with-icu")
    ours = dataclasses.replace(
        wheel, pg_config=pg_config, includedir_server=headers, version=version
    )
    released = dataclasses.replace(ours, version="PostgreSQL 18.6")

    def keys() -> list[str]:
        return [build.build_key(one, "tiny", source) for one in (ours, released)]

    seen = [keys()]
    assert keys() == seen[0]
    configured("--with-icu --enable-cassert")
    seen.append(keys())
    configured("--with-icu --enable-cassert", "-O0")
    seen.append(keys())
    (headers / "pg_config.h").write_text("#define USE_ASSERT_CHECKING 1\n")
    seen.append(keys())
    assert [len(set(each)) for each in zip(*seen, strict=True)] == [4, 4]
    (headers / "proc.h").write_text("struct PGPROC { int more; };\n")
    assert keys()[0] != seen[-1][0]
    assert keys()[1] == seen[-1][1]


@pytest.mark.slow
def test_install_replaces_nothing_unasked(copied: Binaries, own_place: Path, source: Path) -> None:
    def install(force: bool = False) -> str:
        return modules.install(copied, "tiny", source=source, force=force).outcome

    assert modules.installed_version(copied, "tiny") is None
    assert install() == "installed"
    assert install() == "unchanged"
    set_answer(source, 1)
    with pytest.raises(UsageError, match=r"another build of version 1\.0 .*use --force") as refused:
        install()
    assert "each new session loads the new one at once" in str(refused.value)
    control = source / "tiny" / "tiny.control"
    control.write_text(control.read_text().replace("1.0", "1.1"))
    makefile = source / "tiny" / "Makefile"
    makefile.write_text(makefile.read_text().replace("1.0", "1.1"))
    (source / "tiny" / "tiny--1.0.sql").rename(source / "tiny" / "tiny--1.1.sql")
    with pytest.raises(UsageError, match=r"^version 1\.0 of tiny .* this is version 1\.1"):
        install()
    assert install(force=True) == "replaced"
    assert modules.installed_version(copied, "tiny") == "1.1"
    assert [p.name for p in copied.extension_dir.glob("tiny--*")] == ["tiny--1.1.sql"]
    assert [p.name for p in copied.pkglibdir.glob(".tiny*")] == []


@pytest.mark.slow
def test_library_is_replaced_by_renaming_under_a_running_server(
    copied: Binaries, own_place: Path, source: Path
) -> None:
    modules.install(copied, "tiny", source=source)
    with Cluster(copied, preload=["tiny"]) as cluster, cluster.connect() as connection:
        connection.execute("CREATE EXTENSION tiny")
        connection.execute("SELECT tiny.answer()")
        set_answer(source, 43)
        modules.install(copied, "tiny", source=source, force=True)
        row = connection.execute("SELECT tiny.answer()").fetchone()
        assert row == (42,)
        cluster.restart()
        with cluster.connect() as fresh:
            assert fresh.execute("SELECT tiny.answer()").fetchone() == (43,)


def test_install_below_destdir(wheel: Binaries, own_place: Path, source: Path) -> None:
    destdir = own_place.parent / "package root"
    done = modules.install(wheel, "tiny", destdir=destdir, source=source)
    assert all(path.is_relative_to(destdir) for path in done.files)
    assert modules.installed_version(wheel, "tiny") is None
    assert modules.installed_version(wheel, "tiny", destdir=destdir) == "1.0"


def test_library_directory_that_cannot_be_written(
    wheel: Binaries, own_place: Path, source: Path
) -> None:
    with pytest.raises(UsageError, match=r"cannot write to /proc/no/.*--destdir"):
        modules.install(wheel, "tiny", Path("/proc/no"), source=source)


@pytest.mark.slow
def test_uninstall_refuses_while_the_module_is_in_use(
    copied: Binaries, own_place: Path, source: Path
) -> None:
    modules.install(copied, "tiny", source=source)
    hint = r"give --dsn .*, or use `pgtare module uninstall --force`"
    with pytest.raises(UsageError, match=hint):
        modules.uninstall(copied, "tiny")
    with Cluster(copied, settings={"session_preload_libraries": "tiny"}) as cluster:
        dsn = cluster.dsn()
        with cluster.connect() as connection:
            connection.execute("CREATE DATABASE other")
            connection.execute("ALTER ROLE postgres SET session_preload_libraries = '$libdir/tiny'")
        with cluster.connect("other") as connection:
            connection.execute("CREATE EXTENSION tiny")
        uses = "; ".join(uses_on_server(dsn, "tiny", copied.pkglibdir))
        assert "session_preload_libraries in " in uses
        assert "session_preload_libraries as now in force" in uses
        assert "session_preload_libraries set for postgres in all databases" in uses
        assert "extension in database other" in uses
        with pytest.raises(UsageError, match="tiny is still in use"):
            modules.uninstall(copied, "tiny", dsn)
        with cluster.connect() as connection:
            connection.execute("ALTER ROLE postgres RESET session_preload_libraries")
        with cluster.connect("other") as connection:
            connection.execute("DROP EXTENSION tiny")
        cluster.configure({"session_preload_libraries": None})
        cluster.reload()
        wait_until_unloaded(copied.pkglibdir / "tiny.so")
        assert len(modules.uninstall(copied, "tiny", dsn)) == 3
        assert modules.installed_version(copied, "tiny") is None
        with pytest.raises(UsageError, match="not installed"):
            modules.uninstall(copied, "tiny", dsn)


@pytest.mark.parametrize("name", ["plpgsql", "*", "../plpgsql"])
def test_uninstall_leaves_the_extensions_of_others(copied: Binaries, name: str) -> None:
    """No package owns the files of a PostgreSQL that was built from source."""
    before = sorted(copied.extension_dir.iterdir())
    where = ("--force", "--pg-config", str(copied.pg_config))
    message = refused("module", "uninstall", "--module", name, *where)
    assert f"{name} is no module of pgtare: it has pgtare, wait_event_timing" in message
    assert sorted(copied.extension_dir.iterdir()) == before


def test_install_and_uninstall_of_everything(
    built: dict[str, Path], copied: Binaries, own_place: Path
) -> None:
    where = ("--pg-config", copied.pg_config)
    own_place.mkdir()
    (own_place / directories.MARK).touch()
    for name, library in built.items():  # to build them here takes a minute, and other tests do
        key = build.build_key(copied, name)[:16]
        shutil.copytree(library.parent, own_place / "modules" / f"{name}-{key}")
    for name in modules.PRELOAD_ORDER:  # what other tests have installed
        in_process("module", "uninstall", "--module", name, "--force", *where)
    assert not list(copied.pkglibdir.glob("sql_trace*"))
    done = in_process("module", "install", *where)
    assert done.returncode == 0, done.stderr
    line = "shared_preload_libraries = 'pgtare, wait_event_timing, sql_trace'"
    assert line in done.stdout.splitlines()
    with Cluster(copied) as cluster:
        with cluster.connect() as connection:
            names = "pg_stat_statements, pgtare, wait_event_timing, sql_trace"
            connection.execute(f"ALTER SYSTEM SET shared_preload_libraries = {names}".encode())
        cluster.restart()
        with cluster.connect() as connection:
            for name in modules.PRELOAD_ORDER:
                connection.execute(f"CREATE EXTENSION {name}".encode())
            connection.execute("ALTER SYSTEM SET wait_event_timing.capture = 'stats'")
            connection.execute("ALTER SYSTEM SET work_mem = '5MB'")
        everything = ("uninstall", "--dsn", cluster.dsn(), *where)
        listed = in_process(*everything)
        assert (listed.returncode, listed.stdout.count("extension ")) == (0, 3)
        assert "setting wait_event_timing.capture in postgresql.auto.conf" in listed.stdout
        assert "nothing was removed" in listed.stdout
        # the libraries are loaded until a restart, and this server is one of pgtare's own
        first = in_process(*everything, "--yes")
        assert first.returncode == 1
        assert first.stdout.count("removed: extension") == 3
        assert "left: setting wait_event_timing.capture in postgresql.auto.conf" in first.stdout
        assert first.stdout.count("is still in use") == 3
        assert f"left: {own_place} (private servers, builds): a private server" in first.stdout
        assert (copied.pkglibdir / "sql_trace.so").exists()
        cluster.restart()
        second = in_process(*everything, "--yes")
        assert second.stdout.count("removed: ") == 4, second.stdout
        with cluster.connect() as connection:
            assert connection.execute("SHOW shared_preload_libraries").fetchone() == (
                "pg_stat_statements",
            )
            assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)
        assert not list(copied.pkglibdir.glob("sql_trace*"))
    last = in_process("uninstall", "--yes")
    assert (last.returncode, own_place.exists()) == (0, False)
    assert in_process("uninstall").stdout == "nothing of pgtare is left here\n"


@pytest.mark.slow
def test_uninstall_wants_the_server_of_the_same_installation(
    wheel: Binaries, copied: Binaries, own_place: Path, source: Path
) -> None:
    """And notices that another one of it has the module loaded."""
    modules.install(copied, "tiny", source=source)
    with (
        Cluster(wheel) as other,
        pytest.raises(UsageError, match="name the server which belongs to this --pg-config"),
    ):
        modules.uninstall(copied, "tiny", other.dsn())
    with Cluster(copied) as asked, Cluster(copied, preload=["tiny"]) as loading:
        assert loading.postmaster_pid in loaded_by(copied.pkglibdir / "tiny.so")
        with pytest.raises(UsageError, match=r"loaded by process \d+"):
            modules.uninstall(copied, "tiny", asked.dsn())


@pytest.mark.slow
def test_uninstall_without_the_right_to_look_is_refused(
    copied: Binaries, own_place: Path, source: Path
) -> None:
    modules.install(copied, "tiny", source=source)
    with Cluster(copied) as cluster:
        with cluster.connect() as connection:
            connection.execute("CREATE ROLE plain LOGIN")
        dsn = cluster.dsn().replace("user=postgres", "user=plain")
        with pytest.raises(UsageError, match=r"cannot find out .*permission denied.*superuser"):
            modules.uninstall(copied, "tiny", dsn)
    with pytest.raises(UsageError, match="cannot find out"):
        modules.uninstall(copied, "tiny", "host=/nonexistent")


def test_source_that_does_not_compile(wheel: Binaries, own_place: Path, source: Path) -> None:
    set_answer(source, 42)
    (source / "tiny" / "tiny.c").write_text("int broken(void) { return nothing; }\n")
    with pytest.raises(UsageError, match=r"(?s)tiny could not be built for PostgreSQL 18.*nothing"):
        build.build_cached(wheel, "tiny", source)
    assert [p.name for p in (own_place / "modules").iterdir()] == [".lock"]
    with pytest.raises(UsageError, match="no server module 'absent'"):
        build.build_cached(wheel, "absent", source)


@pytest.mark.parametrize(("program", "package"), [("make", "package make"), ("gcc", "gcc")])
def test_missing_tool_names_its_package(
    wheel: Binaries,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    program: str,
    package: str,
) -> None:
    def which(name: str) -> str | None:
        missing = {"make"} if program == "make" else {"gcc", "cc", "clang"}
        return None if name in missing else f"/usr/bin/{name}"

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", which)
        with pytest.raises(UsageError, match=package):
            build.require_toolchain(wheel)
    bare = dataclasses.replace(wheel, includedir_server=tmp_path)
    with pytest.raises(UsageError, match=r"postgresql-server-dev-18; RPM: postgresql18-devel"):
        build.require_toolchain(bare)
    spaced = dataclasses.replace(wheel, pg_config=Path("/opt/my pg/bin/pg_config"))
    with pytest.raises(UsageError, match="make cannot handle blanks"):
        build.require_toolchain(spaced)


def test_build_stopped_half_way_leaves_nothing_that_counts(
    wheel: Binaries, own_place: Path, source: Path
) -> None:
    build.build_cached(wheel, "tiny", source)
    left = own_place / "modules" / ".build-left"
    left.mkdir()
    assert build.build_cached(wheel, "tiny", source).so_path.exists()
    set_answer(source, 2)
    build.build_cached(wheel, "tiny", source)
    assert not left.exists()


def test_uninstall_keeps_what_says_how_to_put_a_server_back(own_place: Path) -> None:
    path = own_place / "restore" / "server-1-2.txt"
    path.parent.mkdir(parents=True)
    (own_place / directories.MARK).touch()
    path.write_text("ALTER SYSTEM RESET track_io_timing;")
    done = in_process("uninstall", "--yes")
    assert done.returncode == 1
    assert "has what a weighing did not put back" in done.stdout
    assert path.exists()
    path.unlink()
    (own_place / "mine.txt").write_text("not of pgtare")
    (own_place / "modules").mkdir()
    done = in_process("uninstall", "--yes")
    assert done.returncode == 1
    assert "mine.txt in it is not of pgtare" in done.stdout
    assert {path.name for path in own_place.iterdir()} == {"mine.txt", directories.MARK}
    (own_place / "mine.txt").unlink()
    assert in_process("uninstall", "--yes").returncode == 0
    assert not own_place.exists()


def test_uninstall_goes_on_after_a_database_that_cannot_be_entered(
    wheel: Binaries, own_place: Path
) -> None:
    with Cluster(wheel) as cluster:
        with cluster.connect(autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET pgtare.enabled = off")
            for name in ("closed", "dropped"):
                connection.execute(f"CREATE DATABASE {name}".encode())
            connection.execute("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'dropped'")
        rules = cluster.directory / "pg_hba.conf"
        rules.write_text(f"local closed all reject\n{rules.read_text()}")
        cluster.reload()
        listed = in_process("uninstall", "--dsn", cluster.dsn())
        done = in_process("uninstall", "--dsn", cluster.dsn(), "--yes")
    assert (listed.returncode, done.returncode) == (1, 1)
    assert "database closed could not be looked at: cannot connect" in listed.stdout
    assert "let the role of --dsn connect" in listed.stderr
    assert "dropped" not in listed.stdout
    assert "removed: setting pgtare.enabled" in done.stdout


@pytest.mark.timeout(180)
def test_what_is_built_is_there_while_something_else_is_being_built(
    wheel: Binaries, own_place: Path, source: Path
) -> None:
    built = build.build_cached(wheel, "tiny", source)
    with directories.locked(own_place / "modules" / ".lock"):
        assert build.build_cached(wheel, "tiny", source) == built


@pytest.mark.slow
def test_uninstall_names_the_lines_that_only_their_owner_may_change(
    copied: Binaries, own_place: Path
) -> None:
    with Cluster(copied) as cluster:
        conf = cluster.data_directory / "postgresql.conf"
        conf.write_text(
            conf.read_text()
            + "session_preload_libraries = 'auto_explain'\npgtare.ring_memory = 8\n"
        )
        line = len(conf.read_text().splitlines())
        everything = ("uninstall", "--dsn", cluster.dsn())
        listed = in_process(*everything)
        assert f"pgtare.ring_memory in {conf}, line {line}" in listed.stdout
        assert "session_preload_libraries" not in listed.stdout
        done = in_process(*everything, "--yes")
        assert (done.returncode, conf.read_text().count("pgtare.ring_memory")) == (1, 1)
        assert "take it out of that file yourself" in done.stdout
