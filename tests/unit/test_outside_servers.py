"""What is told of servers that are compared."""

from __future__ import annotations

from pgtare.weighing.outside.servers import FoundServer, infos
from pgtare.weighing.weigh.report import wording


def found(name: str, **settings: str) -> FoundServer:
    return FoundServer(name, "18.6", False, "7", "now", settings)


def test_settings_that_only_one_server_shows_come_last() -> None:
    """They may be of another version, or hidden from the role."""
    told = infos(
        [
            found("a", allow_alter_system="on", jit="on", work_mem="4 MB", port="1"),
            found("b", jit="off", work_mem="8 MB", port="1"),
        ]
    )
    assert list(told[0].settings) == ["jit", "work_mem", "allow_alter_system"]
    listed = "jit (on / off), work_mem (4 MB / 8 MB), allow_alter_system (on / –)"
    assert wording._differing(told) == f"Their settings differ: {listed}."
