"""Connections as operators have them: several hosts, services, strict defaults of a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgtare.keeping.agent.server_session import ServerSession
from pgtare.postgres import chosen_host, own_session, pooler
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from tests.commands import in_process, refused
from tests.servers import stopped_at_once, tracing

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def strict(wheel: Binaries) -> Iterator[Cluster]:
    """A server whose transactions are serializable and deferrable, and read only if they say so."""
    settings = {
        "wait_event_timing.capture": "stats",
        "default_transaction_isolation": "serializable",
        "default_transaction_deferrable": True,
    }
    with stopped_at_once(tracing(wheel, settings)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def none_chosen() -> Iterator[None]:
    """No session of an earlier test has chosen a host."""
    chosen_host._chosen.clear()
    yield
    chosen_host._chosen.clear()


def test_another_session_goes_to_the_same_server_with_the_same_password(wheel: Binaries) -> None:
    with Cluster(wheel, {}, tcp=True) as cluster:
        with closing(own_session.connect(cluster.dsn(tcp=True))) as conn:
            conn.execute(r"CREATE ROLE quoted LOGIN PASSWORD 'it''s \ one'")
        quoted = {"user": "quoted", "password": r"it's \ one"}
        by_password = cluster.dsn(tcp=True, **quoted)
        for dsn in (by_password, several_hosts(cluster)):
            with (
                closing(own_session.connect(dsn)) as conn,
                closing(own_session.another(conn)) as other,
            ):
                assert other.info.backend_pid != conn.info.backend_pid
                for name in ("user", "dbname", "host", "port", "password"):
                    assert getattr(other.info, name) == getattr(conn.info, name)


@pytest.mark.parametrize("binary", [False, True])
def test_no_hour_is_lost_as_summer_time_ends(strict: Cluster, binary: bool) -> None:
    """Of any session of ours moments come in UTC: both are half past two in Berlin."""
    query = "SELECT '2026-10-25 00:30+00'::timestamptz, '2026-10-25 01:30+00'::timestamptz"
    dsn = strict.dsn(options="-c TimeZone=Europe/Berlin")
    with closing(own_session.connect(dsn)) as conn:
        ((before, after),) = pooler.rows(conn, query, binary=binary)
    assert after - before == timedelta(hours=1)


def asks(dsn: str) -> list[tuple[str, ...]]:
    """One command of each kind that connects."""
    return [
        ("doctor", "--dsn", dsn, "--interval", "1s", "--json"),
        ("waits", "top", "--dsn", dsn, "--interval", "1s", "--iterations", "1", "--json"),
        ("waits", "sessions", "--dsn", dsn, "--json"),
        ("agent", "check", "--dsn", dsn),
        ("instruments", "--dsn", dsn, "--json"),
        ("trace", "status", "--dsn", dsn),
    ]


def several_hosts(cluster: Cluster) -> str:
    """A connection string of two hosts, of which only the second is there."""
    port = cluster.dsn().split("port=")[1].split()[0]
    return make_conninfo(
        cluster.dsn(), host=f"127.0.0.1,{_socket(cluster)}", port=f"1,{port}",
        target_session_attrs="any",
    )  # fmt: skip


def _socket(cluster: Cluster) -> str:
    return str(conninfo_to_dict(cluster.dsn())["host"])


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=one[0] + one[1], marks=[pytest.mark.slow] * (number % 2))
        for number, one in enumerate(asks(""))
    ],
)
def test_every_command_takes_several_hosts_and_names_the_one_it_means(
    strict: Cluster, number: int
) -> None:
    found = in_process(*asks(several_hosts(strict))[number])
    assert found.returncode in (0, 1), found.stderr  # a finding of the doctor
    assert "Traceback" not in found.stderr
    assert found.stderr.count(f"pgtare: connected to {_socket(strict)}, port ") == 1


def test_a_service_is_named_and_a_password_file_is_read(
    strict: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = conninfo_to_dict(strict.dsn())
    service = tmp_path / "services"
    lines = "\n".join(f"{name}={value}" for name, value in parts.items())
    service.write_text(f"[shop]\n{lines}\n")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    passfile = tmp_path / "passwords"
    passfile.write_text("*:*:*:*:hush\n")
    passfile.chmod(0o600)
    for ask in asks(f"service=shop passfile={passfile}"):
        chosen_host._chosen.clear()
        found = in_process(*ask)
        assert found.returncode in (0, 1), (ask, found.stderr)
        assert "pgtare: connected to " in found.stderr
        assert "hush" not in found.stderr + found.stdout


@pytest.mark.slow
def test_the_agent_goes_where_a_service_leads_now(
    wheel: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where it led when the agent began, though somebody still answers there."""
    services = tmp_path / "services"
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    with Cluster(wheel, {}, tcp=True) as cluster:
        for dsn in (cluster.dsn(), cluster.dsn(tcp=True)):
            parts = conninfo_to_dict(dsn)
            lines = "\n".join(f"{name}={value}" for name, value in parts.items())
            services.write_text(f"[shop]\n{lines}\n")
            with ServerSession("service=shop", lock=False) as opened:
                assert opened.conn.info.host == parts["host"]


def test_a_misspelt_key_is_named() -> None:
    said = refused("doctor", "--dsn", "hots=db")
    assert 'there is no key "hots"; host is one' in said
    said = refused("doctor", "--dsn", "postgresql://db/app?target_session_attr=any")
    assert 'there is no key "target_session_attr"; target_session_attrs is one' in said
    # what may be a part of a password is not shown
    assert "horse" not in refused("doctor", "--dsn", "host=db password=correct horse=1")


@pytest.mark.parametrize("number", range(6), ids=[one[0] + one[1] for one in asks("")])
def test_transactions_of_ours_are_like_no_default_of_the_server(
    strict: Cluster, number: int
) -> None:
    """A serializable deferrable read-only transaction would wait for this one."""
    with strict.connect() as other, strict.connect() as writer:
        other.execute("CREATE TABLE IF NOT EXISTS held (a int)")
        other.execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE")
        other.execute("INSERT INTO held VALUES (1)")
        writer.execute("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE")
        writer.execute("SELECT count(*) FROM held")
        found = in_process(*asks(strict.dsn())[number])
    assert found.returncode in (0, 1), found.stderr
    assert "longer than 10 s" not in found.stderr + found.stdout


@pytest.mark.slow
def test_a_standby_whose_default_is_serializable(strict: Cluster) -> None:
    signal_file = strict.data_directory / "standby.signal"
    strict.stop()
    signal_file.touch()
    try:
        strict.start()
        for ask in asks(strict.dsn()):
            found = in_process(*ask)
            assert found.returncode in (0, 1), (ask, found.stderr)
            assert "serializable" not in found.stderr + found.stdout, ask
    finally:
        strict.stop()
        signal_file.unlink()
        strict.start()
