"""`pgtare module`: put the server module into an installation, and take it out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgtare.server import binaries, modules

app = typer.Typer(
    no_args_is_help=True,
    help="Build and install the server modules. They need a C compiler, make, and PostgreSQL's "
    "server headers; the library directory usually belongs to root.\n\n"
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
    force: Annotated[bool, typer.Option(help="Replace another version.")] = False,
) -> None:
    """Build the modules for an installation and put them there.

    Example: `pgtare module install --pg-config /usr/lib/postgresql/15/bin/pg_config`
    """
    found = binaries.from_pg_config(pg_config)
    if module is not None:
        _install(found, module, destdir, force)
        return
    outcomes = {name: _put(found, name, destdir, force).outcome for name in modules.PRELOAD_ORDER}
    if destdir is not None:
        return
    for name, outcome in outcomes.items():
        if outcome == "replaced":
            typer.echo(_NEXT_REPLACED.replace("pgtare", name))
    if "installed" in outcomes.values():
        typer.echo(f"next: add this line to postgresql.conf and restart:\n{preload_line()}")
        typer.echo(_NEXT_ALL)


def preload_line() -> str:
    """The line of postgresql.conf that loads all modules."""
    return f"shared_preload_libraries = '{', '.join(modules.PRELOAD_ORDER)}'"


_NEXT_ALL = (
    "(libraries that the setting names already stay, before these). Then run CREATE EXTENSION "
    "for each of them in the database to look at"
)


def _put(
    found: binaries.Binaries, module: str, destdir: Path | None, force: bool
) -> modules.Installed:
    done = modules.install(found, module, destdir=destdir, force=force)
    for path in done.files:
        typer.echo(path)
    typer.echo(f"{module} {done.version} {done.outcome} for {found.version}")
    return done


def _install(found: binaries.Binaries, module: str, destdir: Path | None, force: bool) -> None:
    done = _put(found, module, destdir, force)
    if destdir is None and done.outcome == "replaced":
        typer.echo(_NEXT_REPLACED.replace("pgtare", module))
    elif destdir is None and done.outcome != "unchanged":
        text = _NEXT_17 if found.major >= 17 else _NEXT_15
        typer.echo(text.replace("pgtare", module))


_NEXT_REPLACED = (
    "next: restart the servers that have loaded pgtare, then run ALTER EXTENSION pgtare UPDATE; "
    "in each database that has the extension"
)
_NEXT_15 = (
    "next: add pgtare to shared_preload_libraries, restart, and run CREATE EXTENSION pgtare; "
    "in the database to look at"
)
_NEXT_17 = (
    "next: either that, with a restart, or without one: ALTER SYSTEM SET session_preload_libraries "
    "= 'pgtare'; SELECT pg_reload_conf(); which reaches new sessions (names that are there already "
    "stay if given too, each in quotes of its own: 'auto_explain', 'pgtare'). In both cases run "
    "CREATE EXTENSION pgtare; in the database to look at"
).replace("either that", "either add pgtare to shared_preload_libraries")


@app.command("uninstall")
def uninstall(
    pg_config: PgConfig,
    module: Module = "pgtare",
    dsn: Annotated[
        str | None, typer.Option(help="Look in this server for settings that name the module.")
    ] = None,
    destdir: Annotated[Path | None, typer.Option(help="As given to install.")] = None,
    force: Annotated[
        bool, typer.Option(help="Do not look whether a server still uses it.")
    ] = False,
) -> None:
    """Take the module out of an installation; refused while a setting still names it.

    Example: `pgtare module uninstall --pg-config PATH --dsn "host=/var/run/postgresql"`
    """
    found = binaries.from_pg_config(pg_config)
    for path in modules.uninstall(found, module, dsn=dsn, destdir=destdir, force=force):
        typer.echo(f"removed {path}")
