"""From what was asked and what the server has to a design: arms, block, seed, population."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from pgtare.errors import UsageError
from pgtare.estimate.trial.design import MIXED, Arm, Design, block_layout, slices_of
from pgtare.postgres import module_versions, pooler
from pgtare.postgres.load.spec import cores
from pgtare.postgres.modules import PRELOAD_ORDER
from pgtare.postgres.own_session import APPLICATION_NAME, first_line
from pgtare.weighing.instruments.arms import combine, refuse_reported
from pgtare.weighing.instruments.model import TOGETHER
from pgtare.weighing.instruments.requirements import availability, read_facts
from pgtare.weighing.instruments.statement_logging import logs
from pgtare.weighing.trials import MAX_SESSIONS, Population
from pgtare.weighing.weigh.participation import TRANSACTIONS
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.session_lengths import session_lengths, too_short
from pgtare.weighing.weigh.statistics_gaps import holes, nothing_new

#: Slices have these lengths at least, in ms, and on the mean room for so many transactions of a
#: session; so long they may get, in ms.
SLICE_MS, SLICE_TRANSACTIONS, LONGEST_SLICE_MS = (50.0, 150.0), 64, 1000.0
_RATE_S = 2.0
#: A line of the log with a short statement in it, roughly, in bytes.
_LOG_LINE_BYTES = 250


@dataclass(frozen=True)
class WeighPlan:
    """All that is decided before the first transaction is measured."""

    request: Request
    design: Design
    population: Population
    sessions_there: int
    warnings: tuple[str, ...]
    too_short: str = ""  # why sessions hold no whole block, which is said before the trial


def check_server(
    conn: psycopg.Connection[Any], request: Request, provided: frozenset[str] = frozenset()
) -> None:
    """Raise UsageError, with the remedy, if the server cannot serve this weighing.

    provided: extensions that count as created.
    """
    ((standby,),) = pooler.rows(conn, "SELECT pg_is_in_recovery()")
    if standby:
        raise UsageError(
            "this server is a standby: what instruments cost there depends on replay as well; "
            "weigh on the primary"
        )
    facts = read_facts(conn)
    facts = replace(facts, extensions=facts.extensions | provided)
    missing = [
        f"{choice.name}: {lack}"
        for choice in request.chosen
        for lack in availability(choice, facts)
    ]
    if missing:
        raise UsageError("this server cannot weigh " + "\n  and ".join(missing))
    needed = {library for c in request.chosen if c.entry for library in c.entry.needs.preload}
    for module in sorted(needed & {*PRELOAD_ORDER}):
        try:
            module_versions.require(conn, module)
        except psycopg.Error as ex:
            raise UsageError(f"the version of {module} cannot be read: {first_line(ex)}") from ex
    if request.dsn is not None:
        refuse_unsafe(request)


def try_settings(conn: psycopg.Connection[Any], arms: Sequence[Arm]) -> None:
    """Raise UsageError, naming the arm, for a value that a setting does not take."""
    for arm in arms:
        for name, value in arm.settings.items():
            try:
                with conn.transaction(force_rollback=True):
                    conn.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, value))
            except psycopg.errors.InvalidParameterValue as ex:
                raise UsageError(f"arm {arm.name}: {first_line(ex)}") from ex
            except psycopg.Error:
                continue  # the server module has the better sentence for it


def refuse_unsafe(request: Request) -> None:
    """Raise UsageError for what must not be switched on without being asked for by name."""
    for choice in request.chosen:
        entry = choice.entry
        if choice.name == TOGETHER:  # of which each is judged by itself
            continue
        if entry is None:
            name = _logging_setting(choice.settings)
            reason = "it floods the log, which holds the literals of statements"
        else:
            name, reason = ("" if entry.safe_in_production else entry.name), entry.reason
        if name and name not in request.allow:
            raise UsageError(
                f"{choice.name} is not safe on a server of yours ({reason}): add --allow {name} "
                "if you want it all the same"
            )


def arms_of(request: Request) -> tuple[Arm, ...]:
    """The arms of a trial; with base "current" the base arm keeps each session's own settings.

    A saturation design compares one arm with the base, and has no control among its arms.
    """
    if not request.outside:
        refuse_reported(request.chosen)
    arms = combine(request.chosen, request.inject_ns)
    if request.base == "current":
        own = {choice.name: choice.settings for choice in request.chosen}
        arms = [Arm(a.name, a.role, dict(own.get(a.name, {})), a.inject_ns) for a in arms]
    if request.unit == "both":
        arms = [arm for arm in arms if arm.role != "control"]
    return tuple(arms)


def design_of(request: Request) -> Design:
    """Arms, blocks and slices of a trial."""
    arms = arms_of(request)
    shortest, longest = (round(1000 * ms) for ms in request.slice_ms or SLICE_MS)
    slices = slices_of(request.unit, len(arms), shortest, longest)
    block = block_layout(len(arms))
    return Design(arms, block, request.seed, slices)


def transaction_rate(conn: psycopg.Connection[Any]) -> float | None:
    """Transactions a second of the connected database now, seen for two seconds."""
    first = pooler.rows(conn, TRANSACTIONS)
    time.sleep(_RATE_S)
    second = pooler.rows(conn, TRANSACTIONS)
    return max(0.0, float(second[0][0] - first[0][0]) / _RATE_S) if first and second else None


def slice_lengths(rate: float | None, sessions: int) -> tuple[float, float]:
    """Shortest and longest slice in ms, for so many transactions a second of these sessions."""
    shortest, longest = SLICE_MS
    if not rate or not sessions:
        return SLICE_MS
    mean = 1000 * SLICE_TRANSACTIONS * sessions / rate
    longer = max(1.0, 2 * mean / (shortest + longest))
    return min(shortest * longer, LONGEST_SLICE_MS), min(longest * longer, LONGEST_SLICE_MS)


def sessions_there(conn: psycopg.Connection[Any], population: Population) -> list[int]:
    """Process ids of the client sessions connected now that the population's description fits."""
    rows = pooler.rows(
        conn,
        "SELECT pid, application_name FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND pid <> pg_backend_pid() AND datname = coalesce(%s, datname)"
        " AND usename = coalesce(%s::name, usename)",
        population.database,
        population.role,
    )
    return [
        int(pid)
        for pid, name in rows
        if fnmatch.fnmatchcase(name, population.application) and name != APPLICATION_NAME
    ]


