"""Raw data in a bucket of a real S3 server: the same report, and what goes wrong is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from pgtare.weighing.weigh import store
from tests.commands import failed, in_process
from tests.fleet_data import MadeServer, write_fleet
from tests.object_store import ObjectStore

s3fs = pytest.importorskip("s3fs")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SERVERS = [MadeServer(f"db {i}", (1.05, 1.0), {"site": "ab"[i % 2]}, units=600) for i in range(5)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet") / "monday"
    write_fleet(path, SERVERS)
    return path


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("store")) as served:
        yield served


@pytest.fixture(scope="module")
def address(object_store: ObjectStore, fleet: Path) -> str:
    return object_store.upload(fleet, "results", "2026/monday")


def run(*arguments: object, env: dict[str, str] | None = None) -> CompletedProcess[str]:
    """A command in this process, with what leads to a store in its environment."""
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        return in_process(*arguments)


def report(address: object, *more: object, env: dict[str, str] | None = None) -> str:
    done = run("fleet", "report", address, "--json", *more, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_document_as_from_a_directory(
    object_store: ObjectStore, address: str, fleet: Path
) -> None:
    assert report(address, env=object_store.environment) == report(fleet)


def test_processes_read_the_bucket_themselves(
    object_store: ObjectStore, address: str, fleet: Path
) -> None:
    env = object_store.environment
    assert report(address, "--processes", "2", env=env) == report(fleet)


def test_the_bill_of_a_bucket(object_store: ObjectStore, address: str, fleet: Path) -> None:
    done = run("bill", address, "--json", env=object_store.environment)
    assert done.returncode == 0, done.stderr
    found, local = json.loads(done.stdout), json.loads(run("bill", fleet, "--json").stdout)
    assert {**found, "weighed": []} == {**local, "weighed": []}


def test_a_half_copied_server_is_left_out_by_name(object_store: ObjectStore, fleet: Path) -> None:
    address = object_store.upload(fleet, "half", "monday")
    object_store.files().rm_file(f"half/monday/servers/db 1/{store.RESULT_FILE}")
    document = json.loads(report(address, env=object_store.environment))
    (gone,) = document["left_out"]
    assert gone["server"] == "db 1"
    assert gone["reason"].startswith("incomplete: result.json is missing")


def test_a_damaged_object_is_named_by_its_address(object_store: ObjectStore, fleet: Path) -> None:
    address = object_store.upload(fleet, "damaged", "monday")
    files, path = object_store.files(), f"damaged/monday/servers/db 2/{store.OBSERVATIONS_FILE}"
    data = files.cat_file(path)
    files.pipe_file(path, data[: len(data) // 2])
    (gone,) = json.loads(report(address, env=object_store.environment))["left_out"]
    assert gone["server"] == "db 2"
    assert f"s3://{path} is damaged" in gone["reason"]


def test_a_wrong_key_leaves_nothing_out_but_fails(object_store: ObjectStore, address: str) -> None:
    env = {**object_store.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    done = run("fleet", "report", address, env=env)
    assert "check the address and the keys" in failed(done, 1)


def test_a_bucket_that_is_not_there(object_store: ObjectStore) -> None:
    done = run("fleet", "report", "s3://nowhere/monday", env=object_store.environment)
    assert "nowhere/monday" in failed(done, done.returncode)
    assert done.returncode in (1, 2)


def test_a_store_that_does_not_answer_is_an_error(address: str) -> None:
    env = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_MAX_ATTEMPTS": "1",
    }
    assert "check the address and the keys" in failed(run("fleet", "report", address, env=env), 1)
