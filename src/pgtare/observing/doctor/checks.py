"""Checks settings and observers: what they are set to, and what they did between two looks."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.observing.doctor import check_logging, check_settings, check_statements, evictions
from pgtare.observing.doctor.collect import read_facts, read_look, read_texts
from pgtare.observing.doctor.model import Statements, Waits
from pgtare.observing.doctor.observed import (
    ActivitySamples,
    DatedCounters,
    DoctorFacts,
    Look,
    Texts,
    elapsed_s,
)
from pgtare.observing.doctor.session import Session
from pgtare.observing.findings.collector import ServerKind
from pgtare.observing.findings.model import Finding


@dataclass(frozen=True)
class Checked:
    """What the checks found, and the figures that it comes from."""

    findings: list[Finding]
    statements: Statements | None
    transactions_per_s: float | None
    notes: tuple[str, ...] = ()


def check(
    facts: DoctorFacts,
    first: Look,
    last: Look,
    samples: ActivitySamples,
    waits: Waits | None,
    texts: Texts,
) -> Checked:
    """All checks of the time between two looks."""
    notes: tuple[str, ...] = ()
    evicted = evictions.between(facts, first, last, samples)
    if evicted.reset:
        when = f" at {last.dealloc.reset.astimezone():%H:%M:%S}" if last.dealloc is not None else ""
        notes = (
            f"pg_stat_statements was reset{when}, within this interval: no rates of evictions",
        )
    transactions_per_s, statements_per_s = _traffic(first, last)
    statements = check_statements.figures(facts, last, texts, evicted, waits)
    found = [
        *(check_statements.check(facts, statements, texts) if statements else ()),
        *check_logging.check(facts, max(transactions_per_s or 0.0, statements_per_s or 0.0)),
        *check_settings.clock(facts.clock),
        *check_settings.waits_clock(facts.waits_clock),
    ]
    return Checked(found, statements, transactions_per_s, notes)


def server_kind(facts: DoctorFacts, *, local: bool) -> ServerKind:
    """What the inputs of findings are read by."""
    return ServerKind(
        version=facts.major,
        standby=facts.server.standby,
        sees_all=facts.server.sees_all,
        statements=facts.statements.schema if facts.statements else None,
        waits=facts.waits.schema if facts.waits else None,
        local=local,
        may_stat_file=facts.may_stat_file,
        database=facts.server.database,
    )


class RepeatedChecks:
    """The checks of one server, again and again: each of the time since the last ones."""

    def __init__(self) -> None:
        self.facts: DoctorFacts | None = None
        self._look: Look | None = None

    def again(self, session: Session) -> list[Finding]:
        """What they find now; nothing the first time, when there is nothing to compare with.

        Texts are read only if entries were evicted: the server reads the file of all of them.
        """
        facts = self.facts = read_facts(session, self.facts.clock if self.facts else None)
        first, self._look = self._look, read_look(session, facts)
        if first is None:
            return []
        samples, none = ActivitySamples(), Texts(None, None)
        found = check(facts, first, self._look, samples, None, none)
        if any(one.kind == "evictions" for one in found.findings):
            texts = read_texts(session, facts)
            found = check(facts, first, self._look, samples, None, texts)
        return found.findings


def _traffic(first: Look, last: Look) -> tuple[float | None, float | None]:
    """Transactions and statements a second; None if a counter fell, or nobody counts."""

    def rate(before: int, after: int, begun: DatedCounters, ended: DatedCounters) -> float | None:
        seconds = elapsed_s(begun, ended)
        return (after - before) / seconds if after >= before and seconds > 0 else None

    statements = None
    if first.entries is not None and last.entries is not None:
        # entries that were evicted took their calls along: this is the least number
        grown = sum(
            max(0, calls - first.entries.calls.get(key, 0))
            for key, calls in last.entries.calls.items()
        )
        statements = rate(0, grown, first.entries, last.entries)
    return rate(first.transactions, last.transactions, first, last), statements
