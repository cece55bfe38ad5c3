"""Fixtures of the tests of the duet driver: two servers for it, and loads of a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.load import LoadSpec, Script
from pgtare.load.driver import build_driver
from pgtare.load.duet_plan import DuetTarget
from pgtare.server.binaries import Binaries
from pgtare.server.cluster import Cluster

TABLES = """
    CREATE TABLE seen (client int, x bigint, y bigint);
    CREATE TABLE counter AS SELECT 0 AS n;
"""


@pytest.fixture(scope="session")
def driver(wheel: Binaries) -> Path:
    return build_driver(wheel)


@pytest.fixture(scope="session")
def pair(wheel: Binaries) -> Iterator[list[Cluster]]:
    """Two clusters with the tables of these tests."""
    with Cluster(wheel) as one, Cluster(wheel) as two:
        for cluster in (one, two):
            with cluster.connect() as connection:
                connection.execute(TABLES)
        yield [one, two]


@pytest.fixture
def targets(pair: list[Cluster]) -> list[DuetTarget]:
    return [DuetTarget(cluster.dsn()) for cluster in pair]


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Make a load of a script's text."""

    def make(text: str, **options: Any) -> LoadSpec:
        path = tmp_path / "script.sql"
        path.write_text(text)
        return LoadSpec(scripts=(Script(path),), **{"protocol": "prepared", "seed": 5, **options})

    return make