def nobody(plan: WeighPlan) -> str:
    """What to do if no session takes part, for the reader."""
    who = plan.population
    there = plan.sessions_there
    if there:
        found = f"{there} that fit{'s is' if there == 1 else ' are'} connected, and ran nothing yet"
    else:
        found = (
            f"none that fits (database {who.database}, application_name {who.application}"
            f"{f', role {who.role}' if who.role else ''}) was connected"
        )
    return (
        f"no session takes part: {found}; run your load now, or end this with Ctrl-C and choose "
        "others with --dsn, --application or --role"
    )


def make_plan(
    conn: psycopg.Connection[Any], request: Request, application: str | None = None
) -> WeighPlan:
    """Decide the whole trial. application: the one name of the load's sessions, if it is ours."""
    # not as the connection names it: a pooler may have other names for databases
    ((database,),) = pooler.rows(conn, "SELECT current_database()")
    population = Population(
        database=database,
        role=request.role,
        application=application or request.application,
        participation=request.participation,
    )
    there = len(sessions_there(conn, population))
    if request.unit != "run" and request.slice_ms is None:
        request = replace(request, slice_ms=slice_lengths(transaction_rate(conn), there))
    design = design_of(request)
    expected = request.load.clients + 4 if request.load else 2 * there + 16
    population = replace(population, sessions=min(expected, MAX_SESSIONS))
    # sessions of a load of our own last as long as the trial
    short = "" if request.load else too_short(design, session_lengths(conn))
    notes = [short] if short else []
    found = (*holes(conn, request, design), *nothing_new(conn, request, design))
    warnings = (*_warnings(request), *found, *notes)
    return WeighPlan(request, design, population, there, warnings, short)


def _warnings(request: Request) -> Iterator[str]:
    load = request.load
    if load and load.clients > cores() and load.rate is None and request.headroom is None:
        yield (
            f"{load.clients} clients on {cores()} cores: service times include waiting for a "
            "processor, and a slow arm delays the others' transactions. Read the CPU column too."
        )
    if request.unit != "run" and request.participation < 1:
        yield (
            "Only a share of the sessions takes part, so a slice of an arm is no server in which "
            "all have it: what sessions do to each other is understated."
        )
    query_id = any("compute_query_id" in choice.settings for choice in request.chosen)
    if load and load.protocol == "prepared" and query_id:
        yield (
            "With prepared statements query ids are computed once, when a statement is parsed, "
            "whatever the arm says later: weigh pg_stat_statements_prepared instead."
        )


