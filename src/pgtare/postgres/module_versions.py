"""Compares the versions of this command and of a server module: library, extension, files.

The command and all server modules share one version number. Those whose first two numbers are the
same work together; any others are refused, with what to do about them.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

import pgtare
from pgtare.errors import UsageError
from pgtare.postgres import module_setup, pooler
from pgtare.postgres.file_owner import SystemPackage

# Only superusers make C functions: nobody else's function is taken for ours.
_FUNCTIONS = """
SELECT n.nspname, p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
JOIN pg_language l ON l.oid = p.prolang
WHERE l.lanname = 'c' AND p.prosrc = %s || '_library_version' ORDER BY 1
"""
_EXTENSION = """
SELECT (SELECT extversion FROM pg_extension WHERE extname = %s), pg_is_in_recovery()
"""
_FILES = "SELECT default_version FROM pg_available_extensions WHERE name = %s"


class VersionMismatch(UsageError):
    """The command and a module, or the parts of a module, are of versions that do not go together.

    The text names the versions and the next step.
    """


@dataclass(frozen=True)
class ModuleVersions:
    """The versions of a module on one server, as a session in one database sees them.

    library: loaded by the session; None if there is none, or the role may not ask it.
    extension: None if the database has none. files: the version that CREATE EXTENSION would
    make; None if it is not installed or cannot be read. functions: whether the database has the
    module's functions, with or without an extension. preloaded: new sessions load the library; None
    if no server was asked. hidden: the role may not call them. lost: the
    server does not find the library's file. standby: the server is one. path, package: of an
    installation that was looked at without a server, the library's file and the package it is of.
    """

    module: str
    database: str
    library: str | None = None
    extension: str | None = None
    files: str | None = None
    functions: bool = False
    hidden: bool = False
    lost: bool = False
    standby: bool = False
    preloaded: bool | None = None
    path: Path | None = None
    package: SystemPackage | None = None

    @property
    def states(self) -> tuple[str, str, str]:
        """Of files, library and extension: the version, or what is still to be done."""
        library = self.library or (self.extension and self.library_in_words) or "preloaded"
        if not self.preloaded:
            library = f"{library}, not preloaded" if self.library else "not preloaded"
        return self.files or "not installed", library, self.extension or "not created"

    @property
    def library_in_words(self) -> str:
        """What is known of the library if its version is not."""
        return "missing" if self.lost else "unknown"


def made_anew(module: str) -> str:
    """What gives a database the extension of the files; counters and traces are not in it."""
    return f"DROP EXTENSION {module}; CREATE EXTENSION {module};"


class Mismatch(NamedTuple):
    """Versions that do not go together: which, and what to do, step by step."""

    why: str
    steps: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """The steps in one clause."""
        return ", then ".join(self.steps)

    def __str__(self) -> str:
        return f"{self.why}: {self.remedy}"


def series(version: str | None) -> tuple[int, ...]:
    """The first two numbers of a version, which decide what it works with; () if it has none."""
    return tuple(int(number) for number in re.findall(r"\d+", version or "")[:2])


def read(conn: psycopg.Connection[Any], module: str, *, load: bool = True) -> ModuleVersions:
    """Read the versions of a module, without its files. Raises psycopg.Error.

    load: to ask the library, load it into this session if the server does not.
    """
    preloaded = bool(module_setup.loaded(conn, [module]))  # a function would load it here
    ((extension, standby),) = pooler.rows(conn, _EXTENSION, module)
    functions = pooler.rows(conn, _FUNCTIONS, module)
    library, hidden, lost = None, False, False
    for schema, name in functions if load or preloaded else ():
        try:
            library = _library_version(conn, schema, name)
        except psycopg.errors.InsufficientPrivilege:
            hidden = True
        except psycopg.errors.UndefinedFile:
            lost = True
        if library is not None:
            break
    return ModuleVersions(
        module,
        conn.info.dbname,
        library=library,
        extension=extension,
        functions=bool(functions),
        preloaded=preloaded,
        hidden=hidden and library is None,
        lost=lost,
        standby=standby,
    )


def with_files(conn: psycopg.Connection[Any], found: ModuleVersions) -> ModuleVersions:
    """The same with the version of the files in the server's installation."""
    with contextlib.suppress(psycopg.Error):  # any extension's damaged control file is an error
        rows = pooler.rows(conn, _FILES, found.module)
        return replace(found, files=rows[0][0] if rows else None)
    return found


def mismatch(found: ModuleVersions) -> Mismatch | None:
    """What does not go together, and the next steps; None if all is well, or there is no module."""
    ours = series(pgtare.__version__)
    if not found.functions and found.extension is None:
        return None
    wrong_library = series(found.library) != ours and not found.hidden
    wrong_extension = found.extension is not None and series(found.extension) != ours
    if not (wrong_library or wrong_extension):
        return None
    place = f"database {found.database}"
    parts = [
        f"this command {pgtare.__version__}",
        f"library in the server {found.library or found.library_in_words}",
        *([f"extension in {place} {found.extension}"] if found.extension is not None else ()),
    ]
    why = f"the versions of {found.module} differ ({', '.join(parts)})"
    newest = max((found.library, found.extension, found.files), key=series)
    if series(newest) > ours:
        return Mismatch(why, (f"install version {newest} of the pgtare command",))
    steps = []
    if series(found.files) != ours or found.lost:
        steps.append(
            f"run `pgtare module install --module {found.module} --force --pg-config PATH` on the "
            "server's host"
        )
    if wrong_library:
        steps.append("restart the server")
    if wrong_extension:
        primary = " of the primary" if found.standby else ""
        steps.append(f"run {made_anew(found.module)} in {place}{primary}")
    return Mismatch(why, tuple(steps))


def compare(conn: psycopg.Connection[Any], module: str) -> Mismatch | None:
    """What of a server's module does not go together with the rest. Raises psycopg.Error."""
    found = read(conn, module)
    if mismatch(found) is None:
        return None
    return mismatch(with_files(conn, found))


def require(conn: psycopg.Connection[Any], module: str) -> None:
    """Raise VersionMismatch where `compare` finds something, and psycopg.Error."""
    found = compare(conn, module)
    if found is not None:
        raise VersionMismatch(str(found))


def _library_version(conn: psycopg.Connection[Any], schema: str, name: str) -> str | None:
    """What the library says of its version; None if it is another library than ours."""
    query = sql.SQL("SELECT {}.{}()").format(sql.Identifier(schema), sql.Identifier(name))
    with contextlib.suppress(psycopg.errors.UndefinedFunction):
        return str(pooler.rows(conn, query)[0][0])
    return None
