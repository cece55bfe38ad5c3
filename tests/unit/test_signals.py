"""Signals that ask a recording to stop."""

from __future__ import annotations

import contextlib
import signal
import time
from types import SimpleNamespace

import pytest

from pgtare.postgres import signals


@pytest.mark.parametrize("outer", [signals.unwind_at_exit_signals, contextlib.ExitStack])
def test_ctrl_c_twice_asks_once(
    monkeypatch: pytest.MonkeyPatch, outer: type[contextlib.ExitStack]
) -> None:
    """The second would lose what was recorded; after a moment it is meant."""
    now_s = time.monotonic() + 100
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(signals, "_acted_s", 0.0)
    before = signal.getsignal(signal.SIGINT)
    with outer(), signals.asked_to_stop() as asked:
        signal.raise_signal(signal.SIGINT)
        now_s += 0.1
        signal.raise_signal(signal.SIGINT)
        assert asked.made
        now_s += 0.3
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_the_result_is_made_is_meant_only_the_second_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now_s = time.monotonic() + 200
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(signals, "_acted_s", 0.0)
    before = signal.getsignal(signal.SIGINT)
    with signals.like_interrupt():
        signals.let_finish()
        signal.raise_signal(signal.SIGINT)
        assert "once more to give it up" in capfd.readouterr().err
        now_s += 0.1
        signal.raise_signal(signal.SIGINT)
        now_s += 0.3
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before
    signals.let_finish()
    assert signal.getsignal(signal.SIGINT) is before
