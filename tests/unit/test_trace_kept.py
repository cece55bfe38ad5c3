"""Traces that a server kept, as their files tell of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgtare.observing.trace.analysis import moment as moments
from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.capture.kept import of_directory
from pgtare.observing.trace.file.reader import load
from tests.sample_trace import two_requests
from tests.unit.made_traces import moment, write

KEPT = {
    "id": 1,
    "pid": 4711,
    "role": "app",
    "database": "shop",
    "application": "web",
    "cause": "request",
    "detail": "1 s",
    "query_id": 0,
    "incident": 0,
    "at": moment(1),
}


@pytest.mark.parametrize(
    "wrong",
    [{"at": "2027-01-15T08:00:00"}, {"pid": float("inf")}, {"id": float("inf")}],
    ids=["no time zone", "no process", "no number"],
)
def test_a_senseless_file_is_left_out(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """The others of its directory are listed."""
    stream = two_requests().data
    write(tmp_path / "sound.pgtrace", stream, kept=KEPT)
    senseless = write(tmp_path / "senseless.pgtrace", stream, kept={**KEPT, **wrong})
    assert [kept.file for kept in of_directory(tmp_path).traces] == ["sound.pgtrace"]
    moments.moment(ledger(load(senseless)))
