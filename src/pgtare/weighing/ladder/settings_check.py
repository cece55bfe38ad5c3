"""Whether a study's settings exist on its servers, and can be given the way the study gives them.

Servers are asked that have the libraries of the study's variants and none of its settings, so the
answers come before anything is measured.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres import own_session
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import PRELOAD_ORDER
from pgtare.postgres.settings import Value, checked
from pgtare.weighing.instruments.catalogue import near
from pgtare.weighing.instruments.model import setting_value
from pgtare.weighing.instruments.requirements import ServerFacts, read_facts, unknown_setting
from pgtare.weighing.ladder.study import Study
from pgtare.weighing.ladder.study_sections import Variant, Workload
from pgtare.weighing.ladder.study_servers import Bench

_SESSION_LIBRARIES = "session_preload_libraries"


@dataclass(frozen=True)
class _Given:
    """A setting as a study gives it. owner: its variant or workload. reload: not by a restart."""

    owner: str
    name: str
    value: Value
    reload: bool


@dataclass
class _Group:
    """Settings that one server can be asked about: the libraries in its memory are theirs."""

    variant: Variant
    workload: Workload
    session_libraries: str
    given: dict[_Given, None] = field(default_factory=dict)


def check(study: Study, bench: Bench, skipped: Collection[str]) -> None:
    """Ask each server about the settings of its variants and workloads.

    skipped: workloads that are left out. Raises UsageError, naming variant, setting and next step,
    for settings that a server does not have, cannot change that way, or does not take the value of;
    MeasurementError if a server does not start with its variants' libraries.
    """
    unknown: dict[_Given, str] = {}
    refused: dict[_Given, str] = {}
    known: set[_Given] = set()
    for group in _groups(study, {*skipped}):
        try:
            cluster = bench.serve_bare(group.variant, group.workload)
            _ask(cluster, group, unknown, refused, known)
        except MeasurementError as ex:
            raise MeasurementError(f"the variant {group.variant.name} cannot start: {ex}") from ex
    # A workload's setting may belong to a library that only some of the variants preload.
    refused |= {given: why for given, why in unknown.items() if given not in known}
    if refused:
        raise UsageError("\n  and ".join(_sentences(refused)))


def check_installations(study: Study) -> None:
    """Look at installations and disk, before any server is started; the wheel is not asked.

    Raises UsageError for a pg_config that is not there, for a library to preload that its
    installation lacks, and for too small a disk.
    """
    with Bench(study) as bench:
        for variant in study.variant:
            if study.servers[variant.server].pg_config is None:
                continue
            folder = bench.binaries(variant.server).pkglibdir
            there = sorted({*(path.stem for path in folder.glob("*.so")), *PRELOAD_ORDER})
            for library in dict.fromkeys(
                (*variant.preload, *(name for w in study.workload for name in w.preload))
            ):
                if "/" not in library and library not in there:
                    raise UsageError(
                        f"the variant {variant.name} preloads {library!r}, which the server "
                        f"{variant.server!r} lacks in {folder}{near(library, there)}"
                    )
        bench.check_disk()


def _groups(study: Study, skipped: set[str]) -> Iterable[_Group]:
    groups: dict[object, _Group] = {}
    for workload in study.workload:
        if workload.name in skipped:
            continue
        for variant in study.variant:
            libraries = dict.fromkeys((*workload.preload, *variant.preload))
            in_sessions = {**workload.settings, **variant.in_force}.get(_SESSION_LIBRARIES, "")
            key = (variant.server, tuple(libraries), in_sessions, workload.extensions)
            group = groups.setdefault(key, _Group(variant, workload, str(in_sessions)))
            for given in (
                *_given(f"the workload {workload.name}", workload.settings),
                *_given(f"the variant {variant.name}", variant.settings),
                *_given(f"the variant {variant.name}", variant.runtime, reload=True),
            ):
                group.given[given] = None
    return groups.values()


def _given(owner: str, settings: Mapping[str, Value], *, reload: bool = False) -> Iterator[_Given]:
    try:
        for name, value in checked(settings).items():
            yield _Given(owner, name, value, reload)
    except UsageError as ex:
        raise UsageError(f"{owner}: {ex}") from ex


def _ask(
    cluster: Cluster,
    group: _Group,
    unknown: dict[_Given, str],
    refused: dict[_Given, str],
    known: set[_Given],
) -> None:
    """Sort a group's settings into those three."""
    libraries = group.session_libraries.replace("\\", "\\\\").replace(" ", "\\ ")
    options = f"-c {_SESSION_LIBRARIES}={libraries}" if libraries else ""
    with own_session.connect(cluster.dsn(options=options)) as conn:
        for library in ("plpgsql", *group.workload.extensions):
            # Their settings are there once a session has used them.
            with contextlib.suppress(psycopg.Error):
                conn.execute(sql.SQL("LOAD {}").format(sql.Literal(library)))
        facts = read_facts(conn)
        try:
            for given in group.given:
                missing = unknown_setting(given.name, facts)
                if missing is not None:
                    unknown[given] = str(missing)
                    continue
                known.add(given)
                if why := _why_not_so(given, facts) or _why_not_this_value(given, conn):
                    refused[given] = why
        finally:
            conn.execute("ALTER SYSTEM RESET ALL")


def _why_not_so(given: _Given, facts: ServerFacts) -> str:
    """Why a setting cannot be changed the way the study changes it, and what can be done."""
    context = facts.contexts[given.name]
    if context == "internal":
        return f"{given.name} is fixed when PostgreSQL is built: remove it from the study"
    if given.reload and context == "postmaster":
        return (
            f"{given.name} is fixed when the server starts, so that runtime cannot change it: put "
            "it into settings"
        )
    return ""


def _why_not_this_value(given: _Given, conn: psycopg.Connection[object]) -> str:
    """Why the server does not take a value; it is never in force."""
    # Alone among all commands, this one looks at the values of settings that need a restart.
    statement = sql.SQL("ALTER SYSTEM SET {} = {}").format(
        sql.Identifier(*given.name.split(".")), sql.Literal(setting_value(given.value))
    )
    try:
        conn.execute(statement)
    except psycopg.Error as ex:
        return f"{own_session.first_line(ex)}: correct {given.name} in the study file"
    return ""


def _sentences(refused: Mapping[_Given, str]) -> list[str]:
    owners: dict[str, dict[str, None]] = defaultdict(dict)
    for given, why in refused.items():
        owners[why][given.owner] = None
    return [f"{', '.join(names)}: {why}" for why, names in owners.items()]
