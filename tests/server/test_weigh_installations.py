"""Ways into a server: preloaded by sessions without a restart, and Debian's PostgreSQL 15."""

from __future__ import annotations

import re
import time
from pathlib import Path

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.commands import arm, in_process, pgtare, read, refused
from tests.installation_copies import copy_without_modules
from tests.loads import traffic
from tests.servers import weighable

pytestmark = pytest.mark.server


@pytest.mark.slow
def test_without_a_restart_new_sessions_take_part_and_old_ones_are_counted(
    wheel: Binaries, tmp_path: Path
) -> None:
    module = loadable(wheel)
    with Cluster(wheel) as server, psycopg.connect(server.dsn(), autocommit=True) as old:
        old.execute("SELECT 1")
        server.configure({"session_preload_libraries": "pgtare"})
        server.reload()
        with server.connect() as conn:
            conn.execute(module.create_sql.encode())
        with traffic(server.dsn(), sessions=2):
            time.sleep(0.5)
            old.execute("SELECT 1")
            done = pgtare(
                "weigh track_io_timing --dsn {} --duration 2 --output {}",
                server.dsn(),
                tmp_path / "w.json",
            )
        assert done.returncode == 0, done.stderr
        design = read(tmp_path / "w.json")["design"]
        assert design["sessions"] == 2
        assert design["sessions_outside"] == 1
        assert design["blocks"] > 10
        instruments = pgtare("instruments", "--dsn", server.dsn())
        assert "shared_preload_libraries" in instruments.stdout
        assert server.running


@pytest.mark.debian
@pytest.mark.slow
def test_running_debian_15(debian15: Binaries, tmp_path: Path) -> None:
    with weighable(debian15, others=["auto_explain"]) as server:
        with traffic(server.dsn(), sessions=2, query="SELECT count(*) FROM pg_class"):
            done = pgtare(
                "weigh auto_explain auto_explain/no_timing --dsn {} --duration 3 --output {}",
                server.dsn(),
                tmp_path / "w.json",
            )
        assert done.returncode == 0, done.stderr
        result = read(tmp_path / "w.json")
        for name in ("auto_explain", "auto_explain/no_timing"):
            assert arm(result, name)["proof"]["state"] == "active"


@pytest.mark.slow
@pytest.mark.debian
def test_debian_15_without_the_module_says_all_that_is_to_be_done(
    debian15: Binaries, open_directory: Path, tmp_path: Path
) -> None:
    with Cluster(copy_without_modules(debian15, open_directory / "postgres")) as server:
        steps = {
            "weigh pg_stat_statements --unit slice": (
                "pgtare",
                "'pg_stat_statements', 'pgtare'",
                "CREATE EXTENSION pgtare; CREATE EXTENSION pg_stat_statements;",
            ),
            "waits top": ("wait_event_timing", "'wait_event_timing'", "CREATE EXTENSION wait"),
            f"trace record {tmp_path}/new": (
                "",
                "'wait_event_timing', 'sql_trace'",
                "CREATE EXTENSION wait_event_timing; CREATE EXTENSION sql_trace;",
            ),
        }
        for command, (module, libraries, extensions) in steps.items():
            message = refused(*command.split(), "--dsn", server.dsn())
            option = f" --module {module}" if module else ""
            assert message.count("\n") == 1
            for step in (
                f"1. on the server's host run `pgtare module install{option} --pg-config PATH`;",
                f"2. run ALTER SYSTEM SET shared_preload_libraries = {libraries}; and restart",
                f"3. run {extensions}",
            ):
                assert step in message
        message = refused("weigh track_io_timing --load select-only --yes --dsn {}", server.dsn())
        assert "2. run ALTER SYSTEM" in message  # and no database was made for it
        planned = in_process("weigh track_io_timing --dry-run --dsn {}", server.dsn())
        assert planned.stdout.startswith("weighing from outside"), planned.stderr
        listed = in_process("module", "list", "--dsn", server.dsn()).stdout
        assert len(re.findall("not installed +not preloaded +not created", listed)) == 3
    message = refused("module list --dsn x --pg-config {}", debian15.pg_config)
    assert message.startswith("pgtare: --dsn and --pg-config: give one of them")


def test_a_standby_is_refused(wheel: Binaries) -> None:
    with weighable(wheel) as server:
        (server.data_directory / "standby.signal").touch(mode=0o644)
        server.restart()
        message = refused("weigh", "track_io_timing", "--dsn", server.dsn())
        assert "standby" in message
        assert "primary" in message


