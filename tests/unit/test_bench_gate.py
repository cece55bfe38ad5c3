"""The gate: what passed is not run again, what failed is, and the page has all of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from bench import gate
from bench.__main__ import benchmarks

from pgtare.errors import UsageError

GOOD = gate.Part("good", "it passes", ("json.tool", "--help"))
BAD = gate.Part("bad", "it <b>fails</b>", ("no_such_module_at_all",))


@pytest.fixture
def two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "PARTS", (GOOD, BAD))
    monkeypatch.setattr(gate, "_commit", lambda: "abc1234")


def run(directory: Path, *parts: str) -> int:
    return gate.main(argparse.Namespace(parts=list(parts), directory=directory, scale=1.0))


def ran(directory: Path, part: gate.Part) -> float:
    outcome = gate.kept(directory, part)
    assert outcome is not None
    return outcome.seconds


@pytest.mark.usefixtures("two_parts")
def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    assert run(tmp_path, "good") == 0
    first = ran(tmp_path, GOOD)
    assert run(tmp_path) == 1
    assert ran(tmp_path, GOOD) == first
    bad = ran(tmp_path, BAD)
    assert run(tmp_path) == 1
    assert ran(tmp_path, BAD) != bad
    page = (tmp_path / "index.html").read_text()
    assert "passed at" in page
    assert "failed (1) at" in page
    assert "No module named no_such_module_at_all" in page
    assert "<b>fails" not in page


@pytest.mark.usefixtures("two_parts")
def test_a_part_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no part is called worse"):
        run(tmp_path, "worse")


@pytest.mark.usefixtures("two_parts")
def test_the_series_of_a_soak_are_drawn(tmp_path: Path) -> None:
    series = [{"name": "memory", "unit": "MB", "may_grow": 1.0}]
    kept = {"series": series, "minutes": [0.0, 1.0], "values": [[5.0], [6.0]]}
    (tmp_path / "soak.series.json").write_text(json.dumps(kept))
    page = gate.write_page(tmp_path).read_text()
    assert "memory over time: 5 at the start, 6 at the end" in page
    assert page.count("not run") == 2


@pytest.mark.usefixtures("two_parts")
def test_what_is_in_no_commit_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_commit", lambda: "abc1234-dirty")
    assert run(tmp_path, "good") == 0
    first = ran(tmp_path, GOOD)
    assert run(tmp_path, "good") == 0
    assert ran(tmp_path, GOOD) != first


@pytest.mark.slow
def test_tests_that_are_all_skipped_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text("import pytest\n\ndef test(): pytest.skip()\n")
    words = ("pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path))
    part = gate.Part("skipping", "it skips", (*words, str(tmp_path / "test_it.py")))
    monkeypatch.setattr(gate, "PARTS", (part,))
    assert run(tmp_path / "gate") == 1
    assert "1 skipped" in (tmp_path / "gate" / "index.html").read_text()


def test_every_part_names_what_there_is() -> None:
    for part in gate.PARTS:
        for word in part.words:
            if word.startswith("tests/"):
                assert (gate._ROOT / word).is_file(), word
        if part.words[0] == "bench":
            assert part.words[1] in benchmarks()
        elif part.words[0] != "pytest":
            assert (gate._ROOT / (part.words[0].replace(".", "/") + ".py")).is_file()
