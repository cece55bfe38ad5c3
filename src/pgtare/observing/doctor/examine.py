"""Looks at a server for some seconds and writes the report; or again and again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

import pgtare
from pgtare.observing.doctor import check_settings, checks, evictions
from pgtare.observing.doctor.collect import (
    read_facts,
    read_look,
    read_texts,
    sample,
    sample_entries,
)
from pgtare.observing.doctor.model import Report, Unseen, worst
from pgtare.observing.doctor.observed import (
    ActivitySamples,
    DoctorFacts,
    Look,
    Texts,
    elapsed_s,
    wait_profile,
)
from pgtare.observing.doctor.session import Session
from pgtare.observing.findings import compute
from pgtare.observing.findings.collector import FindingInputs, LockTableLooks
from pgtare.observing.findings.observation import Observation
from pgtare.observing.findings.read import Unreadable
from pgtare.observing.findings.statement_texts import FindingTexts, TextFile

#: How often sessions are looked at, in s.
SAMPLE_S = 0.05
#: How often at what each of them does, and whom it waits for, in s.
SESSIONS_S = 0.25
#: How often at which statements are in the table, in s.
ENTRIES_S = 0.5
#: Called with the seconds that an interval has lasted.
Tick = Callable[[float], None]


def watch(
    session: Session, interval_s: float, tick: Tick = lambda seconds: None
) -> Iterator[Report]:
    """A report after each interval, without end.

    Raises MeasurementError if the server goes away.
    """
    facts = read_facts(session)
    collector = FindingInputs(session, checks.server_kind(facts, local=session.is_local))
    first, begun, locks = read_look(session, facts), collector.totals(), LockTableLooks()
    texts = FindingTexts(TextFile())
    while True:
        samples = _samples(session, facts, first, collector, interval_s, tick)
        with contextlib.suppress(Unreadable):
            facts = read_facts(session, facts.clock)  # the user may just have applied a remedy
        last, ended = read_look(session, facts), collector.totals()
        window_s = sum(each.weight_s for each in collector.samples)
        waited_s, table = time_by_event(first, last, window_s), locks.look(collector)
        seen = collector.observation(
            facts.settings,
            begun,
            ended,
            waited_s,
            sources=facts.sources,
            texts=collector.texts(texts),
            lock_table=table,
        )
        yield _report(session, facts, first, last, samples, seen, collector.unseen)
        first, begun = last, ended
        collector = FindingInputs(session, checks.server_kind(facts, local=session.is_local))


def time_by_event(first: Look, last: Look, window_s: float) -> dict[str, float] | None:
    """Time by event, s; None if the waits of some are not counted, or the counters were reset.

    window_s: what the samples cover. The counters are read a while before and after them.
    """
    counted = last.waits.since(first.waits) if first.waits and last.waits else None
    if counted is None or counted.captured_ms is None:
        return None
    waited = {event: ms for event, ms in counted.waited_ms.items() if not event.idle}
    found = {event.label: counted.average(ms) * window_s for event, ms in waited.items()}
    if counted.sessions is not None and counted.on_cpu is not None:
        found["CPU"] = counted.on_cpu * window_s
    return found


def examine(session: Session, interval_s: float, tick: Tick = lambda seconds: None) -> Report:
    """One report."""
    return next(watch(session, interval_s, tick))


def _samples(
    session: Session,
    facts: DoctorFacts,
    first: Look,
    collector: FindingInputs,
    seconds: float,
    tick: Tick,
) -> ActivitySamples:
    """Look at the sessions until the interval is over, and now and then at a table that is full."""
    found = ActivitySamples()
    began = next_entries = next_sessions = time.monotonic()
    full = first.entries is not None and evictions.is_full(first.entries, facts.table_size)
    while (spent := time.monotonic() - began) < seconds:
        collector.looks += 1
        try:
            sample(session, facts, found)
            if time.monotonic() >= next_sessions:
                next_sessions += SESSIONS_S
                collector.sample(SESSIONS_S)
            if full and time.monotonic() >= next_entries:
                next_entries += ENTRIES_S
                sample_entries(session, facts, found)
        except Unreadable:
            collector.refused += 1
            time.sleep(SAMPLE_S)
        tick(spent)
        time.sleep(max(0.0, min(SAMPLE_S, seconds - (time.monotonic() - began))))
    if collector.is_unasked:  # the server answered so slowly that there was one look
        with contextlib.suppress(Unreadable):
            collector.sample(SESSIONS_S)
    return found


def _report(
    session: Session,
    facts: DoctorFacts,
    first: Look,
    last: Look,
    samples: ActivitySamples,
    seen: Observation,
    missed: Mapping[str, str],
) -> Report:
    waits = wait_profile(first, last, samples)
    texts = read_texts(session, facts) if last.entries is not None else Texts(None, None)
    checked = checks.check(facts, first, last, samples, waits, texts)
    notes = list(checked.notes)
    if waits is not None and last.waits is not None and not waits.exact:
        notes.append("the wait timing was reset within this interval: the waits are sampled")
    found = [
        # what was there at the first sample may have been there for long
        each.model_copy(update={"since": None})
        if each.since and each.since >= first.taken
        else each
        for each in compute.findings(seen, checked.findings, busy=True)
    ]
    return Report(
        taken=last.taken,
        duration_s=elapsed_s(first, last),
        pgtare_version=pgtare.__version__,
        server=facts.server,
        level=worst(found),
        findings=found,
        statements=checked.statements,
        waits=waits,
        clock=facts.clock,
        transactions_per_s=checked.transactions_per_s,
        observers=check_settings.observers(facts),
        unseen=[
            *facts.unseen,
            *last.unseen,
            *texts.unseen,
            *(Unseen(what=what, why=why, remedy="") for what, why in missed.items()),
        ],
        notes=notes,
    )
