"""New servers of tests: in memory, as copies of what initdb made once, in an eighth of the time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtare.postgres import registry
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.directories import DIRECTORY_VARIABLE, own_directory
from tests.places import files_directory, memory_directory

_INITDB = Cluster._initdb
_ON_DISK = registry.servers_directory


@contextlib.contextmanager
def made_by_initdb() -> Iterator[None]:
    """New servers get a system identifier of their own here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "_initdb", _INITDB)
        yield


@contextlib.contextmanager
def on_disk() -> Iterator[None]:
    """New servers have their files on the disk here: for tests of what a sync costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "servers_directory", _ON_DISK)
        yield


@contextlib.contextmanager
def servers_in_memory() -> Iterator[None]:
    """New servers of this process have their files in memory, if there is room.

    Those of a test that chose a place of its own for pgtare's files stay there.
    """
    memory = memory_directory()
    usual = os.environ.get(DIRECTORY_VARIABLE)

    def directory() -> Path:
        if memory is None or os.environ.get(DIRECTORY_VARIABLE) != usual:
            return _ON_DISK()
        return own_directory(memory / "servers", 0o711)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "servers_directory", directory)
        yield


@contextlib.contextmanager
def copied_servers() -> Iterator[None]:
    """Let initdb of each installation run once; each later new server is a copy of its files.

    All of an installation then have one system identifier, as a primary and its standbys have,
    unless they are `made_by_initdb`. A server with a password is made by initdb each time.
    """
    made: dict[tuple[Path, str], Path] = {}
    directory = Path(tempfile.mkdtemp(prefix="initdb-", dir=files_directory()))
    directory.chmod(0o755)

    def make(cluster: Cluster) -> None:
        account = cluster._account
        key = (cluster.binaries.initdb, account.name)
        if cluster._password is not None:
            _INITDB(cluster)
        elif key in made:
            source, target = f"{made[key]}/.", cluster.data_directory
            subprocess.run(["cp", "-a", source, target], check=True, **account.run_as)
        else:
            _INITDB(cluster)
            kept = directory / str(len(made))
            subprocess.run(["cp", "-a", cluster.data_directory, kept], check=True)
            made[key] = kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "_initdb", make)
        try:
            yield
        finally:
            shutil.rmtree(directory)
