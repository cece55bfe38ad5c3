"""Each earlier version of an extension is updated to what a new one is, and each step is said."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pgtare
from pgtare.joins import flame_labels
from pgtare.server import modules
from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from pgtare.server.modules import PRELOAD_ORDER, build_cached, ensure_for_wheel
from pgtare.server.wait_counters import reader
from pgtare.server.wait_counters.model import Snapshot
from tests.commands import failed, in_process
from tests.installation_copies import copy_of
from tests.servers import crashes
from tests.sessions import Connection, bare_session, one
from tests.trials import trial

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]  # modules are built

#: Scripts of earlier versions, which the modules leave out of an installation.
SCRIPTS = Path(__file__).parent / "earlier_scripts"
FIRST = {name: "0.1" for name in PRELOAD_ORDER}
LAST = {name: "0.4.0" for name in PRELOAD_ORDER}
#: The last whose libraries do not tell their version.
SILENT = {"pgtare": "0.3", "wait_event_timing": "0.2", "sql_trace": "0.2"}
#: All of them, a database each.
EARLIER = (FIRST, {name: "0.2" for name in PRELOAD_ORDER}, {"pgtare": "0.3"}, LAST)
#: What the extension consists of: all that it is, and who may use it.
OBJECTS = """
WITH member AS (
  SELECT d.classid, d.objid, d.objsubid FROM pg_depend d
  JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
  WHERE d.deptype = 'e' AND e.extname = '{0}')
SELECT pg_describe_object(m.classid, m.objid, m.objsubid),
       pg_get_functiondef(p.oid), pg_get_viewdef(c.oid),
       coalesce(p.proowner, c.relowner)::regrole::text, coalesce(p.proacl, c.relacl)::text,
       (SELECT array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) ORDER BY attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid),
       obj_description(m.objid, m.classid::regclass::text), i.privtype, i.initprivs::text
FROM member m
LEFT JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
LEFT JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
LEFT JOIN pg_init_privs i ON (i.classoid, i.objoid, i.objsubid) = (m.classid, m.objid, m.objsubid)
UNION ALL
SELECT 'itself', extversion, extnamespace::regnamespace::text, extowner::regrole::text,
       extrelocatable::text, NULL, obj_description(oid, 'pg_extension'), NULL, NULL
