"""The recorder's dictionary: small rings have names, whoever reads them, and nobody else's."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtare.observing.trace.analysis.ledger import ledger
from pgtare.observing.trace.file.reader import load
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value
from tests.commands import in_process, words
from tests.servers import crash, crashes, tracing
from tests.sessions import Connection, eventually, one, rows, session
from tests.trace_keeper import place
from tests.trace_records import Trace, check_whole, drain, grant_usage, trace_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

SETTINGS: dict[str, Value] = {
    "sql_trace.recorder_memory": "16MB",
    "sql_trace.keep_interval": 0,
    "sql_trace.keep_most": 32,
}
#: The smallest ring there is: it holds some 300 requests.
ON = "-c sql_trace.recorder=on -c sql_trace.recorder_ring=64kB"
#: Requests between the two runs of a statement.
APART = 60


@pytest.fixture(scope="module")
def server(each_server: Binaries) -> Iterator[Cluster]:
    """A server with a recorder, whose dictionary holds some thousands of statements."""
    with tracing(each_server, SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def onlooker(server: Cluster) -> Iterator[Connection]:
    """A session that is not recorded."""
    with session(server) as connection:
        yield connection


def use(onlooker: Connection, column: str) -> int:
    return int(one(onlooker, f"SELECT dictionary_{column} FROM pg_stat_sql_trace_recorder"))


def ever(onlooker: Connection) -> int:
    """Entries that there have been since the server started."""
    return use(onlooker, "entries") + use(onlooker, "replaced")


def run_over(client: Connection, who: str, n: int = 1000) -> None:
    """Run each of many statements twice, so many that the ring holds the second run alone."""
    for i in range(n):
        client.execute(f"SELECT 'no {i} of {who}'".encode())
        if i >= APART:
            client.execute(f"SELECT 'no {i - APART} of {who}'".encode())


def all_named(trace: Trace, who: str) -> int:
    """Check that each call has its text and its plan; how many different statements there are."""
    texts, plans = trace.texts(), {r.plan for r in trace.of("plan")}
    calls = [call for call in trace.of("call") if call.text]
    unnamed = {call.text for call in calls} - set(texts)
    assert not unnamed, f"{len(unnamed)} of {len({call.text for call in calls})} have no name"
    assert {call.plan for call in calls if call.plan} <= plans
    said = {texts[call.text] for call in calls}
    of_others = {text for text in said if "no " in text and who not in text}
    assert not of_others
    return len(said)


def test_names_outlive_the_ring(server: Cluster, onlooker: Connection) -> None:
    with session(server, options=ON) as client:
        run_over(client, "one")
        pid = client.info.backend_pid
        trace = trace_of(onlooker, pid)
        numbers = [r.number for r in trace.records if r.number]
        assert min(numbers) > 1000  # all but the latest was overwritten
        assert all_named(trace, "one") > 2 * APART
        # half of them have been overwritten, and come from elsewhere; all come once
        names = trace.of("text") + trace.of("plan")
        assert sum(not r.number for r in names) >= APART
        assert len({(r.kind, r.fields[r.kind]) for r in names}) == len(names)
        check_whole(trace)
        # a reader that goes on gets names with what is new
        position = drain(onlooker, pid)[0]
        client.execute("SELECT 'no 5 of one'")
        client.execute("SELECT 'no 5 of one'")
        new = Trace(drain(onlooker, pid, position)[3])
        assert [r.number for r in new.of("text") if r.sql == "SELECT 'no 5 of one'"] == [0]
        assert all_named(new, "one") == 1
        # and so does one that comes after the session
    ended = "SELECT ended IS NOT NULL FROM pg_stat_sql_trace WHERE pid = %s"
    eventually(lambda: one(onlooker, ended, pid))
    assert all_named(trace_of(onlooker, pid), "one") > APART


def test_sessions_share_entries(server: Cluster, onlooker: Connection) -> None:
    with session(server, options=ON) as first, session(server, options=ON) as second:
        run_over(first, "both", 200)
        before = ever(onlooker)
        run_over(second, "both", 200)
        assert ever(onlooker) - before < 10
        assert all_named(trace_of(onlooker, second.info.backend_pid), "both") > APART


def test_what_is_needed_once_stays_in_the_ring(server: Cluster, onlooker: Connection) -> None:
    """Statements with values in their text are many, and each would push out another."""
    with session(server, options=ON) as client:
        client.execute("SELECT 'once'")
        before = ever(onlooker)
        for i in range(1000):
            client.execute(f"SELECT 'once {i}'".encode())
        assert ever(onlooker) - before < 10
        trace = trace_of(onlooker, client.info.backend_pid)
        assert {r.number > 0 for r in trace.of("text")} == {True}
        # of the oldest request the text can have been overwritten, and the rest not yet
        unnamed = {c.text for c in trace.of("call") if c.text} - set(trace.texts())
        assert len(unnamed) <= 1


def test_prepared_statements_and_their_plans(server: Cluster, onlooker: Connection) -> None:
    with session(server, options=ON) as client:
        for i in range(2000):
            client.execute(f"SELECT %s::int + {i % 40}", (i,), prepare=True)
        trace = trace_of(onlooker, client.info.backend_pid)
        assert min(r.number for r in trace.records if r.number) > 500
        assert all_named(trace, "no") == 40


def test_a_plan_follows_the_names_of_its_relations(server: Cluster, onlooker: Connection) -> None:
    onlooker.execute("CREATE TABLE before_it (n int)")
    found = []
    try:
        for name in ("before_it", "after_it"):
            with session(server, options=ON) as client:
                client.execute(f"SELECT n FROM {name}".encode())
                trace = trace_of(onlooker, client.info.backend_pid)
                found.append(" ".join(r.json for r in trace.of("plan")))
            if name == "before_it":
                onlooker.execute("ALTER TABLE before_it RENAME TO after_it")
    finally:
        onlooker.execute("DROP TABLE IF EXISTS before_it, after_it")
    assert "before_it" in found[0]
    assert "after_it" in found[1]
    assert "before_it" not in found[1]


def test_grab_has_all_names(server: Cluster, onlooker: Connection, tmp_path: Path) -> None:
    with session(server, application_name="shop", options=ON) as client:
        run_over(client, "shop")
        client.pgconn.send_query(b"SELECT 'open', pg_sleep(2)")
        asleep = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s"
        eventually(lambda: one(onlooker, asleep, client.info.backend_pid))
        line = "trace grab {} --dsn {} --application shop --reserve 0"
        done = in_process(*words(line, tmp_path / "g", server.dsn()))
        while client.pgconn.get_result() is not None:
            pass
    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path / "g", "shop") > 2 * APART
    assert b"SELECT 'open', pg_sleep(2)" in stream(tmp_path / "g")


def stream(path: Path) -> bytes:
    return b"".join(data for chunks in load(path).streams.values() for _, data in chunks)


def names_in(path: Path, who: str) -> int:
    """Check that each call in a trace file has its text; how many statements there are."""
    loaded = load(path)
    assert not loaded.damages
    book = ledger(loaded)
    texts = {
        (number, text): record.text
        for number, process in enumerate(book.processes)
        for text, record in process.stream.texts.items()
    }
    said = set()
    for process, call in zip(book.call_process, book.calls, strict=True):
        if int(call["text"]):
            assert (int(process), int(call["text"])) in texts
            said.add(texts[int(process), int(call["text"])])
    assert any(who in text for text in said)
    return len(said)


@pytest.mark.slow
def test_kept_traces_take_their_names_with_them(
    server: Cluster, onlooker: Connection, tmp_path: Path
) -> None:
    options = f"{ON} -c sql_trace.keep_slower_than=200"
    with session(server, options=options) as client:
        run_over(client, "kept")
        client.execute("SELECT 'slow', pg_sleep(0.25)")
        client.execute("SELECT 1")
    (number,) = eventually(lambda: rows(onlooker, "SELECT id FROM sql_trace_kept()"))[0]
    with session(server, options=ON) as client:
        fill(onlooker, client)
    line = "trace kept {} --dsn {} --out {}"
    done = in_process(*words(line, number, server.dsn(), tmp_path / "kept.pgtrace"))
    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path / "kept.pgtrace", "kept") > 2 * APART
    onlooker.execute("SELECT sql_trace_kept_forget(%s)", (number,))


def fill(onlooker: Connection, client: Connection) -> None:
    """Put so much into the dictionary that all that was there makes way."""
    at_first = use(onlooker, "replaced") + 2 * use(onlooker, "entries")
    for i in itertools.count():
        for _ in range(2):
            client.execute(f"SELECT 'filled {i} {'x' * 8000}'".encode())
        if i % 50 == 0 and use(onlooker, "free_bytes") < 100_000 and i > 500:
            break
    assert use(onlooker, "replaced") > 0
    assert use(onlooker, "entries") < at_first


def test_a_full_dictionary_replaces_what_nobody_needs(
    server: Cluster, onlooker: Connection
) -> None:
    with session(server, options=ON) as client:
        size, replaced = use(onlooker, "bytes"), use(onlooker, "replaced")
        for i in range(600):
            client.execute("SELECT 'often'")
            for _ in range(2):
                client.execute(f"SELECT 'long {i} {'x' * 8000}'".encode())
        assert use(onlooker, "replaced") > replaced
        assert use(onlooker, "bytes") == size
        assert use(onlooker, "free_bytes") < size / 10
        texts = set(trace_of(onlooker, client.info.backend_pid).texts().values())
        assert "SELECT 'often'" in texts
        assert any(text.startswith("SELECT 'long 599 ") for text in texts)
        # what made way is put there again when it is needed
        client.execute(f"SELECT 'long 0 {'x' * 8000}'".encode())
        texts = set(trace_of(onlooker, client.info.backend_pid).texts().values())
        assert any(text.startswith("SELECT 'long 0 ") for text in texts)
    assert not crashes(server)


@pytest.mark.slow
def test_eight_clients_and_thousands_of_texts(server: Cluster, onlooker: Connection) -> None:
    clients, each = 8, 400
    wrong: list[str] = []

    def work(i: int, client: Connection) -> None:
        try:
            run_over(client, f"client {i}.", each)
        except psycopg.Error as ex:
            wrong.append(str(ex))

    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(session(server, options=ON)) for _ in range(clients)]
        threads = [threading.Thread(target=work, args=(i, c)) for i, c in enumerate(found)]
        for thread in threads:
            thread.start()
        read = 0
        while any(thread.is_alive() for thread in threads):
            for i, client in enumerate(found):
                with contextlib.suppress(psycopg.errors.UndefinedObject):
                    said = " ".join(trace_of(onlooker, client.info.backend_pid).texts().values())
                    wrong += [s for s in re.findall(r"of client (\d)", said) if int(s) != i]
                    read += 1
        for thread in threads:
            thread.join()
        assert wrong == []
        assert read >= clients
        for i, client in enumerate(found):
            named = all_named(trace_of(onlooker, client.info.backend_pid), f"client {i}.")
            assert named > APART
    assert not crashes(server)


def test_a_role_gets_only_what_its_own_session_ran(server: Cluster, onlooker: Connection) -> None:
    onlooker.execute("CREATE ROLE visitor LOGIN")
    onlooker.execute("ALTER ROLE visitor SET sql_trace.recorder = on")
    grant_usage(onlooker, "visitor")
    try:
        with session(server, options=ON) as client, session(server, user="visitor") as visitor:
            for _ in range(3):
                client.execute("SELECT 'for both'")
                client.execute("SELECT 'not for the visitor'")
                visitor.execute("SELECT 'for both'")
            own = " ".join(trace_of(visitor, visitor.info.backend_pid).texts().values())
            assert "for both" in own
            assert "not for the visitor" not in own
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                drain(visitor, client.info.backend_pid)
            everything = trace_of(onlooker, client.info.backend_pid).texts().values()
            assert "SELECT 'not for the visitor'" in everything
            # what others ran cannot be found out by running it once: entries are of one role
            run_over(client, "guessed", 200)
            before = ever(onlooker)
            run_over(visitor, "guessed", 200)
            assert ever(onlooker) - before >= APART
    finally:
        onlooker.execute("DROP OWNED BY visitor")
        onlooker.execute("DROP ROLE visitor")


def main_memory(pid: int) -> bytes:
    """All of the server's main shared memory, as one of its processes has it."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "/dev/zero" not in line:
                continue
            begin, end = (int(at, 16) for at in line.split()[0].split("-"))
            memory.seek(begin)
            found.append(memory.read(end - begin))
    return b"".join(found)


