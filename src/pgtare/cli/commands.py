"""Which commands there are; each is loaded with its own module, and where it is wanted."""

from __future__ import annotations

import importlib

import typer

#: The module of each command, in the order of the help text.
_MODULES = {
    "weigh": "weigh",
    "instruments": "instruments",
    "report": "report",
    "selftest": "selftest",
    "ladder": "ladder",
    "waits": "waits",
    "flame": "flame",
    "trace": "trace",
    "clock": "clock",
    "doctor": "doctor",
    "module": "module",
    "status": "operator",
    "stop": "operator",
}


def register(app: typer.Typer, wanted: str | None = None) -> None:
    """Add the wanted command, or every command where it is none of them.

    A command brings along what it needs: some take a second to load on a small machine.
    """
    for name in [wanted] if wanted in _MODULES else _MODULES:
        module = importlib.import_module(f"pgtare.cli.{_MODULES[name]}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