FROM pg_extension WHERE extname = '{0}'
ORDER BY 1
"""
#: The function of each module whose row has more columns than in its first version.
INFO = {
    "pgtare": "pgtare.info()",
    "wait_event_timing": "wait_event_timing_info()",
    "sql_trace": "sql_trace_info()",
}
LIBRARY = {
    "pgtare": "pgtare.library_version()",
    "wait_event_timing": "wait_event_timing_library_version()",
    "sql_trace": "sql_trace_library_version()",
}
EXTENSION = "SELECT extversion FROM pg_extension WHERE extname = %s"


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


def add_earlier_scripts(binaries: Binaries) -> None:
    for script in SCRIPTS.iterdir():
        shutil.copy(script, binaries.extension_dir)


def objects(client: Connection, module: str) -> list[tuple[object, ...]]:
    return client.execute(OBJECTS.format(module).encode()).fetchall()


def test_there_is_a_script_of_each_earlier_version() -> None:
    kept = {tuple(script.stem.split("--")) for script in SCRIPTS.iterdir()}
    assert kept == {pair for versions in EARLIER for pair in versions.items()}


def test_each_earlier_extension_becomes_the_same_as_a_new_one(upgraded: Binaries) -> None:
    add_earlier_scripts(upgraded)
    settings = {"wait_event_timing.capture": "stats"}
    with Cluster(upgraded, settings, PRELOAD_ORDER) as cluster, bare_session(cluster) as new:
        for name in PRELOAD_ORDER:
            new.execute(f"CREATE EXTENSION {name}".encode())
            assert one(new, EXTENSION, name) == pgtare.__version__
            assert one(new, f"SELECT {LIBRARY[name]}") == pgtare.__version__
        for number, versions in enumerate(EARLIER):
            new.execute(f"CREATE DATABASE earlier{number}".encode())
            with bare_session(cluster, f"earlier{number}") as old:
                for name, version in versions.items():
                    check_update(old, new, name, version)
        with trial(cluster) as running, bare_session(cluster) as client:
            client.execute("SELECT 1")
            running.observed(client, 1)
        assert crashes(cluster) == []


def check_update(old: Connection, new: Connection, module: str, version: str) -> None:
    """The library works with the earlier functions, and they become as those of `new`."""
    old.execute(f"CREATE EXTENSION {module} VERSION '{version}'".encode())
    assert objects(old, module) != objects(new, module)
    old.execute(f"SELECT * FROM {INFO[module]}".encode()).fetchall()
    if module == "pgtare" and version < "0.3":
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="is older than"):
            old.execute("SELECT pgtare.trial_start('{}', '{}', '{0}', '{0}', 1, 1)")
    counted = "SELECT sum(waits) FROM pg_stat_wait_event_timing_system"
    if module == "wait_event_timing":
        old.execute("CREATE VIEW of_the_user AS " + counted)
        old.execute("GRANT EXECUTE ON FUNCTION wait_event_timing_reset(integer) TO pg_monitor")
        before = one(old, "TABLE of_the_user")
        earlier = reader.Reader(old, any_version=True).snapshot() if version > "0.1" else None
    old.execute(f"ALTER EXTENSION {module} UPDATE".encode())
    if module == "wait_event_timing":
        assert one(old, "TABLE of_the_user") >= before > 0
        if earlier is not None:
            check_counters_stayed(earlier, reader.Reader(old).snapshot())
        query = "SELECT has_function_privilege('pg_monitor', 'wait_event_timing_reset(int)', 'x')"
        assert one(old, query.replace("'x'", "'EXECUTE'"))
        old.execute("REVOKE ALL ON FUNCTION wait_event_timing_reset(integer) FROM pg_monitor")
    assert objects(old, module) == objects(new, module)
    assert one(old, f"SELECT {LIBRARY[module]}") == pgtare.__version__


def check_counters_stayed(before: Snapshot, after: Snapshot) -> None:
    """None fell, and the command reads those of an earlier extension as those of this one."""
    assert before.events
    assert (before.started, before.stats_reset) == (after.started, after.stats_reset)
    assert before.losses.resets == after.losses.resets
    waited = {(row.backend_type, row.event): row.counters for row in after.events}
    for row in before.events:
        assert waited[row.backend_type, row.event].waits >= row.counters.waits


def put_back(binaries: Binaries, module: str, before: dict[str, str]) -> None:
    """A library and a control file as of an earlier version, in the place of the installed ones."""
    words = {pgtare.__version__: before[module]}
    if before is SILENT:
        words = {
            f"{module}_library_version": f"{module}_library_v______",
            pgtare.__version__: "0.3.0",
        }
    if module == "wait_event_timing":
        words["_0_5"] = "_0__"
    replace(binaries.pkglibdir / f"{module}.so", words)
    replace(
        binaries.extension_dir / f"{module}.control",
        {f"'{pgtare.__version__}'": f"'{before[module]}'"},
    )


def replace(path: Path, words: dict[str, str]) -> None:
    """Change words in a file, which running servers may have mapped."""
    data = path.read_bytes()
    for word, other in words.items():
        assert word.encode() in data
        data = data.replace(word.encode(), other.encode())
    new = path.with_name("." + path.name)
    new.write_bytes(data)
    new.chmod(0o644)
    os.rename(new, path)


INSTALL = "run `pgtare module install --module {} --force --pg-config PATH` on the server's host"
RESTART = "restart the server"
UPDATE = "run ALTER EXTENSION {} UPDATE; in database postgres"
REFUSED = {
    "pgtare": [("weigh", "track_io_timing", "-d", "2"), ("status",)],
    "wait_event_timing": [("waits", "top", "--interval", "0.2s"), ("waits", "sessions")],
    "sql_trace": [("trace", "status"), ("trace", "record", "/nowhere/trace")],
}
#: Commands that end something, whatever the versions.
ENDING = {"pgtare": ("stop",), "sql_trace": ("trace", "stop")}


def check_said(cluster: Cluster, *steps: str, unsure: str | None = None) -> None:
    """Every command names the steps for its module, in one sentence.

    unsure: the module whose library may be the new one, as far as the commands can know.
    """
    dsn = ("--dsn", cluster.dsn())
    wanted = {name: ", then ".join(steps).replace("{}", name) for name in PRELOAD_ORDER}
    if unsure:
        wanted[unsure] = f"{RESTART}, unless that has been done, then {UPDATE}".format(unsure)
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
    listed = document("module", "list", *dsn)["modules"]
    assert {one["module"]: ", then ".join(one["next"]) for one in listed} == wanted
    assert wanted["sql_trace"] in in_process("module", "list", *dsn).stdout
    with flame_labels.labels(cluster.dsn(), None, trace=False) as joined:  # type: ignore[arg-type]
        pass
    assert wanted["wait_event_timing"] in joined.trouble
    unseen = document("doctor", "--interval", "1s", *dsn)["unseen"]
    remedies = {one["what"]: one["remedy"] for one in unseen}
    assert remedies["wait_event_timing"] == wanted["wait_event_timing"]


def check_well(cluster: Cluster) -> None:
    """No command has anything to say of versions."""
    dsn = ("--dsn", cluster.dsn())
    for command in (("status",), ("waits", "sessions"), ("trace", "status"), ("stop",)):
        done = in_process(*command, *dsn)
        assert (done.returncode, done.stderr) == (0, ""), command
    listed = document("module", "list", *dsn)
    assert listed["pgtare_version"] == pgtare.__version__
    for found in listed["modules"]:
        assert (found["problem"], found["next"]) == (None, [])
        assert {found["files"], found["library"], found["extension"]} == {pgtare.__version__}


def check_role(cluster: Cluster, role: str) -> None:
    """A role without privileges finds no mismatch, even where it may not call the functions."""
    listed = document("module", "list", "--dsn", cluster.dsn(user=role))
    assert [found["problem"] for found in listed["modules"]] == [None] * 3
    assert [found["extension"] for found in listed["modules"]] == [pgtare.__version__] * 3


def document(*command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(in_process(*command, "--json").stdout)
    return found


@pytest.mark.parametrize("before", [SILENT, LAST], ids=["silent", "last"])
def test_each_step_of_an_upgrade_is_said(upgraded: Binaries, before: dict[str, str]) -> None:
    """From the versions before to this one, and what is said if a library is put back."""
    add_earlier_scripts(upgraded)
    for name in PRELOAD_ORDER:
        put_back(upgraded, name, before)
    with Cluster(upgraded, {"wait_event_timing.capture": "stats"}, PRELOAD_ORDER) as cluster:
        with bare_session(cluster) as client:
            for name, version in before.items():
                client.execute(f"CREATE EXTENSION {name} VERSION '{version}'".encode())
        check_said(cluster, INSTALL, RESTART, UPDATE)
        for name in PRELOAD_ORDER:
            modules.install(upgraded, name, force=True)
        # on 18 the server tells the version of a library, whatever its functions
        unsure = None if upgraded.major >= 18 or before is LAST else "sql_trace"
        check_said(cluster, RESTART, UPDATE, unsure=unsure)
        with bare_session(cluster) as client:
            for name, version in before.items():
                with pytest.raises(psycopg.errors.RaiseException, match="Restart the server"):
                    client.execute(f"ALTER EXTENSION {name} UPDATE".encode())
                assert one(client, EXTENSION, name) == version
        cluster.restart()
        check_said(cluster, UPDATE, unsure=unsure)
        with bare_session(cluster) as client:
            client.execute("ALTER EXTENSION pgtare UPDATE")
            weigh = ("weigh", "wait_event_timing", "--dry-run", "--dsn", cluster.dsn())
            message = failed(in_process(*weigh), 2)
            assert UPDATE.replace("{}", "wait_event_timing") in message
            for name in ("wait_event_timing", "sql_trace"):
                client.execute(f"ALTER EXTENSION {name} UPDATE".encode())
            client.execute("CREATE ROLE anybody LOGIN")
            client.execute("CREATE ROLE observer LOGIN IN ROLE pg_read_all_stats")
        check_well(cluster)
        for role in ("anybody", "observer"):
            check_role(cluster, role)
        for name in PRELOAD_ORDER:
            put_back(upgraded, name, before)
        cluster.restart()
        check_said(cluster, INSTALL, RESTART)
        assert crashes(cluster) == []
    for name in PRELOAD_ORDER:
        modules.install(upgraded, name, force=True)


@pytest.mark.parametrize("module", PRELOAD_ORDER)
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
        assert symbol not in (SCRIPTS / f"{module}--{FIRST[module]}.sql").read_text()


def test_what_comes_after_a_replacement_is_said(wheel: Binaries) -> None:
    ensure_for_wheel(wheel)
    control = wheel.extension_dir / "pgtare.control"
    control.write_text(control.read_text() + "# of an earlier version\n")
    where = ("--module", "pgtare", "--pg-config", wheel.pg_config)
    done = in_process("module", "install", "--force", *where)
    assert done.returncode == 0, done.stderr
    assert "run ALTER EXTENSION pgtare UPDATE;" in done.stdout
    assert "CREATE EXTENSION" not in done.stdout
