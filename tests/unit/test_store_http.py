"""The store over HTTP: what our side of the wire does when the other side fails.

The other side is a stand-in for a server (`tests/clickhouse_stand_in.py`): ClickHouse's engine in
this process behind an HTTP server of the tests. A real server is used if PGTARE_CLICKHOUSE names
one, by `test_store_server.py`.
"""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from pgtare.errors import UsageError
from pgtare.keeping.agent_log import AgentLog
from pgtare.keeping.spool.writer import Spool
from pgtare.keeping.store import pushed_rows, store_schema
from pgtare.keeping.store.address import PASSWORD, read
from pgtare.keeping.store.connection import StoreConnection, StoreError, connect
from pgtare.keeping.store.push_thread import PushThread
from pgtare.keeping.store.pusher import SpoolPusher
from tests.clickhouse_stand_in import ClickHouseStandIn
from tests.commands import in_process, refused
from tests.sessions import eventually
from tests.unit.live_rows import ODD_SERVER, findings_each_minute
from tests.unit.spool_rows import UNLIMITED
from tests.unit.store_engine import COMMITS, commit, differences, filled


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseStandIn]:
    pytest.importorskip("chdb")
    pytest.importorskip("clickhouse_connect")
    with ClickHouseStandIn(str(tmp_path_factory.mktemp("engine"))) as found:
        with connect(read(found.url)) as connection:
            store_schema.make(connection)
        yield found


@pytest.fixture
def stand_in(listening: ClickHouseStandIn) -> ClickHouseStandIn:
    """It has no faults, whatever a test before has let it have."""
    listening.down, listening.lose_answers, listening.tear = False, 0, 0
    listening.refused = set()
    return listening


@pytest.fixture
def store(stand_in: ClickHouseStandIn) -> Iterator[StoreConnection]:
    with connect(read(stand_in.url)) as connection:
        yield connection


Make = Callable[[Path], SpoolPusher]


@pytest.fixture
def make(stand_in: ClickHouseStandIn) -> Make:
    return lambda root: SpoolPusher(
        root, lambda: connect(read(stand_in.url)), COMMITS, lambda level, why: None
    )


@pytest.mark.slow
def test_no_answer_and_half_an_answer(
    tmp_path: Path, stand_in: ClickHouseStandIn, store: StoreConnection, make: Make
) -> None:
    pusher = make(filled(tmp_path, 1, 3 * COMMITS))
    stand_in.down = True
    with pytest.raises(StoreError):
        pusher.step()
    stand_in.down, stand_in.lose_answers = False, 1
    with pytest.raises(StoreError):
        pusher.step()
    stand_in.tear = 1
    with pytest.raises(StoreError):
        pusher.step()
    while pusher.step():
        pass
    assert list(differences(store, tmp_path)) == ["sessions"], "torn: its second insert"
    repaired = in_process("store", "repair", "--store", stand_in.url, "--yes")
    assert "deleted; the agent sends them again" in repaired.stdout, repaired
    pusher.look_at_partial()
    pusher.step()
    assert differences(store, tmp_path) == {}


_KILLED = """
import os, signal, sys
from pathlib import Path
from pgtare.keeping.store import push_memory, pusher
from pgtare.keeping.store.address import read
from pgtare.keeping.store.connection import StoreConnection, connect
insert, write, inserts = StoreConnection.insert, push_memory.write, []

def insert_then_die(self, table, rows, token=None):
    insert(self, table, rows, token)
    inserts.append(table)
    if sys.argv[3] == "insert" and len(inserts) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

def die_before_the_note(volume, memory):
    if sys.argv[3] == "note" and memory.sent_seq:
        os.kill(os.getpid(), signal.SIGKILL)
    write(volume, memory)

StoreConnection.insert, push_memory.write = insert_then_die, die_before_the_note
one = pusher.SpoolPusher(Path(sys.argv[1]), lambda: connect(read(sys.argv[2])), 4, print)
one.step()
"""


@pytest.mark.parametrize("where", ["insert", "note"])
@pytest.mark.slow
def test_kill_9_between_sending_and_noting(
    tmp_path: Path, stand_in: ClickHouseStandIn, store: StoreConnection, make: Make, where: str
) -> None:
    filled(tmp_path, 1, COMMITS)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), stand_in.url, where], timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    before = stand_in.inserts
    make(tmp_path).step()
    assert stand_in.inserts - before == (1 if where == "insert" else 0)
    assert differences(store, tmp_path) == {}


