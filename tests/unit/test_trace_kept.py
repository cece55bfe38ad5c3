"""Traces that a server kept, as their files tell of them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from pgtare.errors import MeasurementError, UsageError
from pgtare.observing.trace.analysis import moment as moments
from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.capture import kept as keeping
from pgtare.observing.trace.capture.server import Server
from pgtare.observing.trace.file.reader import Trace, load
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
    assert [kept.file for kept in keeping.of_directory(tmp_path).traces] == ["sound.pgtrace"]
    moments.moment(ledger(load(senseless)))


@pytest.mark.parametrize("since", ["0001-01-02T00:00:00+00:00", "9999-12-31T23:59:59-14:00"])
def test_what_a_session_did_has_bounds(tmp_path: Path, since: str) -> None:
    """A made file says that it was at it since the year 1: that has no room in a column."""
    doing = {"state": "active", "running": True, "since": since}
    kept = {**KEPT, "at": moment(40), "doing": doing}
    path = write(tmp_path / "t.pgtrace", two_requests().data, until=moment(40), kept=kept)
    assert moments.moment(ledger(load(path))) is not None


def test_another_of_an_incident_may_go_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives its files up: the report of one that is there does not fail."""
    stream = two_requests().data
    paths = [
        write(tmp_path / f"{number}.pgtrace", stream, kept={**KEPT, "id": number, "incident": 7})
        for number in (1, 2, 3)
    ]
    mine = load(paths[0])
    assert [other.path for other in keeping.next_to(mine)] == paths[1:]

    def late(path: Path) -> Trace:
        paths[1].unlink(missing_ok=True)
        return load(path)

    monkeypatch.setattr(keeping, "load", late)
    assert [other.path for other in keeping.next_to(mine)] == paths[2:]


def test_a_directory_that_cannot_be_looked_at(tmp_path: Path) -> None:
    """The server's own is mostly closed to others; the system refuses too long a name as well."""
    with pytest.raises(UsageError, match=r"cannot be read|is no directory"):
        keeping.of_directory(tmp_path / ("x" * 300))


def test_a_kept_trace_without_a_place_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To be shown, it is a temporary file for a moment, and the disk may be full just then."""
    write(tmp_path / "1.pgtrace", two_requests().data, kept=KEPT)
    (one,) = keeping.of_directory(tmp_path).traces
    monkeypatch.setattr(keeping, "_fetch", lambda server, number: b"")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(MeasurementError, match="kept trace 1 could not be written"):
        keeping.read(cast(Server, object()), one)
