"""A small /dev/shm of one's own, as a container has it."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from pgtare.postgres.cluster import Cluster
from tests.new_servers import made_by_initdb, on_disk
from tests.own_mounts import own_mounts


@dataclass(frozen=True)
class Volume:
    """The file system; it can be looked at from anywhere."""

    directory: int

    @property
    def used(self) -> int:
        found = os.fstatvfs(self.directory)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    @contextlib.contextmanager
    def filled(self, size: int) -> Iterator[None]:
        """Somebody else's file of that size is on it."""
        file = os.open("filler", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self.directory)
        try:
            os.posix_fallocate(file, 0, size)
            yield
        finally:
            os.close(file)
            os.unlink("filler", dir_fd=self.directory)


@contextlib.contextmanager
def small_shm(mebibytes: int) -> Iterator[Volume]:
    """This thread, and the servers that it starts, have a /dev/shm of that size; needs root.

    The files of these servers are on the disk, as those of other tests are in the usual /dev/shm.
    """
    with own_mounts() as mount:
        mount("pgtare-test", "/dev/shm", "tmpfs", 0, f"size={mebibytes}m,mode=1777")  # noqa: S108
        volume = os.open("/dev/shm", os.O_RDONLY | os.O_DIRECTORY)  # noqa: S108
        try:
            with on_disk(), made_by_initdb():
                yield Volume(volume)
        finally:
            os.close(volume)


def hash_table(cluster: Cluster) -> None:
    """Make the table for `hash_join`."""
    with cluster.connect() as connection:
        connection.execute(
            "CREATE TABLE half AS SELECT i, repeat('x', 40) AS filler "
            "FROM generate_series(1, 200000) AS i; ANALYZE half"
        )


def hash_join(cluster: Cluster, rows: int = 200000) -> None:
    """An application's parallel hash join; of 200,000 rows it takes some 20 MB of that memory."""
    with cluster.connect() as connection:
        connection.execute(
            "SET work_mem = '8MB'; SET max_parallel_workers_per_gather = 2; "
            "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; "
            "SET min_parallel_table_scan_size = 0; SET enable_mergejoin = off; "
            "SET enable_nestloop = off"
        )
        query = (
            "SELECT count(*), min(b.filler) FROM half a JOIN half b USING (i) "
            f"WHERE a.i <= {rows} AND b.i <= {rows}"
        )
        plan = connection.execute(f"EXPLAIN {query}".encode()).fetchall()
        assert any("Parallel Hash" in line for (line,) in plan), plan
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        assert row[0] == rows
