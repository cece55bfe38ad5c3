"""Whose events are wanted, of processes that begin and end meanwhile."""

from __future__ import annotations

import os

import pytest

from pgtare.observing.flame import frames, processes
from pgtare.observing.flame.processes import FlameTarget

#: A number that no process has.
ENDED = 4_194_304


@pytest.fixture
def server() -> FlameTarget:
    """We are the postmaster."""
    return FlameTarget([os.getpid()], os.getpid(), "this process")


def test_a_child_that_has_ended_is_known_by_its_birth(server: FlameTarget) -> None:
    server.forked(ENDED, ENDED, os.getpid())
    assert server.wants(ENDED)


def test_a_thread_belongs_to_its_process(server: FlameTarget) -> None:
    server.forked(ENDED + 1, os.getpid(), os.getpid())
    server.forked(ENDED + 2, ENDED, ENDED)
    assert server.wants(ENDED + 1)
    assert not server.wants(ENDED + 2, "sh")


def test_a_childs_child_is_none_of_the_servers(server: FlameTarget) -> None:
    """Also under a number that a session had before."""
    server.forked(ENDED, ENDED, os.getpid())
    server.forked(ENDED, ENDED, os.getpid() + 1)
    assert not server.wants(ENDED)
    assert not server.unknown


def test_the_postmasters_own_birth_changes_nothing(server: FlameTarget) -> None:
    server.forked(os.getpid(), os.getpid(), os.getppid())
    assert server.wants(os.getpid())


def test_what_is_left_out_stays_so(server: FlameTarget) -> None:
    server.leave_out(ENDED)
    server.forked(ENDED, ENDED, os.getpid())
    assert not server.wants(ENDED, "postgres", descends=True)
    assert not server.unknown


def test_what_nothing_is_known_of_is_wanted_if_perf_follows_nothing_else(
    server: FlameTarget,
) -> None:
    assert not server.wants(ENDED, "postgres")
    assert not server.wants(ENDED + 1, "cc1")
    assert server.unknown == 1
    assert not server.wants(ENDED + 2, "sh", descends=True)
    assert server.wants(ENDED + 3, "postgres", descends=True)
    assert server.wants(ENDED + 4, f":{ENDED + 4}", descends=True)


def test_the_server_knows_no_process_by_another_namespaces_number(
    server: FlameTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {os.getpid(): [os.getpid(), 1], ENDED: []}
    monkeypatch.setattr(processes, "_numbers", numbers.__getitem__)
    target = FlameTarget([os.getpid(), ENDED], os.getpid(), "a server in a container")
    assert target.by_server_pid() == {1: os.getpid()}
    assert target.unnumbered == 1


@pytest.mark.parametrize(
    ("title", "kind", "idle"),
    [
        ("checkpointer ", "checkpointer", True),
        ("main: archiver last was 000000010000000000000001", "archiver", True),
        ("walreceiver streaming 0/3000148", "walreceiver", True),
        ("walsender repl 10.0.0.1(4711) streaming 0/3000148", "walsender", True),
        ("startup recovering 000000010000000000000003", "startup process", False),
        ("slotsync worker ", "slotsync worker", True),
        ("autovacuum worker shop", "autovacuum worker", False),
        ("logical replication worker for subscription 16390", "apply worker", True),
        ("logical replication apply worker for subscription 16390", "apply worker", True),
        ("logical replication apply worker for subscription 16390 waiting", "apply worker", False),
        ("startup shop [local] idle", "backend", True),
        ("app shop 10.0.0.1(4711) UPDATE waiting", "backend", False),
    ],
)
def test_what_waits_throughout_is_idle_by_its_kind_and_title(
    monkeypatch: pytest.MonkeyPatch, title: str, kind: str, idle: bool
) -> None:
    files = {"cmdline": f"postgres: {title}\0", "stack": "[<0>] ep_poll+0x1/0x2\n"}
    monkeypatch.setattr(processes, "read", lambda pid, name: files[name])
    monkeypatch.setattr(processes, "sleeps", lambda pid: True)
    stack = processes.standing(1)
    assert stack is not None
    assert (stack[0], frames.is_idle(stack)) == (kind, idle)
