"""The benchmarks: their list, how one is started, and how often incidents were named."""

from __future__ import annotations

import importlib

import pytest
from bench import watchers, weights
from bench.__main__ import benchmarks, main
from bench.incident_stage import Named
from bench.incidents import row

from pgtare.errors import UsageError
from pgtare.kit.interval import Interval
from pgtare.weighing.weigh.outside_schema import WatcherInfo
from pgtare.weighing.whole_server.watcher_time import WatcherTime


def test_each_is_listed_with_a_line_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert "switching" in benchmarks()
    for one in benchmarks().values():
        assert one.name in listed
        assert one.line.endswith(".")
        assert one.takes in listed


@pytest.mark.parametrize("name", sorted(benchmarks()))
def test_each_shows_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(importlib.import_module(f"bench.{name}").main)
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"python -m bench {name}" in capsys.readouterr().out


def test_a_name_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "python -m bench lists all" in capsys.readouterr().err


def test_windows_are_timed_as_the_schedule_begins_them() -> None:
    watch = WatcherTime.__new__(WatcherTime)
    watch.windows, watch.sees_sessions, watch._postmaster = [], False, None
    watch._looks = 0
    with watchers._windows() as found:
        watch.begin(0, 2, {}, off=False)
        watch.end(0.1, {})
    ((arm, began, ended),) = found
    assert (arm, began <= ended) == (2, True)


def test_a_watcher_without_an_interval_is_not_right(capsys: pytest.CaptureFixture[str]) -> None:
    none = Interval(estimate=None, lo=None, hi=None)
    assert not watchers._holds(WatcherInfo.model_construct(name="x", server_pct=none), 0.01)
    assert "x: has no interval" in capsys.readouterr().out


def test_runs_that_have_nothing_in_common_do_not_agree() -> None:
    with pytest.raises(UsageError, match="no observer with an interval in common"):
        weights.compared([], [])


def test_runs_in_which_each_was_named() -> None:
    good, bad = Named("x", True, True, True, True), Named("x", True, False, None, True)
    assert row([good, bad]) == ["2 of 2", "1 of 2", "1 of 1", "2 of 2", "1 of 2"]
    assert row([bad])[2] == "–"
