"""The C of the server modules does nothing that C leaves undefined, as UBSan finds it at work."""

import shutil
import subprocess
from collections.abc import Iterator

import psycopg
import pytest

import pgtare
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached, source_dir, sql_without_extension
from pgtare.postgres.cluster import Cluster
from tests import trials
from tests.servers import TRACING, run_program
from tests.sessions import bare_session, rows, set_search_path

#: Slow, as all modules are compiled anew; a part of the gate.
pytestmark = [
    pytest.mark.server,
    pytest.mark.debian,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

MODULES = ("wait_event_timing", "sql_trace", "pgtare")
#: Without optimisation: the compiler takes half the time, and leaves nothing out.
FLAGS = "PG_CFLAGS += -fsanitize=undefined -O0\nSHLIB_LINK += -fsanitize=undefined\n"
FOUND = "runtime error"

STATEMENTS = (
    "CREATE TABLE t AS SELECT i, repeat('x', i % 300) s FROM generate_series(1, 20000) i",
    "CREATE INDEX ON t (i)",
    "ANALYZE t",
    "SELECT count(*) FROM t a JOIN t b USING (i) WHERE a.s > 'x'",
    "SELECT i % 7, max(s) FROM t GROUP BY 1 ORDER BY 2",
    "UPDATE t SET s = s || i WHERE i < 500",
    "DO $$ DECLARE r record; BEGIN FOR r IN SELECT * FROM t LOOP NULL; END LOOP; END $$",
    "DO $$ BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END $$",
    "SET parallel_setup_cost = 0; SET min_parallel_table_scan_size = 0",
    "SELECT sum(i) FROM t",
    "SELECT pg_sleep(0.01)",
)


@pytest.fixture(scope="module")
def sanitized(debian15: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with all modules, built with the sanitizer; what it finds is in the log."""
    library = ["cc", "-print-file-name=libubsan.so"]
    if "/" not in subprocess.run(library, capture_output=True, text=True, check=True).stdout:
        pytest.skip("the compiler has no libubsan")
    source = tmp_path_factory.mktemp("sanitized") / "server"
    shutil.copytree(source_dir(), source, ignore=shutil.ignore_patterns("*.o", "*.so"))
    for module in MODULES:
        makefile = source / module / "Makefile"
        makefile.write_text(makefile.read_text().replace("include ", FLAGS + "include "))
    built = [build_cached(debian15, module, source) for module in MODULES]
    for one in built:
        assert b"__ubsan_handle" in one.so_path.read_bytes()
    recorder = {"sql_trace.recorder_memory": "1MB"}
    settings = {**TRACING, **recorder, "wait_event_timing.capture": "trace"}
    with Cluster(debian15, settings, preload=[one.library for one in built]) as cluster:
        with cluster.connect() as connection:
            for one in built:
                connection.execute(sql_without_extension(one, one.module).encode())
        yield cluster


def assert_defined(cluster: Cluster) -> None:
    lines = cluster.log_path.read_text(errors="replace").splitlines()
    assert [line for line in lines if FOUND in line] == []


def test_units(sanitized: Cluster) -> None:
    with trials.trial(sanitized) as running, bare_session(sanitized) as client:
        for _ in range(200):
            client.execute("SELECT 1")
        assert len(running.observed(client, 200)) == 200
        for statement in ("BEGIN", "SET LOCAL work_mem = '3MB'", "SELECT pg_sleep(0.01)"):
            client.execute(statement.encode())
        running.trials.stop()
        assert len(running.observed(client, 201)) == 201
    assert_defined(sanitized)


def test_traces(sanitized: Cluster) -> None:
    with sanitized.connect() as onlooker, psycopg.connect(sanitized.dsn(), autocommit=True) as app:
        pid = app.info.backend_pid
        set_search_path(onlooker)
        app.execute("SET sql_trace.level = 12; SET sql_trace.rowsource_sampling = 7")
        for statement in STATEMENTS:
            app.execute(statement.encode())
        with pytest.raises(psycopg.errors.DivisionByZero):
            app.execute("SELECT 1 / (i - 100) FROM t")
        with app.transaction(), app.cursor("some") as cursor:
            cursor.execute("SELECT * FROM t WHERE s <> %s", ("y",))
            assert len(cursor.fetchmany(10)) == 10
        for drain in ("sql_trace_drain", "wait_event_trace_drain"):
            assert rows(onlooker, f"SELECT * FROM {drain}(%s, 0)", pid)
    assert_defined(sanitized)


def test_views_and_versions(sanitized: Cluster) -> None:
    with sanitized.connect() as connection:
        found = rows(
            connection,
            "SELECT format('%%I.%%I', n.nspname, relname) FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = relnamespace WHERE n.nspname = ANY(%s) AND relkind = 'v'",
            list(MODULES),
        )
        assert len(found) > 5
        for (view,) in found:
            connection.execute(f"SELECT * FROM {view}".encode())
        for name in MODULES:  # each in a schema of its own
            function = "library_version" if name == "pgtare" else f"{name}_library_version"
            assert rows(connection, f"SELECT {name}.{function}()") == [(pgtare.__version__,)]
    assert_defined(sanitized)


def test_load(sanitized: Cluster) -> None:
    traced = sanitized.dsn(options="-c sql_trace.level=12")
    run_program(sanitized, "pgbench", "-q", "-i", traced)
    run_program(sanitized, "pgbench", "-n", "-c", 4, "-t", 200, "-M", "prepared", traced)
    recorded = "-c sql_trace.recorder=on -c wait_event_timing.capture=stats"
    for _ in range(2):
        to = sanitized.dsn(options=recorded)
        run_program(sanitized, "pgbench", "-n", "-c", 4, "-t", 200, "-M", "prepared", to)
    assert_defined(sanitized)
