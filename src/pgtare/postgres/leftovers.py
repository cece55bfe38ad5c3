"""Everything that pgtare left on a machine: settings, extensions, installed files, own servers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.postgres import (
    directories,
    module_setup,
    modules,
    own_session,
    pooler,
    registry,
)
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.load.database import mark
from pgtare.postgres.module_usage import DATABASES, OF_ROLES, PRELOAD_SETTINGS, names_library
from pgtare.postgres.settings import library_name, listed_libraries

_IN_FILES = """
SELECT DISTINCT name, setting FROM pg_file_settings
WHERE sourcefile = current_setting('data_directory') || '/postgresql.auto.conf'
  AND (name = ANY(%s) OR split_part(name, '.', 1) = ANY(%s)) ORDER BY 1
"""
_BY_HAND = """
SELECT lower(name), setting, sourcefile, sourceline FROM pg_file_settings
WHERE sourcefile <> current_setting('data_directory') || '/postgresql.auto.conf'
  AND (lower(name) = ANY(%s) OR split_part(lower(name), '.', 1) = ANY(%s)) ORDER BY 3, 4
"""
_ON_COMMAND_LINE = """
SELECT name, setting FROM pg_settings WHERE source = 'command line'
  AND (name = ANY(%s) OR split_part(name, '.', 1) = ANY(%s)) ORDER BY 1
"""
_TRACES_IN = "sql_trace.keep_directory"
_IN_FORCE = "SELECT current_setting(%s, true)"
#: Kept traces
_TRACES = r"^\.?kept-.+\.pgtrace(\.partial)?$"
_COUNT = "SELECT count(*) FROM pg_ls_dir(%s, true, false) f WHERE f ~ %s"
_COMMENTS = "SELECT datname, shobj_description(oid, 'pg_database') FROM pg_database ORDER BY 1"
_EXTENSIONS = "SELECT extname FROM pg_extension WHERE extname = ANY(%s) ORDER BY 1"
#: Whoever reads the extension's views queues behind us while we wait for its locks.
_SHORT_WAIT = "lock_timeout = '5s'"
_OWN = list(modules.PRELOAD_ORDER)


@dataclass(frozen=True)
class Leftover:
    """Something that is left. remove: raises PgtareError if it is in use.

    remove is None for a place that could not be looked at: what is there is not known.
    """

    what: str
    remove: Callable[[], object] | None


def on_server(dsn: str) -> Iterator[Leftover]:
    """Extensions in its databases, databases of ours, our settings, and directories with traces.

    Of configuration files only postgresql.auto.conf can be changed, as others are their owner's.
    Traces stay, too, and settings of a module that is loaded: they may hold it back.

    Raises UsageError if the role may not see them; dsn: for a superuser.
    """
    try:
        with own_session.connect(dsn) as connection:
            wanted = (list(PRELOAD_SETTINGS), _OWN)
            settings = pooler.rows(connection, _IN_FILES, *wanted)
            by_hand = pooler.rows(connection, _BY_HAND, *wanted)
            by_command = pooler.rows(connection, _ON_COMMAND_LINE, *wanted)
            loaded = module_setup.loaded(connection, _OWN)
            of_roles = pooler.rows(connection, OF_ROLES)
            ((in_force,),) = pooler.rows(connection, _IN_FORCE, _TRACES_IN)
            names = [str(name) for (name,) in pooler.rows(connection, DATABASES)]
            comments = pooler.rows(connection, _COMMENTS)
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
                what = f"extension {extension} in database {database}"
                yield Leftover(what, _sent(place, drop, waits_shortly=True))
    except psycopg.Error as ex:
        raise UsageError(f"the server cannot be looked at: {own_session.first_line(ex)}") from ex
    for name, comment in comments:
        if comment == mark(name):
            # without FORCE: a load that runs keeps its database
            drop = sql.SQL("DROP DATABASE {}").format(sql.Identifier(name))
            yield Leftover(f"database {name} of a load", _sent(dsn, drop))
    for name, value, file, line in by_hand:
        if _is_ours(name, value):
            advice = "take it out of that file yourself, then restart the server"
            yield Leftover(f"{name} in {file}, line {line}", _left(advice))
    for name, value in by_command:
        if _is_ours(name, value):
            advice = "take it out of the command that starts the server, then restart it"
            yield Leftover(f"{name} on the server's command line", _left(advice))
    for name, value in settings:
        if (taken := _taken_out(sql.SQL("ALTER SYSTEM"), name, value)) is not None:
            what, change = taken
            yield Leftover(f"{what} in postgresql.auto.conf", _changed(dsn, change, name, loaded))
    for role, database, name, value in of_roles:
        if (taken := _taken_out(_altered(role, database), name, value)) is not None:
            what, change = taken
            shown = f"{what} of a role or database: {change.as_string()};"
            yield Leftover(shown, _changed(dsn, change, name, loaded))
    places = [in_force, *(value for name, value, *_ in settings + by_hand if name == _TRACES_IN)]
    for directory in dict.fromkeys(filter(None, places)):
        yield from _traces(dsn, directory)


def _is_ours(name: str, value: str) -> bool:
    """Whether a setting is of pgtare, or a list of libraries that names one of pgtare's."""
    return name not in PRELOAD_SETTINGS or any(names_library(str(value), own) for own in _OWN)


