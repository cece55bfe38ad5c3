"""A trace of two requests whose times are known, and sums of a profile."""

from __future__ import annotations

from pathlib import Path

from pgtare.observing.trace.analysis import ledger as ledgers
from pgtare.observing.trace.analysis.ledger import Ledger
from pgtare.observing.trace.analysis.profile import Scope, profile
from pgtare.observing.trace.file.records import CallKind
from tests.unit.made_traces import MS, US, StreamBuilder, session_stream, trace


def by(ledger: Ledger, grouping: str = "event", scope: Scope | None = None) -> dict[str, float]:
    """The lines of a profile: ns by name."""
    return {line.name: line.total_ns for line in profile(ledger, grouping, scope).lines}


def two_requests() -> StreamBuilder:
    """0-10 ms: a query of 8 ms with 2 ms plan; 10-30 client; 30-40 another, its reading at 40."""
    b = session_stream(waits=True)
    b.text(1, "SELECT a FROM t", 11)
    b.text(2, "UPDATE t SET a = 1", 12)
    b.call(CallKind.PARSE, 0, 1 * MS, text=1, query_id=11, cpu=1 * MS)
    b.call(CallKind.PLAN, 1 * MS, 2 * MS, text=1, query_id=11, cpu=2 * MS)
    b.call(CallKind.EXECUTE, 2 * MS, 10 * MS, text=1, query_id=11, cpu=5 * MS, rows=3)
    b.request(0, 10 * MS, 5 * MS)
    b.call(CallKind.EXECUTE, 30 * MS, 39 * MS, text=2, query_id=12, cpu=11 * MS)
    b.call(CallKind.COMMIT, 39 * MS, 40 * MS, text=2, query_id=12, cpu=11 * MS)
    b.request(30 * MS, 40 * MS, 11 * MS)
    b.end(40 * MS)
    return b


#: Their waits.
ROWS = [
    (0, 3 * MS, 2 * MS),  # DataFileRead in the first execution
    (1, 6 * MS, 3 * MS),  # PgSleep
    (2, 10 * MS + 50 * US, 19 * MS),  # ClientRead between requests
    (3, 39 * MS + 100 * US, 900 * US),  # WalSync in the commit
]


def two_requests_ledger(directory: Path) -> Ledger:
    """The ledger of the two requests, from a file that is written there."""
    return ledgers.ledger(trace(directory / "t.pgtrace", two_requests().data, ROWS))
