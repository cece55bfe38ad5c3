"""Which commands there are; each is loaded with its own module, and only if it is needed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import typer

WEIGHING, OBSERVING, KEEPING, SET_UP = "Weighing", "Observing", "Keeping", "Set up"


@dataclass(frozen=True)
class _Command:
    module: str
    group: str
    summary: str


#: Each command with its module, the group that help lists it in, and its words there, in order.
_COMMANDS = {
    "weigh": _Command(
        "weigh",
        WEIGHING,
        "Weigh instruments: what each costs a transaction, in µs and %, with 95 % intervals.",
    ),
    "ladder": _Command(
        "ladder",
        WEIGHING,
        "Compare variants that cannot be switched inside one server, by whole runs in randomised "
        "rounds: preloaded libraries, settings that need a restart, other builds.",
    ),
    "report": _Command(
        "report",
        WEIGHING,
        "Analyse the raw observations of a result again, print the table and write the page.",
    ),
    "fleet": _Command(
        "fleet",
        WEIGHING,
        "Weigh instruments on many servers at once, and estimate what they cost over all of them.",
    ),
    "bill": _Command(
        "bill",
        WEIGHING,
        "Add up what watching costs: µs a transaction times transactions a second, in cores.",
    ),
    "status": _Command(
        "trial_control",
        WEIGHING,
        "Say whether a trial runs on a server, and how the last one ended.",
    ),
    "stop": _Command(
        "trial_control",
        WEIGHING,
        "Stop a trial; each session gets its own settings back before its next request.",
    ),
    "instruments": _Command("instruments", WEIGHING, "List the instruments that can be weighed."),
    "selftest": _Command(
        "selftest",
        WEIGHING,
        "Check the scale: error rates on control-only trials, and delays that are known.",
    ),
    "waits": _Command(
        "waits",
        OBSERVING,
        "Show where time goes on a server that has wait_event_timing loaded.",
    ),
    "trace": _Command(
        "trace",
        OBSERVING,
        "Trace sessions of a server that has sql_trace or wait_event_timing loaded, and say where "
        "their time went.",
    ),
    "flame": _Command(
        "flame",
        OBSERVING,
        "Draw flame graphs of a server's processes, with perf as the collector.",
    ),
    "doctor": _Command(
        "doctor",
        OBSERVING,
        "Look for what stalls a server: read-only, in seconds, without a module.",
    ),
    "clock": _Command(
        "clock",
        OBSERVING,
        "Read every clock of this machine: cost, resolution, steps back, processors, gaps.",
    ),
    "agent": _Command(
        "agent",
        KEEPING,
        "Watch servers all the time: every wait, exactly, in a directory that any tool can read.",
    ),
    "findings": _Command(
        "findings",
        KEEPING,
        "Say what slowed servers, and who, at any time that an agent watched them.",
    ),
    "live": _Command(
        "live",
        KEEPING,
        "Show where time goes on a live page: activity, waits, statements, locks, findings.",
    ),
    "spool": _Command(
        "spool",
        KEEPING,
        "Query what an agent keeps of the servers that it watches.",
    ),
    "store": _Command(
        "store",
        KEEPING,
        "Keep what many agents read in one ClickHouse server.",
    ),
    "module": _Command(
        "module",
        SET_UP,
        "Build, install and list the server modules. To build them takes a C compiler, make, and "
        "PostgreSQL's server headers; with --from, install takes built ones. The library directory "
        "usually belongs to root.",
    ),
    "support": _Command(
        "support",
        SET_UP,
        "Gather what a bug report needs: versions, settings, and the state of the modules.",
    ),
    "uninstall": _Command(
        "uninstall",
        SET_UP,
        "List everything that pgtare left on this machine, and with --yes remove it.",
    ),
}
ORDER = tuple(_COMMANDS)
#: The last line of every help text.
GLOSSARY = "Terms are explained in docs/glossary.md."


def register(app: typer.Typer, wanted: str | None = None) -> None:
    """Add every command: the wanted one with its module, the others by name and words only.

    A command brings along what it needs: all together take seconds to load on a small machine.
    """
    app.info.epilog = GLOSSARY
    for name, command in _COMMANDS.items():
        if name == wanted:
            load(app, name)
        else:
            app.command(name, help=command.summary, rich_help_panel=command.group)(_never_run)


def load_all(app: typer.Typer) -> None:
    """Add every command with its module, for what looks at the whole command line."""
    app.info.epilog = GLOSSARY
    for name in ORDER:
        load(app, name)


def load(app: typer.Typer, name: str) -> None:
    """Add the command of that name with its module."""
    command = _COMMANDS[name]
    module = importlib.import_module(f"pgtare.cli.{command.module}")
    if not hasattr(module, "app"):
        app.command(name, rich_help_panel=command.group, epilog=GLOSSARY)(getattr(module, name))
        return
    for part in module.app.registered_commands:
        part.epilog = GLOSSARY
    app.add_typer(module.app, name=name, rich_help_panel=command.group, epilog=GLOSSARY)


def _never_run() -> None:
    """Stands for a command in the list of all; a command that is called is loaded."""
    raise AssertionError("a command was called that was only listed")
