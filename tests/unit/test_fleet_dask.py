"""A fleet on a real Dask cluster: the same document, also if a worker is killed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.weighing.fleet.reestimation import Reestimation, Workers, report
from tests.commands import failed, pgtare
from tests.dask_cluster import DaskCluster
from tests.fleet_data import MadeServer, write_fleet

pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVERS = [MadeServer(f"db{i}", (1.05, 1.0), units=6_000) for i in range(10)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet") / "monday"
    write_fleet(path, SERVERS)
    return path


@pytest.fixture(scope="module")
def alone(fleet: Path) -> str:
    """The document of one process."""
    return report(str(fleet)).to_json()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path_factory.mktemp("dask"), workers=3) as running:
        yield running


def test_the_same_document_although_a_worker_is_killed(
    fleet: Path, alone: str, cluster: DaskCluster
) -> None:
    seen: list[tuple[int, str]] = []
    killed: list[int] = []

    def kill() -> None:
        killed.append(cluster.kill_a_busy_worker())

    killer = threading.Thread(target=kill)

    def progress(done: int, words: str) -> None:
        seen.append((done, words))
        if not killer.ident:
            killer.start()

    found = Reestimation(str(fleet)).run(Workers(scheduler=cluster.address), progress)
    killer.join(60)
    assert found.to_json() == alone
    assert killed
    assert killed[0] > 0
    with cluster.client() as client:
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2
    assert seen[0] == (0, "3 workers")


def test_the_command_says_the_same(fleet: Path, alone: str, cluster: DaskCluster) -> None:
    done = pgtare("fleet", "report", fleet, "--json", "--scheduler", cluster.address)
    assert done.returncode == 0, done.stderr
    assert done.stdout == alone + "\n"


def test_damaged_data_are_left_out_there_as_well(
    fleet: Path, tmp_path: Path, cluster: DaskCluster
) -> None:
    copy = Path(shutil.copytree(fleet, tmp_path / "copy"))
    path = copy / "servers" / "db3" / "observations.parquet"
    path.write_bytes(path.read_bytes()[:1000])
    found = report(str(copy), workers=Workers(scheduler=cluster.address))
    assert found.to_json() == report(str(copy)).to_json()
    assert [one.server for one in found.left_out] == ["db3"]


def test_a_cluster_without_workers(fleet: Path, tmp_path: Path) -> None:
    with DaskCluster(tmp_path / "dask", workers=0) as empty:
        done = pgtare("fleet", "report", fleet, "--scheduler", empty.address)
        assert "has no worker" in failed(done, 2)
