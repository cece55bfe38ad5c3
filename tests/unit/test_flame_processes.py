"""Whose events are wanted, of processes that begin and end meanwhile."""

from __future__ import annotations

import os

import pytest

from pgtare.observing.flame import processes
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