@pytest.mark.slow
def test_the_thread_goes_on_by_itself_and_says_no_password(
    tmp_path: Path,
    stand_in: ClickHouseStandIn,
    store: StoreConnection,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from pgtare.keeping.store import push_thread

    monkeypatch.setattr(push_thread, "_FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(push_thread, "_LOOK_S", 0.05)
    monkeypatch.setenv(PASSWORD, "quite-secret")
    stand_in.passwords.clear()
    stand_in.down = True
    log = ""

    def refused_once() -> bool:
        nonlocal log
        log += capsys.readouterr().err
        return "rows stay in the spool" in log

    with (
        Spool.open(tmp_path, UNLIMITED) as spool,
        PushThread(tmp_path, read(stand_in.url), COMMITS, spool, AgentLog()),
    ):
        assert spool.sent_seq == 0, "nothing unsent goes by age, from the start"
        for index in range(1, COMMITS + 1):
            commit(spool, index)
        eventually(refused_once)
        stand_in.down = False
        deadline = time.monotonic() + 60
        while spool.sent_seq != COMMITS and time.monotonic() < deadline:
            time.sleep(0.05)
    assert differences(store, tmp_path) == {}
    log += capsys.readouterr().err
    assert "the store answers again" in log
    sent = base64.b64encode(b"agent:quite-secret").decode()
    assert f"Basic {sent}" in stand_in.passwords
    assert "secret" not in log
    assert sent not in log


def test_the_commands(
    tmp_path: Path, stand_in: ClickHouseStandIn, store: StoreConnection, make: Make
) -> None:
    make(filled(tmp_path, 1, COMMITS)).step()
    url = stand_in.url
    again = in_process("store", "create", "--store", url)
    assert "there already" in again.stdout
    checked = in_process("store", "check", "--store", url)
    assert checked.returncode == 0, checked
    assert "; 17 tables; its clock" in checked.stdout
    other = url.replace("/pgtare", "/nothing")
    assert "tables are missing" in in_process("store", "check", "--store", other).stdout
    assert in_process("store", "repair", "--store", url).stdout == "no commit is partial\n"
    stand_in.down = True
    assert "cannot be reached" in refused("store", "check", "--store", url, status=1)


@pytest.mark.slow
def test_the_agent_checks_its_store(
    tmp_path: Path, stand_in: ClickHouseStandIn, store: StoreConnection
) -> None:
    path = tmp_path / "agent.toml"

    def checked(url: str) -> str:
        path.write_text(
            '[servers.gone]\ndsn = "host=127.0.0.1 port=1"\n'
            f'[store]\nurl = "{url}?password_file={secret}"\n'
        )
        printed = in_process("agent", "check", "--config", path)
        assert printed.returncode == 1
        assert "hush" not in printed.stdout + printed.stderr
        (line,) = [one for one in printed.stdout.splitlines() if one.startswith("store: ")]
        cannot = re.search(r"the store (\S+|of \[store\]) cannot be used", printed.stderr)
        assert (cannot is None) == ("; it takes rows" in line)
        return line

    secret = tmp_path / "password"
    secret.write_text("hush\n")
    secret.chmod(0o600)
    before = rows_of(stand_in)
    assert re.search(r": ClickHouse \d+\.\d+\S* as \S+; it takes rows$", checked(stand_in.url))
    stand_in.refused = {"waits", "pushes"}
    assert "may not insert into waits, pushes: GRANT pgtare_agent" in checked(stand_in.url)
    stand_in.refused = set()
    assert rows_of(stand_in) == before
    store.command("INSERT INTO pgtare.version (version) VALUES (2)")
    assert "its tables are of version 2 and this pgtare uses" in checked(stand_in.url)
    assert "make a store in another database" in refused("live", "--store", stand_in.url)
    forgotten = "ALTER TABLE pgtare.version DELETE WHERE version = 2 SETTINGS mutations_sync = 1"
    stand_in.run(forgotten)
    assert "tables are missing" in checked(stand_in.url.replace("/pgtare", "/nothing"))
    assert "must not hold a password" in checked(stand_in.url.replace("agent@", "a:hush@"))
    stand_in.down = True
    assert "cannot be reached" in checked(stand_in.url)


def rows_of(stand_in: ClickHouseStandIn) -> str:
    return stand_in.run(
        "SELECT table, sum(rows) FROM system.parts WHERE active AND database = 'pgtare' "
        "GROUP BY table ORDER BY table"
    )


@pytest.mark.slow
def test_a_page_over_a_store(stand_in: ClickHouseStandIn, store: StoreConnection) -> None:
    from tests.live_pages import served

    with served(read(stand_in.url)) as page:
        page.log_in()
        for view in ("/activity?last=7d", "/breakdown?last=7d&by=event", "/blockers?last=7d"):
            answer = page.get(view)
            assert answer.status == 200, answer.text[:2000]
            assert "That did not work" not in answer.text


@pytest.mark.parametrize("database", ["pgtare", "another"])
def test_findings_of_a_store(tmp_path: Path, stand_in: ClickHouseStandIn, database: str) -> None:
    url = stand_in.url.replace("/pgtare", f"/{database}")
    now = datetime.now(UTC)
    with Spool.open(tmp_path, UNLIMITED) as spool:
        for minute in range(3):
            spool.commit({"findings": findings_each_minute(now, minute)}, {})
    with connect(read(url)) as connection:
        store_schema.make(connection)
        SpoolPusher(tmp_path, lambda: connect(read(url)), 3, lambda level, why: None).step()
        begin, end = (f"{now + timedelta(minutes=at):%Y-%m-%d %H:%M}Z" for at in (-1, 9))
        stretch = ("--from", begin, "--to", end, "--json")
        for server, count in ((None, 6), (ODD_SERVER, 3), ("none", 0)):
            only = () if server is None else ("--server", server)
            of_store, of_spool = (
                json.loads(in_process("findings", *place, *stretch, *only).stdout)
                for place in (("--store", url), ("--spool", tmp_path))
            )
            assert of_store == of_spool
            assert len(of_store["findings"]) == count
        days = {f"{now + timedelta(minutes=minute):%Y-%m-%d}" for minute in range(3)}
        places = [("findings", day, seq) for day in days for seq in (1, 2, 3)]
        pushed_rows.mark(connection, spool.uuid, places, partial=True)
    partial = in_process("findings", "--store", url, *stretch)
    assert json.loads(partial.stdout)["findings"] == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://h/pgtare", "no address of a store"),
        ("clickhouse://u:pw@h/pgtare", "must not hold a password"),
        ("clickhouse://u@h/pgtare?password=pw", "must not hold a password"),
        ("clickhouse://u@h/pg-tare", "letters, digits and _ only"),
        ("clickhouse://u@h/pgtare?tsl=on", "tsl is not known"),
        ("clickhouse://u@h/pgtare?tls=maybe", "tls is on or off"),
        ("clickhouse://u@h:x/pgtare", "write it as"),
    ],
)
def test_wrong_addresses(url: str, why: str) -> None:
    sentence = refused("store", "check", "--store", url)
    assert why in sentence
    assert "pw" not in sentence


