"""Steps that are still to be done on a server: a list of libraries keeps what it has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pgtare.observing.doctor.collect import preload
from pgtare.postgres import cluster as cluster_module
from pgtare.postgres import leftovers, modules
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.module_setup import remaining_steps
from pgtare.weighing.instruments.catalogue import load_catalogue
from pgtare.weighing.instruments.requirements import availability, read_facts

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


def test_a_path_with_a_comma_stays_one_library(wheel: Binaries, open_directory: Path) -> None:
    directory = open_directory / "a,b"
    directory.mkdir()
    shutil.copy(wheel.pkglibdir / "auto_explain.so", directory)
    with (
        Cluster(wheel, preload=[f"{directory}/auto_explain"]) as cluster,
        cluster.connect() as conn,
    ):
        steps = remaining_steps(conn, ["sql_trace"], create=False)
        row = conn.execute("SHOW shared_preload_libraries").fetchone()
    assert row is not None
    kept = f"ALTER SYSTEM SET shared_preload_libraries = '{directory}/auto_explain', "
    assert f"{kept}'sql_trace';" in steps[-1]
    assert f"{kept}'pg_stat_statements';" in preload({"shared_preload_libraries": row[0]}, {})


def test_a_list_on_the_command_line_is_changed_there(
    wheel: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules.loadable(wheel, "sql_trace")
    start = cluster_module.start_program

    def with_list(program: Path, arguments: list[str], *others: Any) -> Any:
        given = "shared_preload_libraries=auto_explain, sql_trace"
        return start(program, [*arguments, "-c", given], *others)

    monkeypatch.setattr(cluster_module, "start_program", with_list)
    with Cluster(wheel) as cluster, cluster.connect() as conn:
        (step,) = remaining_steps(conn, ["pgtare"], create=False)[-1:]
        assert "add pgtare to -c shared_preload_libraries of the server's command line" in step
        missing = availability(load_catalogue()["pg_stat_statements"], read_facts(conn))
        assert "ALTER SYSTEM" not in f"{step} {missing[0]}"
        found = [each.what for each in leftovers.on_server(cluster.dsn())]
    assert found == ["shared_preload_libraries on the server's command line"]


def test_what_waits_for_the_restart_stays_in_the_list(wheel: Binaries) -> None:
    with Cluster(wheel, preload=["auto_explain"]) as cluster, cluster.connect() as conn:
        conn.autocommit = True
        libraries = "'auto_explain', 'pg_stat_statements'"
        conn.execute(f"ALTER SYSTEM SET shared_preload_libraries = {libraries}".encode())
        for others in ([], ["pg_stat_statements"]):
            steps = remaining_steps(conn, ["sql_trace"], libraries=others, create=False)
            assert f"shared_preload_libraries = {libraries}, 'sql_trace';" in steps[-1]
        conn.execute("CREATE ROLE monitor IN ROLE pg_monitor")
        conn.execute("SET ROLE monitor")  # may see what is in force
        steps = remaining_steps(conn, ["sql_trace"], create=False)
        assert "shared_preload_libraries = 'auto_explain', 'sql_trace';" in steps[-1]
