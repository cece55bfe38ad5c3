"""A pooler (pgbouncer) in front of a server, and what its sessions hold that could outlast a user.

Needs Debian's package pgbouncer; tests skip without it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pgtare.postgres.cluster import Cluster
from pgtare.postgres.os_account import server_account
from tests.places import files_directory
from tests.sessions import eventually

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
PoolMode = Literal["session", "transaction", "statement"]
POOL_SIZE = 3
_PORT = 6432

#: What a session can leave to the next user of its server process.
_LEFT = """
SELECT jsonb_build_object(
  'settings', (SELECT jsonb_object_agg(name, setting || ' by ' || source) FROM pg_settings),
  'prepared', (SELECT coalesce(jsonb_agg(statement), '[]') FROM pg_prepared_statements),
  'cursors', (SELECT coalesce(jsonb_agg(statement), '[]') FROM pg_cursors WHERE name <> ''),
  'listens', (SELECT coalesce(jsonb_agg(c), '[]') FROM pg_listening_channels() c),
  'locks', (SELECT count(*) FROM pg_locks
            WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
  'temporary', (SELECT count(*) FROM pg_class WHERE relpersistence = 't'
                AND relnamespace = pg_my_temp_schema()))
"""


@dataclass(frozen=True)
class Pooler:
    """A pooler that runs. dsn: of the server's database postgres through it."""

    dsn: str
    log: Path

    def held(self) -> dict[int, dict[str, Any]]:
        """What each pooled session holds, by its process; all of them are taken at one time."""
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(psycopg.connect(self.dsn, application_name="the application"))
                for _ in range(POOL_SIZE)
            ]
            found = {}
            for client in clients:  # each keeps its transaction open
                ((pid,),) = client.execute("SELECT pg_backend_pid()").fetchall()
                ((held,),) = client.execute(_LEFT).fetchall()
                found[pid] = held
            for client in clients:
                client.rollback()
        assert len(found) == POOL_SIZE
        return found


@contextlib.contextmanager
def pooler(cluster: Cluster, mode: PoolMode, more: str = "") -> Iterator[Pooler]:
    """A pooler with three sessions, which runs under the account of the server. more: settings.

    It has another name for the database postgres as well: shop.
    """
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    account = server_account()
    place = Path(tempfile.mkdtemp(prefix="pgtare-pooler-", dir=files_directory()))
    try:
        account.give(place)
        to = conninfo_to_dict(cluster.dsn())
        user = to["user"]
        (place / "users").write_text(f'"{user}" ""\n')
        log = place / "log"
        (place / "ini").write_text(
            f"[databases]\nshop = host={to['host']} port={to['port']} dbname=postgres\n"
            f"* = host={to['host']} port={to['port']}\n[pgbouncer]\n"
            f"listen_addr =\nlisten_port = {_PORT}\nunix_socket_dir = {place}\n"
            f"auth_type = trust\nauth_file = {place}/users\nadmin_users = {user}\n"
            f"pool_mode = {mode}\ndefault_pool_size = {POOL_SIZE}\nquery_wait_timeout = 20\n"
            f"logfile = {log}\npidfile = {place}/pid\n{more}"
        )
        process = subprocess.Popen(
            [PGBOUNCER, "-q", place / "ini"], stdin=subprocess.DEVNULL, **account.run_as
        )
        try:
            found = Pooler(f"host={place} port={_PORT} user={user} dbname=postgres", log)
            eventually(lambda: _answers(found), 10)
            yield found
        finally:
            process.terminate()
            process.wait(10)
    finally:
        shutil.rmtree(place)


def _answers(found: Pooler) -> bool:
    try:
        with psycopg.connect(found.dsn, autocommit=True) as conn:
            conn.execute("SELECT 1")
        return True
    except psycopg.Error:
        return False