def _altered(role: str | None, database: str | None) -> sql.Composable:
    """The beginning of the statement that changes a setting of a role, a database or both."""
    if role is None and database is not None:
        return sql.SQL("ALTER DATABASE {}").format(sql.Identifier(database))
    whose: sql.Composable = sql.SQL("ALL") if role is None else sql.Identifier(role)
    where: sql.Composable = sql.SQL("")
    if database is not None:
        where = sql.SQL(" IN DATABASE {}").format(sql.Identifier(database))
    return sql.SQL("ALTER ROLE {}{}").format(whose, where)


def _taken_out(alter: sql.Composable, name: str, value: str) -> tuple[str, sql.Composed] | None:
    """What a setting has of pgtare, and the statement without it; None: it has nothing."""
    setting = sql.SQL(".").join(sql.Identifier(part) for part in name.split("."))
    reset = sql.SQL("{} RESET {}").format(alter, setting)
    if name.partition(".")[0].lower() in _OWN:
        return f"setting {name}", reset
    named = listed_libraries(value) if name.lower() in PRELOAD_SETTINGS else []
    kept = [library for library in named if library_name(library) not in _OWN]
    if kept == named:
        return None
    if not kept:
        return f"pgtare's libraries in {name}", reset
    change = sql.SQL("{} SET {} = {}").format(
        alter, setting, sql.SQL(", ").join(map(sql.Literal, kept))
    )
    verb = "stays" if len(kept) == 1 else "stay"
    return f"pgtare's libraries in {name} ({', '.join(kept)} {verb})", change


def _traces(dsn: str, directory: str) -> Iterator[Leftover]:
    """A directory of kept traces, as the server sees it, if it holds any."""
    try:
        with own_session.connect(dsn) as connection:
            ((number,),) = pooler.rows(connection, _COUNT, directory, _TRACES)
    except psycopg.Error as ex:
        why = own_session.first_line(ex)
        yield Leftover(f"{_TRACES_IN} {directory} could not be looked at: {why}", None)
        return
    if number:
        what = f"{_TRACES_IN} {directory} holds traces with statements and their values ({number})"
        yield Leftover(what, _left("delete them on the server's host if nobody needs them"))


def in_installation(binaries: Binaries, dsn: str | None) -> Iterator[Leftover]:
    """Installed modules; each is refused while a setting of the server of `dsn` names it."""
    for module in _OWN:
        if modules.installed_files(binaries, module):
            version = modules.installed_version(binaries, module) or "(unfinished)"
            yield Leftover(
                f"{module} {version} in {binaries.pkglibdir} and {binaries.extension_dir}",
                partial(modules.uninstall, binaries, module, dsn=dsn),
            )


def own_files() -> Iterator[Leftover]:
    """The directory of private servers, builds and downloads; and that of another account."""
    base = directories.existing()
    if base is not None:
        yield Leftover(f"{base} (private servers, builds)", partial(_remove, base))
    for place, account in directories.of_others():
        yield Leftover(f"{place} of {account}", _left(f"run the command as {account}"))


def _left(advice: str) -> Callable[[], None]:
    """What only somebody else can remove stays, with this advice."""

    def run() -> None:
        raise PgtareError(advice)

    return run


def _changed(
    dsn: str, change: sql.Composed, setting: str, loaded: Collection[str]
) -> Callable[[], None]:
    """A setting without what is pgtare's; those of a module that is loaded may hold it back."""
    module = setting.partition(".")[0].lower()
    if module in loaded:
        return _left(f"it is in force: restart the server without {module} first")
    return _sent(dsn, change, sql.SQL("SELECT pg_catalog.pg_reload_conf()"))


def _sent(
    dsn: str, *statements: sql.SQL | sql.Composed, waits_shortly: bool = False
) -> Callable[[], None]:
    """Sends these. waits_shortly: in a transaction, which gives up if it has to wait for locks."""

    def run() -> None:
        try:
            with own_session.connect(dsn) as connection, contextlib.ExitStack() as stack:
                if waits_shortly:
                    stack.enter_context(pooler.transaction(connection, _SHORT_WAIT))
                for statement in statements:
                    connection.execute(statement)
        except psycopg.Error as ex:
            raise UsageError(own_session.first_line(ex)) from ex
        except UnicodeError as ex:
            raise UsageError(
                "the encoding of this database cannot spell it: give --dsn another database"
            ) from ex

    return run


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
        others = sorted({path.name for path in base.iterdir()} - {directories.MARK})
        if not others:
            (base / directories.MARK).unlink(missing_ok=True)
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
