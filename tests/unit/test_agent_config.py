"""agent.toml: what it may say, and what is said of what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.keeping.agent import config
from pgtare.keeping.live import first_look
from pgtare.keeping.spool.retention import SpoolLimits
from tests.commands import refused

GOOD = """
most_statements = 50
[spool]
directory = "/var/lib/spool"
[intervals]
waits = "5s"
[servers.shop]
dsn = "host=db1 dbname=app"
labels = { env = "prod" }
[servers.shop-standby]
dsn = "host=db2 dbname=app"
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "agent.toml"
    path.write_text(text)
    return path


def test_a_configuration_is_read(tmp_path: Path) -> None:
    found = config.read(write(tmp_path, GOOD))
    assert found.spool.directory == Path("/var/lib/spool")
    assert found.spool.limits == SpoolLimits()
    assert (found.intervals.waits, found.intervals.statements) == (5, 60)
    assert list(found.servers) == ["shop", "shop-standby"]
    assert found.servers["shop"].labels == {"env": "prod"}


def test_the_spool_has_limits(tmp_path: Path) -> None:
    text = """
[spool]
directory = "/var/lib/spool"
most_bytes = "20G"
reserve_bytes = "0"
[spool.keep]
sessions = "12h"
hours = "800d"
[servers.a]
dsn = ""
"""
    limits = config.read(write(tmp_path, text)).spool.limits
    assert (limits.most_bytes, limits.reserve_bytes) == (20 << 30, 0)
    assert limits.kept_s["sessions"] == 43_200
    assert limits.kept_s["hours"] == 800 * 86_400
    assert limits.kept_s["ticks"] == SpoolLimits().kept_s["ticks"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no server"),
        ("[servers]", "names no server"),
        ("[servers.a]", "servers.a.dsn is missing"),
        ("[servers.a]\ndsn = ''\nport = 5", "servers.a.port is not known"),
        ("[servers.'a b']\ndsn = ''", "is no name for a server"),
        ("[intervals]\nwaits = '10'\nspeed = '1s'\n[servers.a]\ndsn = ''", "intervals.speed"),
        ("[intervals]\nwaits = 10\n[servers.a]\ndsn = ''", "write a time in quotes"),
        ("[intervals]\nwaits = 'soon'\n[servers.a]\ndsn = ''", "intervals.waits: give a time"),
        ("[intervals]\nwaits = '0.1s'\n[servers.a]\ndsn = ''", "intervals.waits: give 1s or more"),
        ("most_statements = 0\n[servers.a]\ndsn = ''", "most_statements"),
        ("spool = [", "is not TOML"),
        ("[spool]\nmost_bytes = 5\n[servers.a]\ndsn = ''", "spool.most_bytes: write a size"),
        ("[spool]\nmost_bytes = '1M'\n[servers.a]\ndsn = ''", "give 64 MiB or more"),
        ("[spool.keep]\nticks = '5m'\n[servers.a]\ndsn = ''", "write an age in quotes"),
        ("[spool.keep]\nticks = '0.5h'\n[servers.a]\ndsn = ''", "give 1h or more"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        config.read(path)
    message = str(caught.value)
    assert words in message
    assert str(path) in message
    assert "\n" not in message


def test_the_page_passes_on_any_connection_string(tmp_path: Path) -> None:
    dsn = "host=db password='\"ä\U0001f600\x7f\\\\'"
    path = tmp_path / "agent.toml"
    path.write_text(first_look.configuration(dsn, quick=True), encoding="utf-8")
    found = config.read(path)
    assert found.servers[config.ONLY_SERVER].dsn == dsn
    assert found.intervals.waits == 2


def test_secrets_are_not_repeated(tmp_path: Path) -> None:
    path = write(tmp_path, "[servers.a]\ndsn = ['password=hush']")
    with pytest.raises(UsageError) as caught:
        config.read(path)
    assert "hush" not in str(caught.value)


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    path = write(tmp_path, "[servers.a]\ndsn = 'host=nowhere'")
    assert "either --dsn or --config" in refused("agent")
    assert "either --dsn or --config" in refused("agent", "--dsn", "x", "--config", path)
    assert "percent-encode" in refused("agent", "--dsn", "x", "--spool", tmp_path / "spool")
    assert "--spool is missing" in refused("agent", "--config", path)
    assert "options go after the command" in refused("agent", "--config", path, "check")
    assert "cannot be read" in refused("agent", "check", "--config", tmp_path / "none.toml")
    assert refused("agent", "check", "--config", path, status=1)
    write(tmp_path, "[servers.a]\ndsn = 'x=1'")
    for words in (["check"], ["--spool", tmp_path / "spool"]):
        assert "connection string" in refused("agent", *words, "--config", path)
