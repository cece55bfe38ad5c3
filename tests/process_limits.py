"""Limits of a running server process, set and lifted again."""

import subprocess

import psutil

from pgtare.postgres.cluster import Cluster


def limit_files(cluster: Cluster, pid: int, mebibytes: int | None) -> None:
    """Let a process write no larger file, dynamic shared memory among them; None: no limit."""
    _limit(cluster, pid, "fsize", None if mebibytes is None else mebibytes << 20)


def limit_open_files(cluster: Cluster, pid: int, number: int) -> None:
    """Let a process open no file whose descriptor is that number or more."""
    _limit(cluster, pid, "nofile", number)


def limit_memory(cluster: Cluster, pid: int, more: int | None) -> None:
    """Let a process map at most these bytes more than now; None: no limit."""
    has = psutil.Process(pid).memory_info().vms
    _limit(cluster, pid, "as", None if more is None else has + more)


def _limit(cluster: Cluster, pid: int, what: str, size: int | None) -> None:
    # The soft limit only: it can be lifted again. By the server's account, since root of a
    # container may not limit others' processes; so not psutil, which would act as ourselves.
    command = ["prlimit", "--pid", str(pid), f"--{what}={'unlimited' if size is None else size}:"]
    subprocess.run(command, check=True, **cluster.run_as)
