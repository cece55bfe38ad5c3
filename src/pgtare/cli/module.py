"""`pgtare module`: put the server modules into an installation, list them, take them out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import pgtare
from pgtare import cli
from pgtare.errors import UsageError
from pgtare.kit.progress import Steps
from pgtare.kit.terminal_text import plain
from pgtare.postgres import (
    binaries,
    module_package,
    module_versions,
    modules,
    own_session,
    signals,
)
from pgtare.postgres.module_versions import ModuleVersions

app = typer.Typer(
    no_args_is_help=True,
    help="Build, install and list the server modules. To build them takes a C compiler, make, and "
    "PostgreSQL's server headers; with --from, install takes built ones. The library directory "
    "usually belongs to root.\n\n"
    "Example: `pgtare module install --pg-config /usr/lib/postgresql/15/bin/pg_config`",
)
Module = Annotated[str, typer.Option(help="Which one: pgtare, wait_event_timing or sql_trace.")]
Modules = Annotated[
    str | None,
    typer.Option("--module", help="Only this one: pgtare, wait_event_timing or sql_trace."),
]
PgConfig = Annotated[Path, typer.Option(help="The pg_config of the server's installation.")]


@app.command("install")
def install(
    pg_config: PgConfig,
    module: Modules = None,
    destdir: Annotated[
        Path | None, typer.Option(help="Install below this directory, as packagers do.")
    ] = None,
    origin: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Build nothing: take the modules from this directory or .tar of built ones.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace another version.")] = False,
) -> None:
    """Build the modules for an installation and put them there.

    Example: `pgtare module install --pg-config /usr/lib/postgresql/15/bin/pg_config`
    """
    found = binaries.from_pg_config(pg_config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(signals.unwind_at_exit_signals())  # for unpacked and half-copied files
        names: Sequence[str] = modules.PRELOAD_ORDER if module is None else (module,)
        package = None
        if origin is not None:
            package = stack.enter_context(module_package.opened(origin, found.major))
            module_package.require_fit(package, found)
            if module is None:
                names = [name for name in names if name in package.manifest.modules]
        with Steps(cli.stderr()) as progress:
            done = modules.install_all(found, names, destdir, force, package, progress.begin)
    for one in done:
        for path in one.files:
            typer.echo(path)
        owner = "" if one.package is None else f", a file of the package {one.package}"
        typer.echo(f"{one.module} {one.version} {one.outcome} for {found.version}{owner}")
    if destdir is None:
        for step in _next(found, done):
            typer.echo(f"next: {step}")


def _next(found: binaries.Binaries, done: Sequence[modules.Installed]) -> Iterator[str]:
    """What to do after an installation."""
    for one in done:
        if one.outcome == "replaced":
            yield _NEXT_REPLACED.replace("pgtare", one.module)
        if one.outcome != "unchanged" and one.package is not None:
            yield (
                f"the package {one.package} will put its own files back when it is upgraded: take "
                f"it out (`{one.package.removal}`), then install all modules again"
            )
    if not any(one.outcome == "installed" for one in done):
        return
    if len(done) == 1:
        text = _NEXT_17 if found.major >= 17 else _NEXT_15
        yield text.replace("pgtare", done[0].module)
    else:
        line = f"shared_preload_libraries = '{', '.join(one.module for one in done)}'"
        yield f"{_PRELOAD_ALL}:\n{line}\n{_NEXT_ALL}"


_PRELOAD_ALL = (
    "in postgresql.conf, add these names to shared_preload_libraries, behind those that it has "
    "already, and restart; if it has none, the line is"
)
_NEXT_ALL = (
    "In ALTER SYSTEM SET each name has quotes of its own: 'a', 'b'. Then run CREATE EXTENSION for "
    "each of them in the database to look at"
)
_NEXT_REPLACED = (
    "restart the servers that have loaded pgtare (with session_preload_libraries each new session "
    f"loads the new one at once), then run {module_versions.made_anew('pgtare')} in each database "
    "that has the extension"
)
_NEXT_15 = (
    "add pgtare to shared_preload_libraries, restart, and run CREATE EXTENSION pgtare; "
    "in the database to look at"
)
_NEXT_17 = (
    "either add pgtare to shared_preload_libraries, with a restart, or without one: ALTER SYSTEM "
    "SET session_preload_libraries = 'pgtare'; SELECT pg_reload_conf(); which reaches new sessions "
    "(names that are there already stay if given too, each in quotes of its own: 'auto_explain', "
    "'pgtare'). In both cases run CREATE EXTENSION pgtare; in the database to look at"
)


@app.command("list")
def list_modules(
    dsn: Annotated[
        str | None,
        typer.Option(help="The server and database to look at, as a libpq connection string."),
    ] = None,
    pg_config: Annotated[
        Path | None,
        typer.Option(help="Without a server: the pg_config of the installation to look at."),
    ] = None,
) -> None:
    """List the versions of each module: files on disk, library in the server, extension.

    What is missing is named: not installed, not preloaded, not created. If the versions do not
    work together, the next step is printed.

    Example: `pgtare module list --dsn "dbname=app"`
    """
    database, found = _versions(dsn, pg_config)
    cli.say(f"this command: {pgtare.__version__}")
    table = Table(box=None, pad_edge=False)
    headings = ["library in the server", f"extension in database {database}"]
    asked = headings if database is not None else ["what a server loads", "put there by"]
    for heading in ["module", "files", *asked]:
        table.add_column(Text(plain(heading)))
    for versions in found:
        files, *in_server = versions.states
        by = f"package {versions.package}" if versions.package else "`pgtare module install`"
        loads = [str(versions.path), by] if versions.path else ["nothing", ""]
        cells = [versions.module, files, *(in_server if database is not None else loads)]
        table.add_row(*(Text(plain(cell)) for cell in cells))
    cli.stdout().print(table, highlight=False)
    for versions in found if database is not None else ():
        wrong = module_versions.mismatch(versions)
        if wrong is not None:
            cli.say(f"{versions.module}: {', then '.join(wrong.steps)}")


def _versions(dsn: str | None, pg_config: Path | None) -> tuple[str | None, list[ModuleVersions]]:
    """The database looked at, and what was found."""
    if dsn is None and pg_config is None:
        raise UsageError("name a server by --dsn, or an installation by --pg-config")
    if dsn is not None and pg_config is not None:
        raise UsageError(
            "--dsn and --pg-config: give one of them; --dsn shows the installed files, too, those "
            "of that server"
        )
    if pg_config is not None:
        installation = binaries.from_pg_config(pg_config)
        return None, [
            ModuleVersions(
                name,
                "",
                files=modules.installed_version(installation, name),
                path=modules.installed_library(installation, name),
                package=modules.owning_package(installation, name),
            )
            for name in modules.PRELOAD_ORDER
        ]
    assert dsn is not None
    with own_session.answered(), own_session.connect(dsn) as conn:
        return conn.info.dbname, [
            module_versions.with_files(conn, module_versions.read(conn, name))
            for name in modules.PRELOAD_ORDER
        ]


@app.command("uninstall")
def uninstall(
    pg_config: PgConfig,
    module: Module = "pgtare",
    dsn: Annotated[
        str | None, typer.Option(help="Look in this server for settings that name the module.")
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Do not look whether a server still uses it.")
    ] = False,
) -> None:
    """Remove a module from an installation; refused while a setting still names it.

    Example: `pgtare module uninstall --pg-config PATH --dsn "host=/var/run/postgresql"`
    """
    if module not in modules.PRELOAD_ORDER:
        raise UsageError(
            f"{module} is no module of pgtare: it has {', '.join(modules.PRELOAD_ORDER)}"
        )
    found = binaries.from_pg_config(pg_config)
    for path in modules.uninstall(found, module, dsn=dsn, force=force):
        typer.echo(f"removed {path}")
