"""Which commands there are; each is loaded with its own module, and only if it is needed."""

from __future__ import annotations

import importlib

import typer

#: Each command with its words in help, in order, by the group that help lists it in.
_GROUPS = {
    "Weighing": {
        "weigh": (
            "Weigh instruments: what each costs a transaction, in µs and %, with 95 % intervals."
        ),
        "ladder": (
            "Compare variants that cannot be switched inside one server, by whole runs in "
            "randomised rounds: preloaded libraries, settings that need a restart, other builds."
        ),
        "report": (
            "Analyse the raw observations of a result again, print the table and write the page."
        ),
        "fleet": (
            "Weigh instruments on many servers at once, and estimate what they cost over all of "
            "them."
        ),
        "bill": (
            "Add up what watching costs: µs a transaction times transactions a second, in cores."
        ),
        "status": "Say whether a trial runs on a server, and how the last one ended.",
        "stop": "Stop a trial; each session gets its own settings back before its next request.",
        "instruments": "List the instruments that can be weighed.",
        "selftest": (
            "Check the scale: error rates on control-only trials, and delays that are known."
        ),
    },
    "Observing": {
        "waits": "Show where time goes on a server that has wait_event_timing loaded.",
        "trace": (
            "Trace sessions of a server that has sql_trace or wait_event_timing loaded, and say "
            "where their time went."
        ),
        "flame": "Draw flame graphs of a server's processes, with perf as the collector.",
        "doctor": "Look for what stalls a server: read-only, in seconds, without a module.",
        "clock": (
            "Read every clock of this machine: cost, resolution, steps back, processors, gaps."
        ),
    },
    "Keeping": {
        "agent": (
            "Watch servers all the time: every wait, exactly, in a directory that any tool can "
            "read."
        ),
        "findings": "Say what slowed servers, and who, at any time that an agent watched them.",
        "live": (
            "Show where time goes on a live page: activity, waits, statements, locks, findings."
        ),
        "spool": "Query what an agent keeps of the servers that it watches.",
        "store": "Keep what many agents read in one ClickHouse server.",
    },
    "Set up": {
        "module": (
            "Build, install and list the server modules. To build them takes a C compiler, make, "
            "and PostgreSQL's server headers; with --from, install takes built ones. The library "
            "directory usually belongs to root."
        ),
        "support": (
            "Gather what a bug report needs: versions, settings, and the state of the modules."
        ),
        "uninstall": "List everything that pgtare left on this machine, and with --yes remove it.",
    },
}
ORDER = tuple(name for commands in _GROUPS.values() for name in commands)
#: Commands that are not in the module of their name.
_MODULES = {"status": "trial_control", "stop": "trial_control"}
#: The last line of every help text.
GLOSSARY = "Terms are explained in docs/glossary.md."


def register(app: typer.Typer, wanted: str | None = None) -> None:
    """Add every command: the wanted one with its module, the others by name and words only.

    A command brings along what it needs: all together take seconds to load on a small machine.
    """
    app.info.epilog = GLOSSARY
    for group, commands in _GROUPS.items():
        for name, words in commands.items():
            if name == wanted:
                load(app, name)
            else:
                app.command(name, help=words, rich_help_panel=group)(_never_run)


def load_all(app: typer.Typer) -> None:
    """Add every command with its module, for what looks at the whole command line."""
    app.info.epilog = GLOSSARY
    for name in ORDER:
        load(app, name)


def load(app: typer.Typer, name: str) -> None:
    """Add the command of that name with its module."""
    group = next(group for group, commands in _GROUPS.items() if name in commands)
    module = importlib.import_module(module_of(name))
    if not hasattr(module, "app"):
        app.command(name, rich_help_panel=group, epilog=GLOSSARY)(getattr(module, name))
        return
    for part in module.app.registered_commands:
        part.epilog = GLOSSARY
    app.add_typer(module.app, name=name, rich_help_panel=group, epilog=GLOSSARY)


def module_of(name: str) -> str:
    """The module of a command."""
    return f"pgtare.cli.{_MODULES.get(name, name)}"


def _never_run() -> None:
    """Stands for a command in the list of all; a command that is called is loaded."""
    raise AssertionError("a command was called that was only listed")
