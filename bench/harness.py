"""What the benchmarks share: a server with a load's database, and a line with the time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgtare.load import initialise
from pgtare.server.binaries import Binaries, from_wheel
from pgtare.server.cluster import Cluster


@dataclass(frozen=True)
class Server:
    """A running server with a pgbench database."""

    binaries: Binaries
    dsn: str


@contextlib.contextmanager
def server(
    libraries: Sequence[str], settings: Mapping[str, str], *, scale: int = 10
) -> Iterator[Server]:
    """The embedded PostgreSQL 18, with these libraries preloaded."""
    found = from_wheel()
    with Cluster(found, settings, libraries) as cluster:
        yield Server(found, initialise(found, cluster.dsn(), scale).dsn)


def say(text: str) -> None:
    """Print with the time, as a benchmark takes minutes."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
