"""Servers for the doctor: one that evicts, as in the study, and the load that makes it."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pgtare.observing.doctor.examine import examine
from pgtare.observing.doctor.session import connected
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, PgbenchLoad, Script, find_pgbench
from pgtare.postgres.modules import loadable
from pgtare.weighing.ladder import scripts, study_file
from pgtare.weighing.ladder.study_sections import placed

STUDIES = Path(__file__).parents[1] / "studies"
SCHEMA = "kept apart"
INTERVAL_S = 0.7
#: Sessions report their transactions once a second.
REPORTED_S = 2.2
PLAIN = "plain"


@contextlib.contextmanager
def evicting(binaries: Binaries) -> Iterator[Cluster]:
    """A server as the study has it at max 100: pg_stat_statements in a schema of its own, and a
    database `old` that has version 1.8 of it."""
    module = loadable(binaries, "wait_event_timing")
    settings = {"pg_stat_statements.max": 100, "wait_event_timing.capture": "stats"}
    preload = ["pg_stat_statements", module.library]
    with Cluster(binaries, settings, preload) as cluster:
        with cluster.connect() as conn:
            conn.execute(f'CREATE SCHEMA "{SCHEMA}"')
            conn.execute(f'CREATE EXTENSION pg_stat_statements SCHEMA "{SCHEMA}"')
            conn.execute(module.create_sql.encode())
            conn.execute(f"CREATE ROLE {PLAIN} LOGIN")
            conn.execute(f'GRANT USAGE ON SCHEMA "{SCHEMA}" TO {PLAIN}')
            conn.execute("CREATE DATABASE old")
            conn.execute("CREATE DATABASE without")
        with cluster.connect("old") as conn:
            conn.execute("CREATE EXTENSION pg_stat_statements VERSION '1.8'")
        yield cluster


@contextlib.contextmanager
def storm(cluster: Cluster, clients: int = 4) -> Iterator[None]:
    """The study's load, of more statements than there are places."""
    study, _ = study_file.read(STUDIES / "pgss_eviction.toml")
    workload = study.the_workload("E1")
    assert workload.setup
    assert workload.script
    with tempfile.TemporaryDirectory() as folder:
        scripts.place(study.only(["E1"]), STUDIES, Path(folder))
        with cluster.connect() as conn:
            conn.execute(f'SET search_path = public, "{SCHEMA}"')
            conn.execute(Path(folder, placed(workload.setup, workload)).read_bytes())
        script = Script(Path(folder, placed(workload.script, workload)))
        spec = LoadSpec(scripts=(script,), clients=clients)
        with PgbenchLoad(find_pgbench(cluster.binaries), cluster.dsn(), spec) as load:
            load.wait_ready()
            yield


def doctor(dsn: str, status: int | None = None, interval_s: float = INTERVAL_S) -> dict[str, Any]:
    """The document of a look, and its exit status."""
    with connected(dsn) as session:
        found = examine(session, interval_s)
    report: dict[str, Any] = json.loads(found.to_json())
    assert found.exit_status == status or status is None, report["findings"]
    return report


def checks(report: dict[str, Any]) -> list[str]:
    """What was found, in order."""
    return [finding["kind"] for finding in report["findings"]]
