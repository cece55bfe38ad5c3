"""What one command reads and works out, it reads and works out once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgtare.kit import npz
from pgtare.observing.trace.analysis import profile, texts
from pgtare.observing.trace.analysis.profile import GROUPINGS
from pgtare.observing.trace.file import blocks, columns
from pgtare.weighing.weigh import store
from tests.commands import in_process
from tests.sample_trace import two_requests
from tests.unit import made_traces, sample_result


class Counts:
    """How often functions are called, wherever a module of pgtare knows them by."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.found = patch, Counter[str]()

    def of(self, function: Callable[..., Any]) -> None:
        def counted(*args: Any, **named: Any) -> Any:
            self.found[function.__name__] += 1
            return function(*args, **named)

        for name, module in list(sys.modules.items()):
            if name.startswith("pgtare") and getattr(module, function.__name__, None) is function:
                self.patch.setattr(module, function.__name__, counted)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    return Counts(monkeypatch)


COMMANDS = [
    *(["profile", "--by", by] for by in GROUPINGS),
    ["profile", "--by", "statement", "--statement", "SELECT", "--json"],
    ["profile", "--client", "app", "--by", "session"],
    ["statements"],
    ["clients"],
    ["clients", "--merge-by", "trace", "--json"],
    ["report"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_trace_is_read_once(tmp_path: Path, counts: Counts, command: list[str]) -> None:
    """Each block is decoded exactly once, bookings are selected once for each scope."""
    path = tmp_path / "t.pgtrace"
    waits = [(0, i * 1000, 1 + i * 7 % 977) for i in range(2000)]
    made_traces.trace(path, two_requests().data, waits)
    stored = sum(isinstance(found, blocks.Block) for found in blocks.scan(path))
    counts.of(columns.decode)
    counts.of(profile.select)
    counts.of(texts._labels)
    done = in_process("trace", command[0], path, *command[1:])
    assert done.returncode == 0, done.stderr
    assert counts.found["decode"] == stored > 5
    assert counts.found["_labels"] <= 1
    scopes = {"profile": 1, "report": 2}  # the page has the sessions, and the parallel workers
    assert counts.found["select"] == scopes.get(command[0], 0)


def test_observations_are_read_once(tmp_path: Path, counts: Counts) -> None:
    drawn = sample_result.sample()
    store.save(tmp_path / "r", drawn.design, drawn.observations, drawn.result)
    counts.of(npz.read)
    done = in_process("report", tmp_path / "r", "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert counts.found["read"] == 1