def _block_line(design: Design) -> str:
    runs = design.runs
    if design.slices is not None:
        return f"{len(design.arms)} arms"
    return (
        f"{len(design.arms)} arms, each kept by a session for {runs.shortest} to {runs.longest} "
        f"transactions, in permuted blocks of {len(design.block)} such runs"
    )


def arms_lines(design: Design) -> list[str]:
    """A line an arm, with all that it sets."""
    found = []
    for arm in design.arms:
        settings = ", ".join(f"{k} = {v!r}" for k, v in sorted(arm.settings.items()))
        extra = f" and a delay of {arm.inject_ns} ns" if arm.inject_ns else ""
        found.append(f"  {arm.name}: {settings or 'the session’s own settings'}{extra}")
    return found


def describe(plan: WeighPlan, rate_tps: float | None) -> list[str]:
    """The plan in words and what a reader must know, for --dry-run.

    rate_tps: transactions a second now, if known.
    """
    request, design = plan.request, plan.design
    lines = [
        f"{_block_line(design)}; seed {design.seed}, {request.duration_s:g} s at most",
        *_slices_lines(design),
        _load_line(request),
        _population_line(plan),
    ]
    lines += arms_lines(design)
    slots = [slot for slot in design.block if _logging_setting(design.arms[slot].settings)]
    if slots:
        share = len(slots) / len(design.block)
        names = ", ".join(dict.fromkeys(design.arms[slot].name for slot in slots))
        volume = ""
        if rate_tps:
            volume = (
                f"; at the present {rate_tps:.0f} transactions/s about "
                f"{rate_tps * share * _LOG_LINE_BYTES / 1e6:.1f} MB/s if each is one short "
                "statement"
            )
        lines.append(
            f"log: up to {100 * share:.0f} % of the transactions go to the log, for {names}{volume}"
        )
    if request.dsn is not None:
        lines.append(
            "privileges: EXECUTE on the functions of schema pgtare, and SET on the parameters above"
        )
    return [*lines, *plan.warnings]


def _slices_lines(design: Design) -> list[str]:
    if design.slices is None:
        return []
    names = [design.arms[k].name if k != MIXED else "mixed" for k in design.slices.kinds]
    return [
        f"slices of {design.slices.min_us / 1000:g} to {design.slices.max_us / 1000:g} ms, in "
        f"which all sessions follow one arm, in random order: {', '.join(names)}"
    ]


def _load_line(request: Request) -> str:
    load = request.load
    if load is None:
        return "load: the server's own traffic; nothing is written to its databases"
    what = ", ".join(s.path.name for s in load.scripts) if load.scripts else load.builtin
    speed = "full speed"
    if load.rate is not None:
        speed = f"{load.rate:g} transactions/s"
    elif request.headroom is not None:
        speed = f"{100 * request.headroom:.0f} % of full speed, which is found first"
    line = f"load: pgbench {what}, {load.clients} client{'s' if load.clients > 1 else ''}, {speed}"
    if request.dsn is not None and load.scripts:
        return f"{line}, in the database of --dsn, where the script does what it says"
    where = "on that server" if request.dsn is not None else "on a server of pgtare's own"
    return f"{line}, in a new database of about {15 * request.scale} MB {where}, dropped at the end"


def _population_line(plan: WeighPlan) -> str:
    population = plan.population
    if plan.request.load is not None:
        return "sessions: those of the load"
    line = (
        f"sessions: database {population.database}, role {population.role or 'any'}, "
        f"application_name {population.application}: {plan.sessions_there} connected now"
    )
    if population.participation < 1:
        expected = population.participation * plan.sessions_there
        line += f", {100 * population.participation:.0f} % of them are drawn, about {expected:.1f}"
        if expected < 1:
            line += " (likely none: raise --participation)"
    return line


def _logging_setting(settings: Mapping[str, str]) -> str:
    """The setting by which statements write lines to the log; empty if there is none."""
    return next((name for name, value in settings.items() if logs(name, value)), "")
