"""What share of a database's sessions and transactions took part in a trial, as counted there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from pgtare.postgres.own_session import APPLICATION_NAME
from pgtare.weighing.trials import Status, Trials

# A role that may not see the sessions of others is not shown their type either.
_QUERY = """
SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity a
        WHERE a.datid = d.datid AND a.pid <> pg_catalog.pg_backend_pid()
          AND coalesce(a.backend_type, 'client backend') = 'client backend'
          AND a.application_name <> %s),
       d.sessions, d.xact_commit + d.xact_rollback
  FROM pg_catalog.pg_stat_database d WHERE d.datname = pg_catalog.current_database()
"""


# Sessions whose statements touch no table do not report their transactions: a part that exceeds the
# whole by more than delay explains has no share.
_PLAUSIBLE = 1.1


@dataclass(frozen=True)
class Traffic:
    """Counters of the session's database, and of what pgtare itself has added to them."""

    present: int  # client sessions there now
    established: int  # client sessions that ever were
    transactions: int
    own: int
    at_s: float  # when, by time.monotonic()


class Shares(NamedTuple):
    """In percent of the database's; None if the server did not count."""

    sessions_pct: float | None
    transactions_pct: float | None


def count(module: Trials) -> Traffic:
    """The counters now. Sessions report theirs with up to a second's delay."""
    row = module.conn.execute(_QUERY.encode(), (APPLICATION_NAME,)).fetchone()
    present, established, transactions = row if row else (0, 0, 0)
    return Traffic(
        int(present), int(established), int(transactions), module.calls, time.monotonic()
    )


def shares(before: Traffic, after: Traffic, status: Status, seconds: float) -> Shares:
    """What took part between two counts. A unit counts as one transaction.

    seconds: length of the trial. Counts are of a little more time than that, and late by up to a
    second at both ends: so it is rates that are compared.
    """
    sessions = before.present + max(0, after.established - before.established)
    transactions = after.transactions - before.transactions - (after.own - before.own)
    counted_s = after.at_s - before.at_s
    of_trial = transactions * seconds / counted_s if counted_s > 0 else 0.0
    return Shares(
        _share(status.sessions, sessions), _share(status.observations + status.lost, of_trial)
    )


def _share(part: int, whole: float) -> float | None:
    if whole <= 0 or part > _PLAUSIBLE * whole:
        return None
    return min(100.0, 100.0 * part / whole)
