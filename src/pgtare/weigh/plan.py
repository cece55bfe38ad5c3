"""From what was asked and what the server has to a design: arms, block, seed, population."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

import psycopg

from pgtare.design import Arm, Design, block_layout
from pgtare.errors import UsageError
from pgtare.instruments import availability, combine, read_facts
from pgtare.load.spec import cores
from pgtare.server.trials import APPLICATION_NAME, MAX_SESSIONS, Population
from pgtare.weigh.request import Request

#: A line of the log with a short statement in it, roughly, in bytes.
LOG_LINE_BYTES = 250


@dataclass(frozen=True)
class Plan:
    """All that is decided before the first transaction is measured."""

    request: Request
    design: Design
    population: Population
    sessions_there: int
    warnings: tuple[str, ...]


def check_server(conn: psycopg.Connection[Any], request: Request) -> None:
    """Raise UsageError, with the remedy, where the server cannot serve this weighing."""
    row = conn.execute("SELECT pg_is_in_recovery()").fetchone()
    if row and row[0]:
        raise UsageError(
            "this server is a standby: what instruments cost there depends on replay as well; "
            "weigh on the primary"
        )
    facts = read_facts(conn)
    missing = [
        f"{choice.name}: {lack}"
        for choice in request.chosen
        for lack in availability(choice, facts)
    ]
    if missing:
        raise UsageError("this server cannot weigh " + "\n  and ".join(missing))
    if request.dsn:
        _refuse_unsafe(request)


def _refuse_unsafe(request: Request) -> None:
    for choice in request.chosen:
        entry = choice.entry
        if entry and not entry.safe_in_production and entry.name not in request.allow:
            raise UsageError(
                f"{choice.name} is not safe on a server of yours ({entry.reason}): "
                f"say --allow {entry.name} if you want it all the same"
            )


def arms_of(request: Request) -> tuple[Arm, ...]:
    """The arms of a trial; with base "current" the base arm keeps each session's own settings."""
    arms = combine(request.chosen, request.inject_ns)
    if request.base == "current":
        own = {choice.name: choice.settings for choice in request.chosen}
        arms = [Arm(a.name, a.role, dict(own.get(a.name, {})), a.inject_ns) for a in arms]
    return tuple(arms)


def sessions_there(conn: psycopg.Connection[Any], population: Population) -> int:
    """Client sessions connected now that the population's description fits."""
    rows = conn.execute(
        "SELECT application_name FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND pid <> pg_backend_pid() AND datname = coalesce(%s, datname)"
        " AND usename = coalesce(%s::name, usename)",
        (population.database, population.role),
    ).fetchall()
    names = [str(row[0]) for row in rows]
    return sum(
        fnmatch.fnmatchcase(name, population.application) and name != APPLICATION_NAME
        for name in names
    )


def make_plan(
    conn: psycopg.Connection[Any], request: Request, application: str | None = None
) -> Plan:
    """Decide the whole trial. application: the one name of the load's sessions, if it is ours."""
    check_server(conn, request)
    arms = arms_of(request)
    design = Design(arms, block_layout(len(arms)), request.seed)
    population = Population(
        database=conn.info.dbname,
        role=request.role,
        application=application or request.application,
        participation=request.participation,
    )
    there = sessions_there(conn, population)
    expected = request.load.clients + 4 if request.load else 2 * there + 16
    population = Population(
        population.database, population.role, population.application, population.participation,
        min(expected, MAX_SESSIONS),
    )  # fmt: skip
    return Plan(request, design, population, there, tuple(_warnings(request)))


def _warnings(request: Request) -> list[str]:
    found = []
    load = request.load
    if load and load.clients > cores() and load.rate is None and request.headroom is None:
        found.append(
            f"{load.clients} clients on {cores()} cores: service times include waiting for a "
            "processor, and a slow arm delays the others' transactions. Read the CPU column too."
        )
    if (
        load
        and load.protocol == "prepared"
        and any("compute_query_id" in choice.settings for choice in request.chosen)
    ):
        found.append(
            "With prepared statements query ids are computed once, when a statement is parsed, "
            "whatever the arm says later: weigh pg_stat_statements_prepared instead."
        )
    return found


def describe(plan: Plan, rate_tps: float | None) -> list[str]:
    """The plan in words, for --dry-run. rate_tps: transactions a second, where known."""
    request, design = plan.request, plan.design
    lines = [
        f"{len(design.arms)} arms in permuted blocks of {len(design.block)}, "
        f"seed {design.seed}, for {request.duration_s:g} s at most",
        f"database {plan.population.database}, role {plan.population.role or 'any'}, "
        f"application_name {plan.population.application}, "
        f"{plan.population.participation:.0%} of {plan.sessions_there} sessions connected now",
    ]
    for arm in design.arms:
        settings = ", ".join(f"{k} = {v!r}" for k, v in sorted(arm.settings.items()))
        extra = f" and a delay of {arm.inject_ns} ns" if arm.inject_ns else ""
        lines.append(f"  {arm.name}: {settings or 'the session’s own settings'}{extra}")
    logging = [a.name for a in design.arms if _logs_everything(a)]
    if logging:
        share = len(logging) / len(design.block)
        volume = ""
        if rate_tps:
            volume = (
                f", about {rate_tps * share * LOG_LINE_BYTES / 1e6:.1f} MB/s at "
                f"{rate_tps:.0f} transactions/s"
            )
        lines.append(
            f"log: {', '.join(logging)} write each of their transactions to the server log "
            f"({share:.0%} of all){volume}"
        )
    lines.append(
        "privileges: EXECUTE on the functions of schema pgtare; nothing is written to the database"
    )
    return lines


def _logs_everything(arm: Arm) -> bool:
    s = arm.settings
    return (
        s.get("log_min_duration_statement") == "0"
        or s.get("log_statement") in ("all", "mod")
        or s.get("log_duration") == "on"
        or s.get("auto_explain.log_min_duration") == "0"
    )
