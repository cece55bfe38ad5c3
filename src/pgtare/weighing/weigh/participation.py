"""What share of a database's transactions took part in a trial, as counted there."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pgtare.postgres import pooler
from pgtare.weighing.trials import Status, Trials

#: Of the session's database, so far.
TRANSACTIONS = """
SELECT xact_commit + xact_rollback
FROM pg_catalog.pg_stat_database WHERE datname = pg_catalog.current_database()
"""
#: A session that has touched no table since has nothing to report, transactions neither.
_REPORT = "SELECT pg_catalog.pg_stat_force_next_flush() FROM pg_catalog.pg_class LIMIT 1"
# Sessions whose statements touch no table do not report their transactions: a part that exceeds the
# whole by more than delay explains has no share.
_PLAUSIBLE = 1.1


@dataclass(frozen=True)
class Traffic:
    """Transactions of the session's database, and of them those of pgtare itself."""

    transactions: int
    own: int
    at_s: float  # when, by time.monotonic()


def count(module: Trials) -> Traffic:
    """The counters now. Others' sessions report theirs with up to a second's delay."""
    # ours without a delay, as they are taken off; the count itself is in the next one
    pooler.rows(module.conn, _REPORT)
    module.calls += 1
    ((transactions,),) = pooler.rows(module.conn, TRANSACTIONS)
    traffic = Traffic(int(transactions), module.calls, time.monotonic())
    module.calls += 1
    return traffic


def others_per_s(before: Traffic, after: Traffic) -> float:
    """Transactions a second of all but pgtare, between two counts."""
    seconds = after.at_s - before.at_s
    others = after.transactions - before.transactions - (after.own - before.own)
    return max(0.0, others / seconds) if seconds > 0 else 0.0


def share_pct(before: Traffic, after: Traffic, status: Status, seconds: float) -> float | None:
    """What took part between two counts, in percent; None if the server did not count.

    A unit counts as one transaction. seconds: length of the trial. Counts are of a little more time
    than that, and late by up to a second at both ends: so it is rates that are compared.
    """
    part = status.observations + status.lost
    whole = others_per_s(before, after) * seconds
    if whole <= 0 or part > _PLAUSIBLE * whole:
        return None
    return min(100.0, 100.0 * part / whole)
