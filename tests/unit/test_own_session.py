"""How a session of ours finds its server."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NoReturn

import pytest

from pgtare.errors import MeasurementError
from pgtare.postgres import own_session


@pytest.mark.parametrize("by_environment", [False, True])
def test_the_host_of_a_service_is_looked_up_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_environment: bool
) -> None:
    """libpq would do it with Python's lock held, and stop every other thread meanwhile."""
    asked = []

    def fails(host: str, port: str, **_: object) -> NoReturn:
        asked.append((host, port))
        raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")

    services = tmp_path / "services"
    services.write_text("[shop]\nhost=one.invalid,two.invalid\nport=6000\ndbname=app\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    if by_environment:
        monkeypatch.setenv("PGSERVICE", "shop")
    monkeypatch.setattr(socket, "getaddrinfo", fails)
    with pytest.raises(MeasurementError, match="no name server answers"):
        own_session.connect("user=watcher" if by_environment else "service=shop")
    assert asked == [("one.invalid", "6000"), ("two.invalid", "6000")]


def test_a_service_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "none"))
    with pytest.raises(MeasurementError, match=r'service (file )?"'):
        own_session.connect("service=shop")
