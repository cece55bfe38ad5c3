"""The benchmarks: their list, how one is started, and how often incidents were named."""

from __future__ import annotations

import importlib

import pytest
from bench.__main__ import benchmarks, main
from bench.incident_stage import Named
from bench.incidents import row


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


def test_runs_in_which_each_was_named() -> None:
    good, bad = Named("x", True, True, True, True), Named("x", True, False, None, True)
    assert row([good, bad]) == ["2 of 2", "1 of 2", "1 of 1", "2 of 2", "1 of 2"]
    assert row([bad])[2] == "–"