def test_nothing_of_a_secret_is_in_the_dictionary(server: Cluster, onlooker: Connection) -> None:
    """Nor anywhere else in the server's shared memory, where no activity is shown."""
    with session(server, options=f"{ON} -c track_activities=off") as client:
        client.execute("CREATE ROLE keeper PASSWORD 'hushhush1'")
        try:
            for _ in range(4):
                client.execute("SELECT 'plain to see'")
                client.execute("ALTER ROLE keeper PASSWORD 'hushhush2'")
                client.execute(
                    "DO $$BEGIN EXECUTE 'ALTER ROLE keeper PASSWORD ''hushhush3'''; END$$"
                )
                with pytest.raises(psycopg.Error):
                    client.execute("CREATE ROLE keeper PASSWORD 'hushhush4'")
                with pytest.raises(psycopg.Error):
                    client.execute("ALTER ROLE keeper PASSWORT 'hushhush5'")
        finally:
            client.execute("DROP ROLE keeper")
        data = one(onlooker, "SELECT data FROM sql_trace_drain(%s, 0)", client.info.backend_pid)
        memory = main_memory(client.info.backend_pid)
    assert b"plain to see" in data
    assert b"plain to see" in memory
    assert b"hushhush" not in data
    assert b"hushhush" not in memory


