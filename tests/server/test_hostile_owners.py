"""Who owns a database gets no rights of the administrator who runs a command on it.

The owner chooses the search path of the database, and what its names mean: a function, an operator,
a view or a type of the owner's would run with the rights of whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value
from tests.commands import pgtare
from tests.loads import traffic

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

MODULES = ("wait_event_timing", "sql_trace", "pgtare")
TRAPPED = "trapped the administrator"
_GAIN = f"""
CREATE FUNCTION trap.gain() RETURNS bool LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF current_user = 'postgres' THEN RAISE LOG '{TRAPPED}'; END IF;
    RETURN true;
END $$
"""
_FUNCTIONS = {
    "pg_is_in_recovery": ("", "bool"),
    "pg_reload_conf": ("", "bool"),
    "pg_backend_pid": ("", "int4"),
    "version": ("", "text"),
    "now": ("", "timestamptz"),
    "clock_timestamp": ("", "timestamptz"),
    "lower": ("text", "text"),
    "quote_ident": ("text", "text"),
    "current_setting": ("text", "text"),
    "set_config": ("text, text, bool", "text"),
    "split_part": ("text, text, int4", "text"),
}
_COMPARED = ("text", "name", "oid", "int4", "int8", "bool", "timestamptz")
_MIXED = (("name", "text"), ("oid", "int4"), ("int8", "int4"), ("int4", "int8"))
_VIEWS = (
    *("pg_class", "pg_database", "pg_db_role_setting", "pg_extension", "pg_namespace", "pg_proc"),
    *("pg_roles", "pg_settings", "pg_file_settings", "pg_locks", "pg_prepared_xacts"),
    *("pg_stat_activity", "pg_stat_database", "pg_stat_statements", "pg_stat_statements_info"),
)
#: Next to the modules' functions, with arguments that fit the values which pgtare sends.
_OVERLOADS = (
    *("sql_trace_set(int2, int2)", "sql_trace_set(int4, int2)", "sql_trace_set(int4, text)"),
    *("sql_trace_drain(int2, int2)", "sql_trace_drain(int4, int2)", "sql_trace_drain(int4, int4)"),
    *("sql_trace_kept_file(int2)", "sql_trace_kept_file(int4)"),
    *("wait_event_timing_set(int2, text)", "wait_event_timing_set(int8, text)"),
    *("wait_event_trace_drain(int2, int2)", "wait_event_trace_drain(int4, int2)"),
    "wait_event_trace_drain(int4, int4)",
)


def _trap(owner: psycopg.Connection[tuple[object, ...]]) -> None:
    """Set all traps, as the owner of the database."""
    owner.execute("CREATE SCHEMA trap")
    owner.execute(_GAIN.encode())
    for name, (arguments, returned) in _FUNCTIONS.items():
        types = [f"pg_catalog.{each}" for each in arguments.split(", ") if each]
        values = ", ".join(f"${n}" for n in range(1, len(types) + 1))
        owner.execute(
            f"CREATE FUNCTION trap.{name}({', '.join(types)}) RETURNS pg_catalog.{returned} "
            f"LANGUAGE sql AS 'SELECT trap.gain(); SELECT pg_catalog.{name}({values})'".encode()
        )
    for left, right in (*((each, each) for each in _COMPARED), *_MIXED):
        for n, sign in enumerate(("=", "<>", "<", ">", "<=", ">=")):
            _operator(owner, f"compare_{n}", sign, left, right, "bool")
    for left, right in (("text", "text"), ("name", "text")):
        _operator(owner, "is_like", "~~", left, right, "bool")
        _operator(owner, "joined", "||", left, right, "text")
    for left, right in (("int8", "numeric"), ("int4", "float8")):
        _operator(owner, "sum", "+", left, right, right)
        _operator(owner, "product", "*", left, right, right)
    for name in _VIEWS:
        schema = "public" if "statements" in name else "pg_catalog"
        owner.execute(
            f"CREATE VIEW trap.{name} AS SELECT * FROM {schema}.{name} WHERE trap.gain()".encode()
        )
    for name in _OVERLOADS:
        body = "RETURNS bool LANGUAGE sql AS 'SELECT trap.gain()'"
        owner.execute(f"CREATE FUNCTION public.{name} {body}".encode())
    for name in ("text", "name"):
        owner.execute(
            f"CREATE DOMAIN trap.{name} AS pg_catalog.{name} CHECK (trap.gain())".encode()
        )
    owner.execute("ALTER DATABASE app SET search_path = trap, pg_catalog, public")


def _operator(
    owner: psycopg.Connection[tuple[object, ...]],
    name: str,
    sign: str,
    left: str,
    right: str,
    returned: str,
) -> None:
    types = f"pg_catalog.{left}, pg_catalog.{right}"
    both = f"$1 OPERATOR(pg_catalog.{sign}) $2"
    owner.execute(
        f"CREATE FUNCTION trap.{name}({types}) RETURNS pg_catalog.{returned} LANGUAGE sql AS "
        f"'SELECT trap.gain(); SELECT ({both})::pg_catalog.{returned}'".encode()
    )
    owner.execute(
        f"CREATE OPERATOR trap.{sign} (leftarg = pg_catalog.{left}, "
        f"rightarg = pg_catalog.{right}, function = trap.{name})".encode()
    )


@pytest.fixture(scope="module")
def owned(wheel: Binaries) -> Iterator[Cluster]:
    """A server with all modules; tenant, without any right, owns a database with all traps."""
    loaded = [loadable(wheel, name) for name in MODULES]
    libraries = ["pg_stat_statements", *(one.library for one in loaded)]
    settings: dict[str, Value] = {
        "wait_event_timing.capture": "stats",
        "sql_trace.recorder_memory": "8MB",
        "sql_trace.recorder": True,  # so that there is something to grab
    }
    with Cluster(wheel, settings, libraries) as cluster:
        with cluster.connect(autocommit=True) as admin:
            admin.execute("CREATE ROLE tenant LOGIN")
            admin.execute("CREATE DATABASE app OWNER tenant")
        with cluster.connect("app", autocommit=True) as admin:
            for name in ("pg_stat_statements", *MODULES):
                admin.execute(f"CREATE EXTENSION {name}".encode())
        with psycopg.connect(cluster.dsn("app", user="tenant"), autocommit=True) as owner:
            _trap(owner)
        yield cluster


def trapped(cluster: Cluster) -> list[str]:
    """What the traps caught, with where they were asked for."""
    return [line for line in cluster.log_path.read_text().splitlines() if TRAPPED in line]


def test_the_traps_catch(owned: Cluster) -> None:
    """Whoever asks as usual is caught."""
    before = len(trapped(owned))
    with owned.connect("app") as admin:
        admin.execute("SELECT lower('A')")
        admin.execute("SELECT count(*) FROM pg_stat_statements")
        admin.execute("SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'x'::text LIMIT 1")
        admin.execute("SELECT 1::bigint + 1::numeric, 'x'::text")
    assert len(trapped(owned)) >= before + 4


@pytest.mark.parametrize(
    "command",
    [
        "weigh track_io_timing pg_stat_statements --dry-run --dsn {}",
        pytest.param(
            "weigh pg_stat_statements track_io_timing --duration 2 --dsn {}",
            marks=pytest.mark.slow,
        ),
        "weigh pg_stat_statements --outside --duration 2 --dsn {}",
        pytest.param(
            "weigh --arm \"x: search_path='trap, pg_catalog'\" --outside --duration 2 --dsn {}",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "weigh --reload 'x: track_io_timing = on' --dry-run --dsn {}", marks=pytest.mark.slow
        ),
        pytest.param("instruments --dsn {}", marks=pytest.mark.slow),
        pytest.param("status --dsn {}", marks=pytest.mark.slow),
        "stop --dsn {}",
        "doctor --dsn {}",
        "waits top --iterations 1 --dsn {}",
        "trace record {out}/r --duration 1s --dsn {} --reserve 0",
        pytest.param("trace grab {out}/g --dsn {} --reserve 0", marks=pytest.mark.slow),
        pytest.param("trace status --dsn {}", marks=pytest.mark.slow),
        pytest.param("trace stop --dsn {}", marks=pytest.mark.slow),
        pytest.param("trace kept --dsn {}", marks=pytest.mark.slow),
        "support --dsn {}",
        pytest.param("module list --dsn {}", marks=pytest.mark.slow),
        "uninstall --dsn {}",
    ],
    ids=lambda command: " ".join(command.replace("{out}/", "").split()[:2]),
)
def test_an_administrator_is_not_caught(owned: Cluster, tmp_path: Path, command: str) -> None:
    before = len(trapped(owned))
    words = command.replace("{out}", str(tmp_path))
    with traffic(owned.dsn("app", user="tenant"), sessions=2):
        done = pgtare(words, owned.dsn("app"))
    assert trapped(owned)[before:] == [], done
    assert done.returncode in (0, 10, 11), (done.returncode, done.stderr)
