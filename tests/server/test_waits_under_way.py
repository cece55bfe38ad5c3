"""Waits under way: how long, as the server itself tells it of locks, and in the sums."""

import time

import pytest

from pgtare.postgres.cluster import Cluster
from tests.loads import asleep, during
from tests.sessions import Connection, eventually, one, role, rows, session
from tests.waits import waits

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

# by us and by the server, in one statement
LOCK_TIMES = (
    "SELECT c.wait_time, extract(epoch FROM clock_timestamp() - l.waitstart)::float8 * 1000 "
    "FROM pg_stat_wait_event_timing_current c JOIN pg_locks l USING (pid) "
    "WHERE c.pid = %s AND c.wait_event_type = 'Lock' AND NOT l.granted"
)
#: ms between our time and the server's, which are not read at one moment.
NEAR_MS = 100
IN_SUMS = (
    "SELECT waits, running_waits, running_time FROM pg_stat_wait_event_timing_system "
    "WHERE wait_event = 'PgSleep' AND backend_type = 'client backend'"
)


def test_lock_under_way_lasts_since_its_first_call(
    timed: Cluster, watched: Connection, observer: Connection
) -> None:
    """deadlock_timeout and a reload wake who waits; it is the same wait before and after."""
    pid = watched.info.backend_pid
    observer.execute("CREATE TABLE IF NOT EXISTS held (i int)")
    watched.execute("SET deadlock_timeout = '300ms'")

    def times() -> tuple[float, float]:
        for _ in range(5):  # who looks can be without a processor between the two
            ((ours, servers),) = eventually(lambda: rows(observer, LOCK_TIMES, pid))
            if abs(ours - servers) < NEAR_MS:
                break
        return ours, servers

    with session(timed) as holder:
        holder.execute("BEGIN; LOCK TABLE held")
        with during(lambda: watched.execute("SELECT FROM held")):
            times()
            time.sleep(0.5)
            after_check = times()
            observer.execute("SELECT pg_reload_conf()")
            time.sleep(0.3)
            after_reload = times()
            holder.execute("COMMIT")
    assert after_check[1] > 500
    assert after_check[0] == pytest.approx(after_check[1], abs=NEAR_MS)
    assert after_reload[1] > 800
    assert after_reload[0] == pytest.approx(after_reload[1], abs=NEAR_MS)
    count, calls, total, _ = waits(observer, "relation", pid)
    assert count == 1
    assert calls >= 3
    assert total >= after_reload[1] - NEAR_MS


def test_sums_tell_everybody_of_waits_under_way(
    timed: Cluster, watched: Connection, observer: Connection
) -> None:
    observer.execute("SELECT wait_event_timing_reset()")
    with role(observer, "curious"), session(timed, user="curious") as connection:

        def look() -> tuple[tuple[int, int, float], float, float] | None:
            began = time.monotonic()
            found = rows(connection, IN_SUMS)
            return (found[0], began, time.monotonic()) if found else None

        with asleep(watched):
            (ended, running, first), began, looked = eventually(look)
            time.sleep(0.2)
            (_, _, later), began_again, looked_again = eventually(look)
            unseen = "SELECT count(*) FROM pg_stat_wait_event_timing_current WHERE pid = %s"
            assert one(connection, unseen, watched.info.backend_pid) == 0
        assert (ended, running) == (0, 1)
        assert first >= 0
        assert began_again - looked - 0.01 <= (later - first) / 1000 <= looked_again - began + 0.01
        assert rows(connection, IN_SUMS) == [(1, 0, 0.0)]
