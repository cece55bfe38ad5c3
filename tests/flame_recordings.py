"""Flame graphs recorded by the command, and what is in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgtare.observing.flame import perf
from pgtare.observing.flame.profile import Profile, parse_folded
from pgtare.postgres.cluster import Cluster
from tests.commands import pgtare

#: Frames in which nearly every wait lies, whatever it is for.
ROOTS = frozenset(
    {
        "backend",
        "PostgresMain",
        "exec_simple_query",
        "exec_execute_message",
        "PortalRun",
        "PortalRunMulti",
        "PortalRunSelect",
        "ProcessQuery",
        "standard_ExecutorRun",
    }
)


def needs_perf(mode: str = "off") -> None:
    """Skip, with the reason, where perf cannot do this here."""
    try:
        perf.find_perf()
        perf.check_allowed(mode, [os.getpid()])  # type: ignore[arg-type]
    except Exception as ex:
        pytest.skip(str(ex))


def flame(mode: str, cluster: Cluster, path: Path, *more: str, seconds: float = 2.0) -> Profile:
    """The folded stacks of a recording of the whole server, as written by the command."""
    done = pgtare(
        "flame {} --postmaster {} --duration {}s --folded {}",
        mode,
        cluster.postmaster_pid,
        seconds,
        path,
        *more,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return parse_folded(path)


def shares(profile: Profile, *names: str) -> list[float]:
    """The share of all time that passes through each of these frames."""
    whole = sum(profile.values())
    return [
        sum(ns for stack, ns in profile.items() if name in stack) / whole if whole else 0.0
        for name in names
    ]
