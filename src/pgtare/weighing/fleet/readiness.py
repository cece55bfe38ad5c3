"""Whether the servers of a fleet can be weighed, and the commands that fix what is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql

from pgtare.errors import PgtareError, UsageError
from pgtare.postgres import module_versions, own_session, parallel, pooler
from pgtare.postgres.inventory import InventoryServer
from pgtare.weighing.instruments.arms import combine
from pgtare.weighing.instruments.model import Chosen
from pgtare.weighing.instruments.requirements import availability, read_facts
from pgtare.weighing.trials import ModuleInfo, Trials, setup_steps
from pgtare.weighing.weigh.target import PURPOSE, needs_of

#: How many servers to look at at a time, and how long each may take, in s.
AT_ONCE = 32
LIMIT_S = 20.0

_SERVER = """
SELECT pg_catalog.version(), current_user::text, pg_catalog.pg_is_in_recovery(),
       (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user),
       (SELECT system_identifier FROM pg_catalog.pg_control_system())::text || ' '
       || extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text
"""
_RIGHTS = """
SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       coalesce(bool_and(pg_catalog.has_function_privilege(p.oid, 'EXECUTE')), true)
FROM pg_catalog.pg_namespace n LEFT JOIN pg_catalog.pg_proc p ON p.pronamespace = n.oid
WHERE n.nspname = 'pgtare' GROUP BY n.oid
"""


@dataclass(frozen=True)
class Readiness:
    """What was found of one server. Texts are empty for what is not known.

    problem: why it cannot be weighed; None if it can. steps: what to do, in order. notes: what is
    worth knowing and keeps nobody from weighing. identity: the server behind the connection.
    """

    server: str
    version: str = ""
    library: str = ""
    extension: str = ""
    role: str = ""
    superuser: bool = False
    standby: bool = False
    clock: str = ""
    problem: str | None = None
    steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    identity: str = field(default="", repr=False)

    @property
    def ready(self) -> bool:
        """Whether a weighing could begin there now."""
        return self.problem is None


def check_fleet(
    servers: Mapping[str, InventoryServer],
    chosen: Sequence[Chosen] = (),
    *,
    limit_s: float = LIMIT_S,
) -> list[Readiness]:
    """Look at all servers, several at once. chosen: what to weigh on them."""
    outcomes = parallel.for_each(
        servers,
        lambda name: check_server(name, servers[name].dsn, chosen),
        at_once=AT_ONCE,
        limit_s=limit_s,
    )
    found = []
    for name, outcome in outcomes.items():
        if outcome.answer is not None:
            found.append(outcome.answer)
        else:
            steps = ("look whether the server hangs, or raise --limit",) if outcome.late else ()
            found.append(Readiness(name, problem=outcome.problem, steps=steps))
    return _each_once(found)


def check_server(name: str, dsn: str, chosen: Sequence[Chosen] = ()) -> Readiness:
    """Look at one server; changes nothing there. Raises PgtareError and psycopg.Error."""
    with contextlib.closing(own_session.connect(dsn)) as conn:
        ((version, role, standby, superuser, identity),) = pooler.rows(conn, _SERVER)
        found = Readiness(
            name,
            version=str(version).removeprefix("PostgreSQL ").split(" ")[0],
            role=role,
            superuser=superuser,
            standby=standby,
            identity=identity,
        )
        problems = list(_problems(conn, dsn, found, chosen))
        return replace(
            _with_module(conn, found),
            problem="; ".join(why for why, _ in problems) or None,
            steps=tuple(dict.fromkeys(step for _, steps in problems for step in steps)),
        )


Problem = tuple[str, tuple[str, ...]]


def _problems(
    conn: psycopg.Connection[Any], dsn: str, found: Readiness, chosen: Sequence[Chosen]
) -> Iterator[Problem]:
    """What keeps the server from being weighed, each with what to do about it."""
    if found.standby:
        yield "it is a standby", ("name the primary in its place: a standby cannot be weighed",)
    try:
        pooler.require_one_session(conn, dsn, PURPOSE)
    except UsageError:
        yield (
            "a pooler shares its sessions out",
            ("connect to the server itself, or through a pool in session mode",),
        )
    module = module_versions.read(conn, "pgtare")
    steps = []
    if not (module.functions and module.preloaded):
        steps = setup_steps(conn, *needs_of(tuple(chosen)))
        yield "the server module, or a library, is missing", tuple(steps)
    differing = module_versions.compare(conn, "pgtare")
    if differing is not None:
        yield differing.why, differing.steps
    if not steps and differing is None:
        yield from _rights(conn, found)
        yield from _lacking(conn, chosen)


def _rights(conn: psycopg.Connection[Any], found: Readiness) -> Iterator[Problem]:
    rows = pooler.rows(conn, _RIGHTS)
    if rows and not all(rows[0]):
        role = sql.Identifier(found.role).as_string(None)
        yield (
            f"role {found.role} may not start trials",
            (
                f"as a superuser run GRANT USAGE ON SCHEMA pgtare TO {role}; GRANT EXECUTE ON ALL "
                f"FUNCTIONS IN SCHEMA pgtare TO {role}; in database {conn.info.dbname}",
            ),
        )


def _lacking(conn: psycopg.Connection[Any], chosen: Sequence[Chosen]) -> Iterator[Problem]:
    facts = read_facts(conn)
    for choice in chosen:
        for lack in availability(choice, facts):
            yield f"{choice.name}: {lack.what}", (lack.remedy,)
    names = sorted({name for arm in combine(chosen, ()) for name in arm.settings} if chosen else ())
    refused = [name for name in names if not _may_set(conn, name)]
    if refused:
        role = sql.Identifier(conn.info.user).as_string(None)
        listed = ", ".join(refused)
        yield (
            f"role {conn.info.user} may not set {listed}",
            (f"as a superuser run GRANT SET ON PARAMETER {listed} TO {role};",),
        )


def _may_set(conn: psycopg.Connection[Any], name: str) -> bool:
    """Whether the role may set it: settings that everybody may set are not in pg_parameter_acl."""
    query = (
        "SELECT context NOT IN ('superuser', 'superuser-backend')"
        " OR pg_catalog.has_parameter_privilege(name, 'SET')"
        " FROM pg_catalog.pg_settings WHERE lower(name) = lower(%s)"
    )
    rows = pooler.rows(conn, query, name)
    return not rows or bool(rows[0][0])


def _with_module(conn: psycopg.Connection[Any], found: Readiness) -> Readiness:
    """The same with what the module says about itself, if it can be asked."""
    versions = module_versions.read(conn, "pgtare")
    found = replace(found, library=versions.library or "", extension=versions.extension or "")
    if module_versions.mismatch(versions) is not None:
        return found
    notes = list(found.notes)
    with contextlib.suppress(psycopg.Error, PgtareError):
        trials = Trials(conn)
        info: ModuleInfo = trials.require_module()
        if info.slots_problem:
            notes.append(f"requests cannot be timed: {info.slots_problem}")
        if info.clock != "tsc" and info.clock_reason:
            notes.append(f"its trials read the system's clock: {info.clock_reason}")
        if trials.status().running:
            notes.append("a trial runs there now: wait for its end, or stop it by `pgtare stop`")
        return replace(found, clock=info.clock, notes=tuple(notes))
    return found


def _each_once(found: list[Readiness]) -> list[Readiness]:
    """Mark servers that are there under two names: they must not count twice in a sample."""
    first: dict[str, str] = {}
    checked = []
    for one in found:
        before = first.setdefault(one.identity, one.server) if one.identity else one.server
        if before != one.server:
            why = f"it is the same server as {before}"
            problem = why if one.problem is None else f"{why}; {one.problem}"
            one = replace(one, problem=problem, steps=("remove one of the two", *one.steps))
        checked.append(one)
    return checked
