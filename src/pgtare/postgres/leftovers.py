"""Everything that pgtare left on a machine: settings, extensions, installed files, own servers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.postgres import directories, modules, own_session, pooler, registry
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.module_usage import DATABASES, PRELOAD_SETTINGS, names_library

_IN_FILES = """
SELECT DISTINCT name, setting FROM pg_file_settings
WHERE sourcefile = current_setting('data_directory') || '/postgresql.auto.conf'
  AND (name = ANY(%s) OR split_part(name, '.', 1) = ANY(%s)) ORDER BY 1
"""
_BY_HAND = """
SELECT name, setting, sourcefile, sourceline FROM pg_file_settings
WHERE sourcefile <> current_setting('data_directory') || '/postgresql.auto.conf'
  AND (name = ANY(%s) OR split_part(name, '.', 1) = ANY(%s)) ORDER BY 3, 4
"""
_EXTENSIONS = "SELECT extname FROM pg_extension WHERE extname = ANY(%s) ORDER BY 1"
_OWN = list(modules.PRELOAD_ORDER)


@dataclass(frozen=True)
class Leftover:
    """Something that is left. remove: raises PgtareError if it is in use.

    remove is None for a place that could not be looked at: what is there is not known.
    """

    what: str
    remove: Callable[[], None] | None


def on_server(dsn: str) -> Iterator[Leftover]:
    """Extensions in its databases, and our settings in its configuration files.

    Only those in postgresql.auto.conf can be removed, as other files are their owner's.

    Raises UsageError if the role may not see them; dsn: for a superuser.
    """
    try:
        with own_session.connect(dsn) as connection:
            wanted = (list(PRELOAD_SETTINGS), _OWN)
            settings = pooler.rows(connection, _IN_FILES, *wanted)
            by_hand = pooler.rows(connection, _BY_HAND, *wanted)
            names = [str(name) for (name,) in pooler.rows(connection, DATABASES)]
        for database in names:
            place = make_conninfo(dsn, dbname=database)
            try:
                with own_session.connect(place) as connection:
                    found = pooler.rows(connection, _EXTENSIONS, _OWN)
            except MeasurementError as ex:
                yield Leftover(f"database {database} could not be looked at: {ex}", None)
                continue
            for (extension,) in found:
                drop = sql.SQL("DROP EXTENSION {}").format(sql.Identifier(str(extension)))
                yield Leftover(
                    f"extension {extension} in database {database}", _statements(place, drop)
                )
    except psycopg.Error as ex:
        raise UsageError(f"the server cannot be looked at: {own_session.first_line(ex)}") from ex
    for name, value, file, line in by_hand:
        if name not in PRELOAD_SETTINGS or any(names_library(str(value), own) for own in _OWN):
            yield Leftover(f"{name} in {file}, line {line}", _for_its_owner)
    for name, value in settings:
        if name not in PRELOAD_SETTINGS:
            change = sql.SQL("ALTER SYSTEM RESET {}").format(_setting(str(name)))
            yield Leftover(f"setting {name} in postgresql.auto.conf", _statements(dsn, change))
            continue
        libraries = [item.strip() for item in str(value).split(",") if item.strip()]
        kept = [one for one in libraries if not any(names_library(one, own) for own in _OWN)]
        if kept == libraries:
            continue
        change = sql.SQL("ALTER SYSTEM RESET {}").format(_setting(str(name)))
        if kept:
            change = sql.SQL("ALTER SYSTEM SET {} = {}").format(
                _setting(str(name)),
                sql.SQL(", ").join(sql.Literal(library.strip('"')) for library in kept),
            )
        left = f" ({', '.join(kept)} stays)" if kept else ""
        yield Leftover(
            f"pgtare's libraries in {name} in postgresql.auto.conf{left}", _statements(dsn, change)
        )


def in_installation(binaries: Binaries, dsn: str | None) -> Iterator[Leftover]:
    """Installed modules; each is refused while a setting of the server of `dsn` names it."""
    for module in _OWN:
        if modules.installed_files(binaries, module):
            version = modules.installed_version(binaries, module) or "(unfinished)"
            yield Leftover(
                f"{module} {version} in {binaries.pkglibdir} and {binaries.extension_dir}",
                lambda module=module: _uninstall(binaries, module, dsn),  # type: ignore[misc]
            )


def own_files() -> Iterator[Leftover]:
    """The directory of private servers, builds and downloads."""
    base = directories.existing()
    if base is not None:
        yield Leftover(f"{base} (private servers, builds)", lambda: _remove(base))


def _for_its_owner() -> None:
    raise PgtareError("take it out of that file yourself, then restart the server")


def _statements(dsn: str, change: sql.Composed) -> Callable[[], None]:
    def run() -> None:
        try:
            with own_session.connect(dsn) as connection:
                connection.execute(change)
                connection.execute("SELECT pg_catalog.pg_reload_conf()")
        except psycopg.Error as ex:
            raise UsageError(own_session.first_line(ex)) from ex

    return run


def _setting(name: str) -> sql.Composed:
    return sql.SQL(".").join(sql.Identifier(part) for part in name.split("."))


def _uninstall(binaries: Binaries, module: str, dsn: str | None) -> None:
    modules.uninstall(binaries, module, dsn=dsn)


def _remove(base: Path) -> None:
    if (base / "servers").is_dir():
        registry.sweep()  # a server whose owner was killed runs on, and nobody needs it
        in_use = registry.in_use()
        if in_use:
            raise PgtareError(f"a private server is in use ({in_use[0]})")
    pids = _running_from(base)
    if pids:
        raise PgtareError(f"process {pids[0]} runs a program of it")
    unfinished = sorted((base / "restore").glob("*.txt"))
    if unfinished:
        raise PgtareError(
            f"{unfinished[0]} has what a weighing did not put back: do what it says, and delete it"
        )
    try:
        for shelf in directories.SHELVES:
            if (base / shelf).exists():
                shutil.rmtree(base / shelf)
        others = sorted(path.name for path in base.iterdir())
        if not others:
            base.rmdir()
    except OSError as ex:
        raise PgtareError(f"cannot be removed: {ex.strerror}") from ex
    if others:
        raise PgtareError(
            f"what pgtare made is removed; {', '.join(others)} in it is not of pgtare"
        )


def _running_from(base: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["exe"])
        if process.info["exe"] and Path(process.info["exe"]).is_relative_to(base)
    ]
