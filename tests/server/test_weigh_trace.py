"""Each level of a SQL trace can be weighed, and proves that it ran."""

from pathlib import Path

import pytest

from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable
from tests.server.weigh_tools import arm, pgtare, read

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

ARMS = (
    "sql_trace/calls", "sql_trace/values", "sql_trace/rows",
    "sql_trace_waits/waits", "sql_trace_waits/all", "sql_trace_waits/rows",
)  # fmt: skip


@pytest.mark.parametrize(
    "server", ["wheel", pytest.param("debian15", marks=[pytest.mark.debian, pytest.mark.slow])]
)
def test_every_level_proves_itself(
    request: pytest.FixtureRequest, server: str, tmp_path: Path
) -> None:
    binaries: Binaries = request.getfixturevalue(server)
    script = tmp_path / "counted.sql"
    script.write_text("SELECT count(*) FROM pg_am;\n")
    modules = [loadable(binaries, name) for name in ("pgtare", "wait_event_timing", "sql_trace")]
    with Cluster(binaries, {}, [module.library for module in modules]) as cluster:
        with cluster.connect() as connection:
            for module in modules:
                connection.execute(module.create_sql.encode())
        done = pgtare(
            "weigh", *ARMS, "--allow", "sql_trace", "--allow", "sql_trace_waits",
            "--dsn", cluster.dsn(), "--script", script, "--clients", "1", "--duration", "4",
            "--json", tmp_path / "w.json",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = read(tmp_path / "w.json")
    states = {}
    for name in ARMS:
        found = arm(result, name.removesuffix("/calls").removesuffix("/waits"))
        states[name] = found["proof"]["state"], found["proof"]["evidence"]
    assert {state for state, _ in states.values()} == {"active"}, states
