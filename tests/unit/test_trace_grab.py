"""Taking what rings hold: all of it, or no file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import psycopg
import pytest

from pgtare.errors import MeasurementError
from pgtare.observing.trace.capture import grab
from pgtare.observing.trace.capture.server import Server, Unread
from pgtare.observing.trace.file.writer import Writer
from tests.unit.made_traces import NO_RESERVE


class _Gone:
    """A server that ends the session at the first question."""

    has_waits = True

    def unread(self) -> Unread:
        raise psycopg.OperationalError("server closed the connection unexpectedly")


def test_a_server_that_goes_away_at_once_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "t.pgtrace"
    writer = Writer(path, b"{}", NO_RESERVE)
    held = grab._Held(datetime.now(UTC), {})
    with pytest.raises(MeasurementError):
        grab._take(cast(Server, _Gone()), writer, held, [])
    assert not path.exists()