EVERY_ENTRY = (
    "pg_stat_statements/all",
    "pg_stat_statements/planning",
    "track_io_timing",
    "track_wal_io_timing",
    "track_functions",
    "compute_query_id",
    "auto_explain/no_timing",
    "auto_explain/sampled",
    "log_statement",
    "log_duration",
    "log_lock_waits",
)


def test_every_entry_of_the_catalogue_proves_itself(wheel: Binaries, tmp_path: Path) -> None:
    script = tmp_path / "mixed.sql"
    script.write_text(
        "\\set aid random(1, 100000)\n"
        "BEGIN;\n"
        "UPDATE pgbench_accounts SET abalance = pgtare_plus(abalance) WHERE aid = :aid;\n"
        "END;\n"
    )
    others = ["pg_stat_statements", "auto_explain"]
    with weighable(wheel, {"shared_buffers": "1MB"}, others) as server:
        with server.connect() as conn:
            conn.execute("CREATE EXTENSION pg_stat_statements")
            conn.execute(
                "CREATE FUNCTION pgtare_plus(i int) RETURNS int LANGUAGE plpgsql"
                " AS 'BEGIN RETURN i + 1; END'"
            )
            conn.execute(
                "CREATE TABLE pgbench_accounts AS SELECT g AS aid, 0 AS abalance,"
                " repeat('x', 200) AS filler FROM generate_series(1, 100000) g"
            )
            conn.execute("ALTER TABLE pgbench_accounts ADD PRIMARY KEY (aid)")
        allow = [a for name in ("log_statement", "log_duration") for a in ("--allow", name)]
        for seconds in (6, 30):  # a busy machine may have few transactions of an arm in six
            done = pgtare(
                "weigh --dsn {} --script {} --clients 2 --duration {} --output {}",
                server.dsn(),
                script,
                seconds,
                tmp_path / "w.json",
                *EVERY_ENTRY,
                *allow,
            )
            assert done.returncode == 0, done.stderr
            result = read(tmp_path / "w.json")
            states = {name: arm(result, name)["proof"] for name in EVERY_ENTRY}
            idle = {name for name, proof in states.items() if proof["state"] == "idle"}
            missing = {name: proof for name, proof in states.items() if proof["state"] == "missing"}
            if not missing and len(idle) == 1:
                break
    assert not missing
    assert idle == {"log_lock_waits"}, states


#: Of two servers, as Debian's pg_qualstats does not start next to pgaudit.
OF_OTHERS = {
    "pg_stat_kcache": (["pg_stat_statements", "pg_stat_kcache"], ["", "/planning"]),
    "pg_qualstats": (["pg_qualstats"], ["/sampled", "/all"]),
    "pgaudit": (["pgaudit"], ["/read", "/write", "/all"]),
}


@pytest.mark.slow
@pytest.mark.debian
@pytest.mark.parametrize("name", OF_OTHERS)
def test_extensions_of_others_prove_themselves(
    debian15: Binaries, tmp_path: Path, name: str
) -> None:
    libraries, variants = OF_OTHERS[name]
    if not (debian15.pkglibdir / f"{name}.so").exists():
        pytest.skip(f"{name} is not installed (Debian: apt-get install postgresql-15-...)")
    script = tmp_path / "script.sql"
    script.write_text(
        "\\set id random(1, 1000)\nBEGIN;\nSELECT what FROM orders WHERE id = :id;\n"
        "UPDATE orders SET what = what WHERE id = :id;\nEND;\n"
    )
    with weighable(debian15, {}, libraries) as server:
        with server.connect() as conn:
            for library in libraries:
                if library != "pgaudit":
                    conn.execute(f"CREATE EXTENSION {library}".encode())
            conn.execute("CREATE TABLE orders (id int PRIMARY KEY, what text)")
            conn.execute("INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 1000) n")
        done = pgtare(
            "weigh --dsn {} --script {} --duration 4 --output {} --allow pgaudit",
            server.dsn(),
            script,
            tmp_path / "w.json",
            *(name + variant for variant in variants),
        )
    assert done.returncode == 0, done.stderr
    proofs = {one["name"]: one["proof"] for one in read(tmp_path / "w.json")["arms"][2:]}
    assert len(proofs) == len(variants)
    assert {proof["state"] for proof in proofs.values()} == {"active"}, proofs
