"""Reads a server: its facts once, its counters at both ends of an interval, samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from pgtare.observing.doctor import queries
from pgtare.observing.doctor.model import Clock, Server, Unseen
from pgtare.observing.doctor.observed import (
    ActivitySamples,
    CountedWaits,
    Deallocations,
    DoctorFacts,
    Extension,
    Key,
    Look,
    StatementEntries,
    StatementText,
    Texts,
)
from pgtare.observing.doctor.session import Session
from pgtare.observing.findings.collector import SESSIONS
from pgtare.observing.findings.read import Unreadable, size_of_texts
from pgtare.observing.findings.remedies import set_at_once
from pgtare.observing.findings.statement_texts import MOST_BYTES, new_file
from pgtare.postgres.module_versions import Mismatch, ModuleVersions, mismatch
from pgtare.postgres.settings import listed_libraries, preload_on_command_line, preload_statement
from pgtare.postgres.wait_counters import steady_clock
from pgtare.postgres.wait_counters.model import Event

STATEMENTS = "pg_stat_statements"
WAITS = "wait_event_timing"
TEXTS = "texts of pg_stat_statements"
#: So many clock probes are made; the fastest counts.
_CLOCK_PROBES = 20
#: A larger table is read at both ends of an interval only.
LARGEST_SAMPLED = 10_000
#: If more sessions do not say what they do, what slows sessions cannot be seen.
_MOST_SILENT = 0.2
_PRIMARY = "  -- on the primary"


def read_facts(session: Session, clock: Clock | None = None) -> DoctorFacts:
    """Read what hardly changes. clock: what reading it was found to cost before."""
    unseen: list[Unseen] = []

    def lack(what: str, why: str, remedy: str) -> None:
        unseen.append(Unseen(what=what, why=why, remedy=remedy))

    ((*server, superuser, quoted, may_stat, may_read, clients, silent),) = session.rows(
        queries.IDENTITY
    )
    _, standby, _, database, role, sees_all = server
    found = session.rows(queries.EXTENSIONS)
    read_settings = session.rows(queries.SETTINGS)
    settings = {name: value for name, value, _ in read_settings}
    sources = {name: source for name, _, source in read_settings if source is not None}
    if superuser and any(name == STATEMENTS for name, *_ in found):
        session.stay_out()
    where = _PRIMARY if standby else ""
    extensions = {}
    for name, schema, number, usable, quoted_schema in found:
        if usable:
            extensions[name] = Extension(schema, number)
        else:
            grant = f"GRANT USAGE ON SCHEMA {quoted_schema} TO {quoted};{where}"
            lack(name, f"the role {role} may not use the schema {schema}", grant)
    if not sees_all:
        lack(
            "other roles' sessions and statements",
            f"the role {role} is no member of pg_read_all_stats",
            f"GRANT pg_read_all_stats TO {quoted};{where}",
        )
    if silent:
        lack(
            SESSIONS if silent > _MOST_SILENT * clients else "some sessions",
            f"{silent} of {clients} do not say what they do (track_activities = off)",
            set_at_once(
                "track_activities", "on", "  -- or where ALTER ROLE or ALTER DATABASE turned it off"
            ),
        )
    if STATEMENTS not in {name for name, *_ in found}:
        lack(STATEMENTS, *_absent(settings, sources, database, where))
    statements = extensions.get(STATEMENTS)
    if statements is not None and not statements.counts_deallocations:
        lack(
            f"evictions of {STATEMENTS}",
            f"version {statements.version} of the extension does not count them",
            f"ALTER EXTENSION {STATEMENTS} UPDATE;{where}",
        )
    waits = extensions.get(WAITS) if sees_all else None
    if waits is not None:
        # as other processes have it: our own session may have left itself out
        ((capture,),) = session.readable(queries.CAPTURE, waits.schema) or [(None,)]
        if capture:
            settings[f"{WAITS}.capture"] = capture
        if settings.get(f"{WAITS}.capture", "off") == "off":
            waits = None
    waits_clock = None
    if waits is not None:
        ((info,),) = session.readable(queries.WAITS_INFO, waits.schema) or [({},)]
        wrong = _wrong_version(session, waits, info.get("version"), database, standby)
        if wrong is None:
            waits_clock = info.get("clock_reason")
        else:
            lack(WAITS, wrong.why, wrong.remedy)
            waits = None
    return DoctorFacts(
        server=Server.of_row(server),
        settings=settings,
        sources=sources,
        statements=statements,
        waits=waits,
        may_stat_file=may_stat,
        clock=clock or _read_clock(session, may_read),
        unseen=tuple(unseen),
        waits_clock=waits_clock,
    )


def _wrong_version(
    session: Session, waits: Extension, library: str | None, database: str, standby: bool
) -> Mismatch | None:
    """Why exact waits cannot be read, if library, extension and this command do not go together."""
    if library is None:
        return None
    found = ModuleVersions(
        WAITS,
        database,
        library=library,
        extension=waits.version or None,
        functions=True,
        standby=standby,
    )
    if mismatch(found) is None:
        return None
    files = session.readable(queries.WAITS_FILES)
    return mismatch(replace(found, files=files[0][0]) if files else found)


def _absent(
    settings: Mapping[str, str], sources: Mapping[str, str], database: str, where: str
) -> tuple[str, str]:
    """Why pg_stat_statements is not there, and what would change that."""
    if "pg_stat_statements.max" in settings:
        why = f"it is loaded, but database {database} lacks the extension"
        other = "or name a database that has it"
        remedy = f"CREATE EXTENSION pg_stat_statements;{where + ',' if where else '  --'} {other}"
    else:
        why = "it is not loaded"
        remedy = f"{preload(settings, sources)} and CREATE EXTENSION pg_stat_statements;"
    return why, remedy


def preload(settings: Mapping[str, str], sources: Mapping[str, str]) -> str:
    """What loads pg_stat_statements next to the libraries that are loaded already."""
    if sources.get("shared_preload_libraries") == "command line":
        return f"-- {preload_on_command_line([STATEMENTS])}, then a restart"
    loaded = settings.get("shared_preload_libraries")
    line = preload_statement([*listed_libraries(loaded or ""), STATEMENTS])
    hidden = "with what SHOW prints of it, each name in quotes of its own; "
    return f"{line}  -- {hidden if loaded is None else ''}then a restart"


def _read_clock(session: Session, may_read: bool) -> Clock | None:
    read, else_read = [], []
    try:
        for _ in range(_CLOCK_PROBES):
            ((began, _, between, _, ended),) = session.rows(queries.CLOCK)
            read.append((between - began).total_seconds())
            else_read.append((ended - between).total_seconds())
    except Unreadable:
        return None
    # refused: no Linux, or a container that hides it
    sources = session.readable(queries.CLOCK_SOURCE) if may_read else []
    source = sources[0][0].strip() if sources and sources[0][0] else None
    read_ns = 1e9 * (min(read) - min(else_read)) / queries.CLOCK_READINGS
    return Clock(read_ns=max(0.0, read_ns), source=source)


def read_look(session: Session, facts: DoctorFacts) -> Look:
    """Read the counters; those that cannot be read are left out, with the reason."""
    ((taken, transactions),) = session.rows(queries.DATABASES)
    read_ns = steady_clock.now_ns()
    dealloc = entries = waits = None
    unseen: list[Unseen] = []
    if facts.statements is not None:
        schema = facts.statements.schema
        try:
            if facts.statements.counts_deallocations:
                ((at, count, reset),) = session.rows(queries.INFO, schema)
                dealloc = Deallocations(at, count, reset, steady_clock.now_ns())
            entries = read_entries(session, schema, taken)
        except Unreadable as ex:
            unseen.append(Unseen(what=STATEMENTS, why=str(ex), remedy=_mend(ex, facts)))
    if facts.waits is not None:
        try:
            waits = _read_waits(session, facts.waits.schema, taken)
        except Unreadable as ex:
            unseen.append(Unseen(what=WAITS, why=str(ex), remedy=""))
    return Look(taken, int(transactions or 0), dealloc, entries, waits, tuple(unseen), read_ns)


def _mend(ex: Unreadable, facts: DoctorFacts) -> str:
    if ex.privilege:
        return "-- a superuser can GRANT SELECT on its views and EXECUTE on its functions"
    if "shared_preload_libraries" in str(ex):
        return preload(facts.settings, facts.sources)
    return "-- try again; with a longer --interval the reading weighs less"


def _read_waits(session: Session, schema: str, taken: datetime) -> CountedWaits:
    ((info,),) = session.rows(queries.WAITS_INFO, schema)
    rows = session.rows(queries.WAITS, schema)
    read_ns = steady_clock.now_ns()
    ms = {Event(kind, name, idle): total for _, kind, name, idle, total in rows if kind is not None}
    timed = sum(total for _, kind, *_, total in rows if kind is None)
    ((captured,),) = session.rows(queries.CAPTURED, schema)
    at = rows[0][0] if rows else taken
    return CountedWaits(at, ms, info["resets"], timed if captured else None, read_ns)


def read_entries(session: Session, schema: str, taken: datetime) -> StatementEntries:
    """Read the table of statements, without texts."""
    calls: dict[Key, int] = {}
    hidden = 0
    for at, user, database, queryid, n, called in session.rows(queries.ENTRIES, schema):
        taken = at
        if queryid is None:
            hidden += n
        else:
            calls[user, database, queryid] = called
    return StatementEntries(taken, calls, hidden, steady_clock.now_ns())


def sample(session: Session, facts: DoctorFacts, into: ActivitySamples) -> None:
    """Look once at what sessions do."""
    if facts.server.sees_all:
        look: Counter[str] = Counter()
        for kind, name, n in session.rows(queries.ACTIVITY):
            look[f"{kind}/{name}" if kind else ""] += n
        into.add(look)


def sample_entries(session: Session, facts: DoctorFacts, into: ActivitySamples) -> None:
    """Look once at which statements are in the table."""
    if facts.statements is None or facts.table_size > LARGEST_SAMPLED:
        return
    schema = facts.statements.schema
    into.statements |= read_entries(session, schema, facts.server.started).calls.keys()


def read_texts(session: Session, facts: DoctorFacts) -> Texts:
    """Read what the statements say, unless their file is so large that reading it would hurt."""
    if facts.statements is None:
        return Texts(None, None)
    size = None
    try:
        if facts.may_stat_file:
            # if the server gives that up, nothing is read: the file may have any size
            size = size_of_texts(session)
        if size is not None and size > MOST_BYTES:
            limit = f"{MOST_BYTES // 1024**2} MB"
            why = f"their file is larger than {limit}, all of which the server would load"
            remedy = new_file(facts.statements.schema)
            return Texts(None, size, (Unseen(what=TEXTS, why=why, remedy=remedy),))
        rows = session.rows(queries.TEXTS, facts.statements.schema)
    except Unreadable as ex:
        return Texts(None, size, (Unseen(what=TEXTS, why=str(ex), remedy=""),))
    texts = (
        StatementText(user, database, text, int(length or 0), calls)
        for user, database, text, length, calls in rows
    )
    return Texts(tuple(texts), size)
