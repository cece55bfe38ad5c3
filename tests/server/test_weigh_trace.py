"""Each level of a SQL trace can be weighed, and proves that it ran."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from pgtare.postgres.settings import Value
from tests.commands import arm, pgtare, read, words
from tests.versions.servers import DEBIAN15

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

ARMS = (
    "sql_trace/calls",
    "sql_trace/values",
    "sql_trace/rows",
    "sql_trace_waits/waits",
    "sql_trace_waits/all",
    "sql_trace_waits/rows",
    "sql_trace_recorder/all",
    "sql_trace_recorder/calls",
)

#: The first variant of an instrument goes by its name alone.
_DEFAULTS = {
    "sql_trace/calls": "sql_trace",
    "sql_trace_waits/waits": "sql_trace_waits",
    "sql_trace_recorder/all": "sql_trace_recorder",
}


def check_proof(directory: Path, arms: Sequence[str], unit: str, *server: str | Path) -> None:
    """Weigh levels on a server, and see what each of them brings as proof."""
    script = directory / "counted.sql"
    script.write_text("SELECT count(*) FROM pg_am;\n")
    done = pgtare(
        "weigh",
        *arms,
        *words("--allow sql_trace --allow sql_trace_waits --allow sql_trace_recorder"),
        *server,
        *words("--unit {} --script {} --clients 1 --duration 4", unit, script),
        *words("--output {}", directory / "w.json"),
    )
    assert done.returncode == 0, done.stderr
    result = read(directory / "w.json")
    states = {}
    for name in arms:
        found = arm(result, _DEFAULTS.get(name, name))
        states[name] = found["proof"]["state"], found["proof"]["evidence"]
    assert {state for state, _ in states.values()} == {"active"}, states


@pytest.mark.slow
def test_every_level_proves_itself(wheel: Binaries, tmp_path: Path) -> None:
    """On a running server that has the extensions."""
    modules = [loadable(wheel, name) for name in ("pgtare", "wait_event_timing", "sql_trace")]
    memory: dict[str, Value] = {"sql_trace.recorder_memory": "16MB"}
    with Cluster(wheel, memory, [module.library for module in modules]) as cluster:
        with cluster.connect() as connection:
            for module in modules:
                connection.execute(module.create_sql.encode())
        check_proof(tmp_path, ARMS, "run", "--dsn", cluster.dsn())
        # a level that lasts writes as little as one record a request
        check_proof(tmp_path, ["sql_trace_recorder/all"], "slice", "--dsn", cluster.dsn())


@pytest.mark.slow
@pytest.mark.debian
def test_installation_without_the_modules(debian15: Binaries, tmp_path: Path) -> None:
    """A private server of it is given them: there are the functions, and no extension."""
    check_proof(tmp_path, ARMS, "run", "--pg-config", DEBIAN15)
