"""Memory that others have used is no part of a trace."""

import contextlib

import pytest

from pgtare.postgres.binaries import Binaries
from tests.servers import tracing
from tests.sessions import one, rows, session

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

RESERVED = {"min_dynamic_shared_memory": "16MB", "sql_trace.ring_size": "64kB"}
SECRET = b"SECRET"


def test_a_new_ring_in_reserved_memory_shows_nothing_of_an_old_one(binaries: Binaries) -> None:
    """Segments from the region of min_dynamic_shared_memory come as they were left."""
    with tracing(binaries, RESERVED) as cluster, session(cluster) as owner:
        owner.execute("CREATE ROLE reader LOGIN; ALTER ROLE reader SET sql_trace.level = 1")
        if rows(owner, "SELECT 1 FROM pg_namespace WHERE nspname = 'sql_trace'"):
            owner.execute("GRANT USAGE ON SCHEMA sql_trace TO reader")
        with session(cluster) as traced:
            traced.execute("SET sql_trace.ring_size = '1MB'")
            traced.execute("SET sql_trace.bind_length = -1")
            traced.execute("SET sql_trace.level = 12")
            for _ in range(2000):
                traced.execute("SELECT %s::text", ("SECRET-VALUE " * 12,))
        owner.execute("SELECT sql_trace_reset()")
        with contextlib.ExitStack() as stack:
            for _ in range(16):
                reader = stack.enter_context(session(cluster, user="reader"))
                reader.execute("SELECT 1")
                data = bytes(one(reader, "SELECT data FROM sql_trace_drain(pg_backend_pid(), 0)"))
                assert SECRET not in data
