"""fleet.toml: what it may say, and what is said of what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.postgres import inventory

GOOD = """
[servers.shop]
dsn = "host=db1 dbname=app"
labels = { env = "prod", rack = "3" }
weight = 4

[servers.shop-standby]
dsn = "postgresql://weigher:secret@db2/app"
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "fleet.toml"
    path.write_text(text)
    return path


def test_an_inventory_is_read(tmp_path: Path) -> None:
    found = inventory.read(write(tmp_path, GOOD)).servers
    assert list(found) == ["shop", "shop-standby"]
    assert found["shop"].labels == {"env": "prod", "rack": "3"}
    assert (found["shop"].weight, found["shop-standby"].weight) == (4, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no server"),
        ("[servers]", "names no server"),
        ("[servers.a]", "servers.a.dsn is missing"),
        ("[servers.a]\ndsn = 'host=secret'\nport = 5", "servers.a.port is not known: docs/fleet"),
        ("speed = 5\n[servers.a]\ndsn = ''", "speed is not known"),
        ("[servers.'a b']\ndsn = 'host=secret'", "is no name for a server"),
        ("[servers.a]\ndsn = ''\nweight = 0", "servers.a.weight: "),
        ("[servers.a]\ndsn = ''\nlabels = { x = 1 }", "servers.a.labels.x: "),
        ("[servers.a]\ndsn = 'secret'", "servers.a.dsn: cannot read the connection string"),
        ("[servers.a]\ndsn = ''\n[servers.a]\ndsn = ''", "says something twice"),
        ("[servers.a]\ndsn = ''\ndsn = ''", "says something twice"),
        (
            "[servers.a]\ndsn = 'host=db password=secret'\n[servers.b]\ndsn = 'postgres://db/x'",
            "a and b are one server, by host and port",
        ),
        ("servers = [", "is not TOML"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        inventory.read(path)
    message = str(caught.value)
    assert words in message
    assert str(path) in message
    assert "secret" not in message
    assert "\n" not in message


def test_servers_of_other_ports_and_services_are_others(tmp_path: Path) -> None:
    text = "".join(
        f"[servers.{name}]\ndsn = '{dsn}'\n"
        for name, dsn in {
            "a": "host=db",
            "b": "host=db port=5433",
            "c": "service=shop",
            "d": "service=bank",
            "e": "host=/run/db port=5432",
        }.items()
    )
    assert len(inventory.read(write(tmp_path, text)).servers) == 5


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        inventory.read(tmp_path / "fleet.toml")