def test_what_somebody_asks_for_has_its_names_in_the_ring(
    server: Cluster, onlooker: Connection
) -> None:
    with session(server, options=ON) as client:
        for _ in range(3):
            client.execute("SELECT 'before'")
        pid = client.info.backend_pid
        onlooker.execute("SELECT sql_trace_set(%s, 12)", (pid,))
        client.execute("SELECT 'before'")
        trace = trace_of(onlooker, pid)
        assert all_named(trace, "no") >= 1
        asked = max(r.number for r in trace.of("level"))
        (text,) = [r for r in trace.of("text") if r.sql == "SELECT 'before'" and r.number > asked]
        assert text.text in {call.text for call in trace.of("call")}
        onlooker.execute("SELECT sql_trace_set(%s, NULL)", (pid,))
        entries = ever(onlooker)
        for _ in range(3):
            client.execute("SELECT 'after'")
        assert ever(onlooker) > entries


def test_the_dictionary_outlives_a_crash(server: Cluster) -> None:
    with session(server, options=ON) as client:
        client.execute("SELECT 'gone with it'")
        with contextlib.suppress(psycopg.Error):
            crash(server, client.info.backend_pid)
    with session(server) as onlooker, session(server, options=ON) as client:
        assert use(onlooker, "entries") < 10
        run_over(client, "the restart", 500)
        assert all_named(trace_of(onlooker, client.info.backend_pid), "the restart") > APART


def test_the_keepers_files_have_names(wheel: Binaries) -> None:
    with place() as path:
        settings = SETTINGS | {"sql_trace.keep_directory": str(path / "kept")}
        with tracing(wheel, settings) as server, session(server, options=ON) as client:
            run_over(client, "files")
            # set only now: on a busy machine any statement before may be slow, too
            client.execute("SET sql_trace.keep_slower_than = 200")
            client.execute("SELECT 'slow', pg_sleep(0.25)")
            (file,) = eventually(lambda: list((path / "kept").glob("kept-*.pgtrace")), 60)
            assert names_in(file, "files") > 2 * APART
