"""`pgtare support`: what a bug report needs, and nothing that is anybody's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pgtare
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import loadable
from tests.commands import failed, in_process
from tests.servers import SLOWLY_ON_15, with_everything
from tests.sessions import session

pytestmark = pytest.mark.server

#: What stands for a secret: all of it is on the server, or in the connection string.
WORD = "hushhush"


@pytest.fixture(scope="module", params=SLOWLY_ON_15)
def loaded(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    settings = {"sql_trace.sensitive_roles": WORD, "cluster_name": WORD}
    with with_everything(request.getfixturevalue(request.param), settings) as cluster:
        with session(cluster) as superuser:
            superuser.execute(f"CREATE ROLE {WORD} LOGIN")
            superuser.execute(f"CREATE TABLE {WORD} ()")
        yield cluster


def test_versions_settings_and_states_without_secrets(loaded: Cluster) -> None:
    done = in_process("support", "--dsn", f"{loaded.dsn()} password={WORD}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"version: {pgtare.__version__}" in lines
    assert lines.count(f"library: {pgtare.__version__}") == 3
    (preloaded,) = [line for line in lines if line.startswith("shared_preload_libraries: ")]
    assert "sql_trace" in preloaded
    assert "/" not in preloaded
    names = {line.partition(":")[0] for line in lines}
    assert {"numpy", "cpu_model", "server_encoding", "sql_trace.ring_size"} <= names
    assert {"info.slots_intact", "sql_trace_info.refused", "sql_trace_recorder.bytes"} <= names
    assert "wait_event_timing_info.clock_reason" in names
    assert WORD not in done.stdout + done.stderr


def test_what_a_role_may_not_see_is_left_out(loaded: Cluster) -> None:
    done = in_process("support", "--dsn", f"{loaded.dsn()} user={WORD}")
    assert done.returncode == 0, done.stderr
    assert "info: not allowed to this role" in done.stdout
    assert WORD not in done.stdout + done.stderr


def test_texts_are_said_to_be_set(loaded: Cluster) -> None:
    lines = in_process("support", "--dsn", loaded.dsn()).stdout.splitlines()
    (roles,) = [line for line in lines if line.startswith("sql_trace.sensitive_roles: ")]
    assert "(set, not shown)" in roles


def test_a_server_that_cannot_be_reached(tmp_path: Path) -> None:
    done = in_process("support", "--dsn", f"host={tmp_path} password={WORD}")
    assert WORD not in failed(done, 1)


def test_a_module_that_sessions_do_not_load_is_not_loaded(wheel: Binaries) -> None:
    """To ask it would replace call slots in our session, and take shared memory."""
    module = loadable(wheel, "wait_event_timing")
    with Cluster(wheel) as cluster:
        with session(cluster) as superuser:
            superuser.execute(module.create_sql.encode())
            superuser.execute("ALTER SYSTEM SET log_statement = 'all'")
            superuser.execute("SELECT pg_reload_conf()")
        done = in_process("support", "--dsn", cluster.dsn())
        assert done.returncode == 0, done.stderr
        assert "[module wait_event_timing]" in done.stdout
        log = cluster.log_path.read_text()
    assert "pg_settings WHERE name" in log
    assert 'library_version"()' not in log
