"""Which commands there are; each is loaded with its own module, and only if it is needed."""

from __future__ import annotations

import importlib

import typer

WEIGH, SEE, TRUST, SET_UP = "Weigh", "See", "Trust", "Set up"
#: The module of each command and the group that help lists it in, in the order of the help text.
_COMMANDS = {
    "weigh": ("weigh", WEIGH),
    "ladder": ("ladder", WEIGH),
    "report": ("report", WEIGH),
    "status": ("trial_control", WEIGH),
    "stop": ("trial_control", WEIGH),
    "instruments": ("instruments", WEIGH),
    "waits": ("waits", SEE),
    "trace": ("trace", SEE),
    "flame": ("flame", SEE),
    "doctor": ("doctor", SEE),
    "clock": ("clock", TRUST),
    "selftest": ("selftest", TRUST),
    "module": ("module", SET_UP),
    "uninstall": ("uninstall", SET_UP),
}
ORDER = tuple(_COMMANDS)
#: The last line of every help text.
GLOSSARY = "Terms are explained in docs/glossary.md."


def register(app: typer.Typer, wanted: str | None = None) -> None:
    """Add the wanted command, or every command if it is none of them.

    A command brings along what it needs: some take a second to load on a small machine.
    """
    app.info.epilog = GLOSSARY
    for name in [wanted] if wanted in _COMMANDS else _COMMANDS:
        place, panel = _COMMANDS[name]
        module = importlib.import_module(f"pgtare.cli.{place}")
        if not hasattr(module, "app"):
            app.command(name, rich_help_panel=panel, epilog=GLOSSARY)(getattr(module, name))
            continue
        for command in module.app.registered_commands:
            command.epilog = GLOSSARY
        app.add_typer(module.app, name=name, rich_help_panel=panel, epilog=GLOSSARY)