def test_tls_and_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (read("clickhouse://h").port, read("clickhouse://h").tls) == (8443, True)
    assert (read("clickhouse://localhost").port, read("clickhouse://localhost").tls) == (
        8123,
        False,
    )
    assert read("clickhouse://h?tls=off").port == 8123
    for user in ("u", quote("team/p:a%ge@x", safe="")):
        named = read(f"clickhouse://{user}@h/db?tls=off")
        assert read(named.url) == named
    file = tmp_path / "pass&word"
    file.write_text("from a file\n")
    file.chmod(0o600)
    monkeypatch.setenv(PASSWORD, "from the environment")
    found = read(f"clickhouse://other@h?password_file={quote(str(file))}")
    assert (found.user, found.password()) == ("other", "from a file")
    assert read(found.url) == found
    assert read("clickhouse://h").password() == "from the environment"
    file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        found.password()


def test_a_configuration_names_a_store(tmp_path: Path) -> None:
    from pgtare.keeping.agent import config
    from pgtare.keeping.store.push_thread import address_of

    text = """
        [store]
        url = "clickhouse://agent@ch.example/pgtare?tls=off"
        [servers.shop]
        dsn = ""
    """
    path = tmp_path / "agent.toml"
    path.write_text(text)
    settings = config.read(path).store
    assert settings is not None
    assert str(address_of(settings.url)) == "ch.example:8123/pgtare"
    path.write_text(text.replace("agent@ch", "agent:pw@ch"))
    sentence = refused("agent", "--config", path, "--spool", tmp_path / "spool")
    assert "store.url must not hold a password" in sentence
