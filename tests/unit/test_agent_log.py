"""The agent's log: a server cannot fill it."""

from __future__ import annotations

import sys

import pytest

from pgtare.keeping.agent.bounded_connection import _ITERATIONS
from pgtare.keeping.agent_log import AgentLog


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_long_reason_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    AgentLog().write("warning", "unseen", "shop", why="x" * 100_000)
    AgentLog().once("warning", "unseen", "shop", "x" * 100_000)
    assert all(len(line) < 1_200 for line in lines(capsys))


def test_reasons_that_take_turns_are_written_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    log = AgentLog()
    for _ in range(10):
        log.once("warning", "unseen", "shop", "no module")
        log.once("warning", "unseen", "shop", "no extension")
        log.forget("unseen", "shop")
    assert len(lines(capsys)) == 2


def test_reasons_without_end_are_not_all_written(capsys: pytest.CaptureFixture[str]) -> None:
    log = AgentLog()
    for number in range(1_000):
        log.once("warning", "refused", "shop", f"error {number}")
    log.once("warning", "refused", "office", "error 1")
    assert len(lines(capsys)) == 21


def test_a_login_of_very_many_rounds_is_told_from_a_usual_one() -> None:
    assert _ITERATIONS.search(b"r=abc,s=QSXCR+Q6sek8bf92,i=2147483647")
    assert not _ITERATIONS.search(b"r=abc,s=QSXCR+Q6sek8bf92,i=4096")


def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        AgentLog().once("error", "unreachable", "shop", "it is down")
        with pytest.raises(OSError, match="No space left"):
            full.flush()
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.close()
    AgentLog().write("info", "stopped")
