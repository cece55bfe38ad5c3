"""Which commands there are; each is loaded with its own module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import typer

from pgtare.cli import clock, instruments, module, operator, report, selftest, waits, weigh


def register(app: typer.Typer) -> None:
    """Add every command, in the order of the help text."""
    app.command("weigh")(weigh.weigh)
    app.command("instruments")(instruments.instruments)
    app.command("report")(report.report)
    app.command("selftest")(selftest.selftest)
    app.add_typer(waits.app, name="waits")
    app.command("clock")(clock.clock)
    app.add_typer(module.app, name="module")
    app.command("status")(operator.status)
    app.command("stop")(operator.stop)


def own_parser(arguments: list[str]) -> Callable[[], int] | None:
    """What runs these arguments where a command parses them itself, as another program would."""
    found = clock.compat_arguments(arguments)
    return None if found is None else partial(clock.run_compat, found)
