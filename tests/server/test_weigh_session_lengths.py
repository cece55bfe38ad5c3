"""How long a server's sessions are, by its own statistics."""

from __future__ import annotations

from pgtare.postgres.cluster import Cluster
from pgtare.weighing.weigh.session_lengths import session_lengths


def test_sessions_of_a_few_transactions_are_seen(server: Cluster) -> None:
    for _ in range(30):
        with server.connect() as conn:
            for _ in range(4):
                conn.execute("SELECT 1")
    with server.connect() as conn:
        conn.execute("SELECT pg_stat_clear_snapshot()")
        found = session_lengths(conn)
    assert found is not None
    assert found.transactions > 0
    assert found.seconds >= 0
