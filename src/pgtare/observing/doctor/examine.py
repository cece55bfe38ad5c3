"""Looks at a server for some seconds and writes the report; or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

import pgtare
from pgtare.observing.doctor import check_logging, check_settings, check_statements, evictions
from pgtare.observing.doctor import waits as waiting
from pgtare.observing.doctor.check_settings import Traffic, Weight
from pgtare.observing.doctor.collect import (
    read_facts,
    read_holders,
    read_look,
    read_texts,
    sample,
    sample_entries,
)
from pgtare.observing.doctor.evictions import Evictions, StatisticsReset
from pgtare.observing.doctor.model import ORDER, Report
from pgtare.observing.doctor.observed import ActivitySamples, DoctorFacts, Look, Texts
from pgtare.observing.doctor.session import Session, Unreadable

#: How often sessions are looked at, in s.
SAMPLE_S = 0.05
#: How often at which statements are in the table, in s.
ENTRIES_S = 0.5
#: Called with the seconds that an interval has lasted.
Tick = Callable[[float], None]


def watch(
    session: Session,
    interval_s: float,
    weights: Mapping[str, Weight],
    tick: Tick = lambda seconds: None,
) -> Iterator[Report]:
    """A report after each interval, without end.

    Raises MeasurementError if the server goes away.
    """
    facts = read_facts(session)
    first = read_look(session, facts)
    while True:
        samples = _samples(session, facts, first, interval_s, tick)
        facts = _again(session, facts)
        last = read_look(session, facts)
        yield _report(session, facts, first, last, samples, weights)
        first = last


def _again(session: Session, facts: DoctorFacts) -> DoctorFacts:
    """The facts anew: the user may just have applied a remedy."""
    try:
        return read_facts(session, facts.clock)
    except Unreadable:
        return facts


def examine(
    session: Session,
    interval_s: float,
    weights: Mapping[str, Weight],
    tick: Tick = lambda seconds: None,
) -> Report:
    """One report."""
    return next(watch(session, interval_s, weights, tick))


def _samples(
    session: Session, facts: DoctorFacts, first: Look, seconds: float, tick: Tick
) -> ActivitySamples:
    """Look at the sessions until the interval is over, and now and then at a table that is full."""
    found = ActivitySamples()
    began = next_entries = time.monotonic()
    full = first.entries is not None and evictions.is_full(first.entries, facts.table_size)
    while (spent := time.monotonic() - began) < seconds:
        try:
            sample(session, facts, found)
            if full and time.monotonic() >= next_entries:
                next_entries += ENTRIES_S
                sample_entries(session, facts, found)
        except Unreadable:
            time.sleep(SAMPLE_S)
        tick(spent)
        time.sleep(max(0.0, min(SAMPLE_S, seconds - (time.monotonic() - began))))
    return found


def _report(
    session: Session,
    facts: DoctorFacts,
    first: Look,
    last: Look,
    samples: ActivitySamples,
    weights: Mapping[str, Weight],
) -> Report:
    seconds = (last.taken - first.taken).total_seconds()
    notes = []
    try:
        evicted = evictions.between(facts, first, last, samples)
    except StatisticsReset:
        evicted = Evictions()
        when = f" at {last.dealloc.reset.astimezone():%H:%M:%S}" if last.dealloc is not None else ""
        notes.append(
            f"pg_stat_statements was reset{when}, within this interval: no rates of evictions"
        )
    waits = waiting.profile(first, last, samples)
    if waits is not None and last.waits is not None and not waits.exact:
        notes.append("the wait timing was reset within this interval: the waits are sampled")
    holders = read_holders(session) if waits is not None and waiting.check(waits) else ()
    traffic = _traffic(first, last)
    texts = read_texts(session, facts) if last.entries is not None else Texts(None, None)
    statements = check_statements.figures(
        facts, last, texts, evicted, waits, traffic.statements_per_s
    )
    observers, costly = check_settings.observers(facts, weights, traffic)
    found = [
        *(check_statements.check(facts, statements, texts) if statements else ()),
        *(waiting.check(waits, holders) if waits else ()),
        *check_logging.check(facts, traffic),
        *costly,
        *check_settings.clock(facts.clock),
        *check_settings.kept(facts.kept),
    ]
    ordered = sorted(found, key=lambda finding: ORDER.index(finding.level))
    return Report(
        taken=last.taken,
        duration_s=seconds,
        pgtare_version=pgtare.__version__,
        server=facts.server,
        level=ordered[0].level if ordered else "ok",
        findings=ordered,
        statements=statements,
        waits=waits,
        clock=facts.clock,
        transactions_per_s=traffic.transactions_per_s,
        observers=observers,
        unseen=[
            *facts.unseen,
            *last.unseen,
            *texts.unseen,
            *check_settings.unweighed(weights, facts),
        ],
        notes=notes,
    )


def _traffic(first: Look, last: Look) -> Traffic:
    """Rates between two looks; a counter that fell was reset and gives none."""

    def rate(before: int, after: int, begun: datetime, ended: datetime) -> float | None:
        seconds = (ended - begun).total_seconds()
        return (after - before) / seconds if after >= before and seconds > 0 else None

    statements = None
    if first.entries is not None and last.entries is not None:
        # entries that were evicted took their calls along: this is the least number
        grown = sum(
            max(0, calls - first.entries.calls.get(key, 0))
            for key, calls in last.entries.calls.items()
        )
        statements = rate(0, grown, first.entries.taken, last.entries.taken)
    return Traffic(
        rate(first.transactions, last.transactions, first.taken, last.taken),
        statements,
        rate(first.blocks_read, last.blocks_read, first.taken, last.taken),
    )
