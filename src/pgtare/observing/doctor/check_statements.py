"""Checks pg_stat_statements: evictions first, then what churns the table, texts and their file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pgtare.kit import numbers
from pgtare.observing.doctor import churn, evictions
from pgtare.observing.doctor.evictions import Evictions
from pgtare.observing.doctor.model import Statements, Waits
from pgtare.observing.doctor.observed import DoctorFacts, Look, Texts
from pgtare.observing.findings.finding_parts import short, spent
from pgtare.observing.findings.model import Finding, Sure, of_setting
from pgtare.observing.findings.remedies import set_at_once
from pgtare.observing.findings.statement_texts import new_file, reset

#: Shares of throughput, or of the time, lost to evictions.
WARNING_LOST, CRITICAL_LOST = 0.01, 0.05
#: Sessions' time spent waiting for the table's lock; if it is sampled, the least of it.
WARNING_WAITED, CRITICAL_WAITED = 0.01, 0.10
#: Entries that live shorter than most monitoring's interval make its figures worthless.
SHORT_LIFE_S = 300.0
LOCK_EVENT = "LWLock/pg_stat_statements"
#: A family of texts worth naming, as a share of the table.
_CHURN_SHARE = 0.2
#: The file is written anew once it holds 512 bytes an entry and twice what the texts need.
_FILE_BYTES_AN_ENTRY = 512
_FILE_GROWTH = 2
#: So large a file holds every session up while it is read for a rewrite.
_LARGE_FILE = 256 * 1024 * 1024
#: Sizes that people set; PostgreSQL's default is the first.
_SIZES = (5_000, 10_000, 20_000, 50_000)


def figures(
    facts: DoctorFacts, last: Look, texts: Texts, found: Evictions, waits: Waits | None
) -> Statements | None:
    """pg_stat_statements in figures; None if it is not there."""
    if facts.statements is None or last.entries is None:
        return None
    size = facts.table_size
    count = last.dealloc
    since = (count.taken - count.reset).total_seconds() if count else 0.0
    rows = texts.rows
    evicted = found.evicted_per_s
    sweep_s = evictions.sweep_s(size)
    return Statements(
        schema_name=facts.statements.schema,
        version=facts.statements.version,
        max=size,
        entries=last.entries.count,
        deallocations_per_s=found.deallocations_per_s,
        evicted_per_s=evicted,
        deallocations_since_reset=count.count if count else None,
        stats_reset=count.reset if count else None,
        since_reset_per_s=count.count / since if count and since > 0 else None,
        sweep_ms=1000 * sweep_s,
        occupancy=None
        if found.deallocations_per_s is None
        else min(1.0, found.deallocations_per_s * sweep_s),
        turnover_s=size / evicted if evicted else None,
        lost_share=None if evicted is None else evictions.lost(size, evicted),
        distinct=found.distinct,
        live_text_bytes=None
        if rows is None or last.entries.hidden
        else sum(t.length + 1 for t in rows),
        text_file_bytes=texts.file_bytes,
        null_texts=None if rows is None else sum(1 for t in rows if t.text is None),
        lock_share=waits.share(LOCK_EVENT) if waits else None,
        lock_share_lo=waits.least(LOCK_EVENT) if waits else None,
    )


def check(facts: DoctorFacts, found: Statements, texts: Texts) -> Iterator[Finding]:
    """The findings, evictions before what follows from them."""
    tracked = facts.settings.get("pg_stat_statements.track", "top")
    rows = texts.rows or ()
    families = churn.families(
        churn.StatementEntry(t.user, t.database, t.text, t.calls)
        for t in rows
        if t.text is not None
    )
    evicting = _evictions(found, families, tracked)
    if evicting is not None:
        yield evicting
        yield from _churn(found, families, len(rows))
    yield from _texts(found)
    if facts.settings.get("pg_stat_statements.track_planning") == "on":
        yield _planning(found)


def _evictions(found: Statements, families: Sequence[churn.Family], tracked: str) -> Finding | None:
    """Whether evictions cost more than a hundredth, or make the statistics worthless."""
    swept, evicted = found.deallocations_per_s, found.evicted_per_s
    if not swept or not evicted:
        return None
    lost, occupancy = found.lost_share or 0.0, found.occupancy or 0.0
    turnover_s, waited = found.turnover_s or 0.0, found.lock_share_lo or 0.0
    costs = max(lost, occupancy) >= WARNING_LOST or waited >= WARNING_WAITED
    if not costs and turnover_s >= SHORT_LIFE_S:
        return None
    severe = max(lost, occupancy) >= CRITICAL_LOST or waited >= CRITICAL_WAITED
    seen = [
        f"{numbers.rate(swept)} deallocations/s, {numbers.rate(evicted)} entries evicted/s of "
        f"{found.max:,} places: as many as there are in {spent(turnover_s)}",
        f"where that was measured (2 processors), a sweep of {found.max:,} entries took "
        f"{spent(found.sweep_ms / 1000)}, by which the table is locked for sweeps "
        f"{numbers.percent(100 * occupancy)} of the time, and such a rate took about "
        f"{numbers.percent(min(99, 100 * lost))} of throughput",
    ]
    if found.lock_share is not None:
        line = (
            f"{LOCK_EVENT}: {numbers.percent(100 * found.lock_share)} of the sessions' active time"
        )
        least = found.lock_share_lo
        if least is not None and least < found.lock_share:
            line += f", sampled; at least {numbers.percent(100 * least)}"
        seen.append(line)
    if found.since_reset_per_s is not None:
        seen.append(
            f"since the statistics were reset: {found.deallocations_since_reset:,} deallocations, "
            f"{numbers.rate(found.since_reset_per_s)}/s"
        )
    if found.distinct == math.inf:
        seen.append("hardly any statement was there at both looks: they are new ones all the time")
    elif found.distinct is not None:
        seen.append(f"about {found.distinct:,.0f} statements or more take turns in the table")
    sure, because = _sureness(found, severe=severe)
    return of_setting(
        "evictions",
        level="critical" if severe else "warning",
        title="pg_stat_statements evicts entries all the time: "
        f"more statements than its {found.max:,} places",
        evidence=seen,
        why="every eviction locks the table against all sessions: any statement, even a COMMIT, "
        "may stall at its end until the sweep is done; and the statistics forget what was evicted",
        remedy=_remedy(found, families, tracked),
        sure=sure,
        because=because,
        figures={
            "deallocations_per_s": swept,
            "evicted_per_s": evicted,
            "occupancy": occupancy,
            "turnover_s": turnover_s,
            "lost": lost,
        },
    )


def _sureness(found: Statements, *, severe: bool) -> tuple[Sure, str]:
    """Certain if what this server showed by itself suffices for the level."""
    waited = found.lock_share_lo or 0.0
    if waited >= (CRITICAL_WAITED if severe else WARNING_WAITED):
        return "certain", "the server counts deallocations, and sessions were seen to wait for them"
    if not severe and (found.turnover_s or 0.0) < SHORT_LIFE_S:
        return "certain", "the server counts deallocations, and entries that come and go so fast"
    return "likely", (
        "the server counts deallocations; what they cost is taken from measurements on another "
        "machine (docs/questions.md)"
    )


def _remedy(found: Statements, families: Sequence[churn.Family], tracked: str) -> list[str]:
    steps = []
    size = _enough(found)
    if size is not None:
        steps.append(
            f"ALTER SYSTEM SET pg_stat_statements.max = {size};  -- then restart the server"
        )
    else:
        named = f", first {families[0].kind}" if families else ""
        steps.append(
            f"-- mend what churns the table{named}: no bearable size holds all these statements"
        )
    if tracked != "none":
        steps.append(_track("none", "  -- until then: stops evictions at once, and the statistics"))
        steps.append(_track(tracked, "  -- afterwards: statistics again"))
    steps.append(f"{reset(found.schema_name)}  -- afterwards, so that rates start anew")
    return steps


def _track(value: str, comment: str) -> str:
    return set_at_once("pg_stat_statements.track", f"'{value}'", comment)


def _enough(found: Statements) -> int | None:
    """A size that suffices, as each attempt is a restart: four times the statements seen.

    The largest will do for half as many. None if no size holds them.
    """
    statements = max(found.distinct or 0.0, float(found.max))
    if 2 * statements > _SIZES[-1]:
        return None
    return next((size for size in _SIZES if size >= 4 * statements), _SIZES[-1])


def _churn(found: Statements, families: Sequence[churn.Family], entries: int) -> Iterator[Finding]:
    for family in families:
        share = family.members / entries
        if share < _CHURN_SHARE:
            return
        why, remedy = churn.REMEDIES[family.kind]
        fill = "fills" if family.kind.startswith("one ") else "fill"
        yield of_setting(
            "churn",
            name=family.kind,
            level="warning",
            title=f"{family.kind} {fill} {100 * share:.0f} % of pg_stat_statements",
            evidence=[
                f"{family.members:,} of {entries:,} entries differ in that only: "
                f"{short(family.pattern, 100)}",
                f"for example {short(family.example, 100)}",
            ],
            why=why,
            remedy=[remedy.format(max=_enough(found) or 2 * found.max)],
            sure="likely",
            because="the texts were compared by patterns; what makes them was not seen",
            figures={"entries": family.members, "share": share, "calls": family.calls},
        )


def _texts(found: Statements) -> Iterator[Finding]:
    if found.null_texts:
        yield of_setting(
            "texts",
            level="warning",
            title=f"{found.null_texts:,} statements have lost their text",
            evidence=[f"{found.null_texts:,} of {found.entries:,} entries have no text"],
            why="the file of texts could not be written or read (a full disk, or no memory to "
            "rewrite it): the figures have no statement to belong to",
            remedy=[new_file(found.schema_name)],
            sure="certain",
            because="the entries were read",
            figures={"null_texts": found.null_texts},
        )
    size, live = found.text_file_bytes, found.live_text_bytes
    if size is None:
        return
    bound = _FILE_GROWTH * max(_FILE_BYTES_AN_ENTRY * found.max, _FILE_GROWTH * (live or 0))
    if size > max(bound, 1024 * 1024) or size > _LARGE_FILE:
        known = "" if live is None else f", {live / 1e6:,.1f} MB of it live"
        yield of_setting(
            "text file",
            level="warning",
            title=f"the file of statement texts has grown to {size / 1e6:,.0f} MB",
            evidence=[f"pg_stat_tmp/pgss_query_texts.stat: {size / 1e6:,.1f} MB{known}"],
            why="each look at pg_stat_statements with its texts reads the whole file, and "
            "writing it anew locks the table against all sessions",
            remedy=[
                "-- let monitoring call pg_stat_statements(false), which reads no texts",
                new_file(found.schema_name),
            ],
            sure="certain",
            because="the file's size was read",
            figures={"file_bytes": size, "live_bytes": live or 0},
        )


def _planning(found: Statements) -> Finding:
    return of_setting(
        "track_planning",
        level="warning",
        title="pg_stat_statements.track_planning is on",
        evidence=["pg_stat_statements.track_planning = on"],
        why="every planning updates the statement's entry once more, under the entry's own lock: "
        "many sessions that plan the same statement wait for each other",
        remedy=[set_at_once("pg_stat_statements.track_planning", "off")],
        sure="possible",
        because="what it costs here was not measured: "
        "`pgtare weigh pg_stat_statements/planning --dsn …` does",
    )
