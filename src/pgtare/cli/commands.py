"""Which commands there are; each is loaded with its own module."""

from __future__ import annotations

import typer

from pgtare.cli import (
    clock,
    instruments,
    ladder,
    module,
    operator,
    report,
    selftest,
    waits,
    weigh,
)


def register(app: typer.Typer) -> None:
    """Add every command, in the order of the help text."""
    app.command("weigh")(weigh.weigh)
    app.command("instruments")(instruments.instruments)
    app.command("report")(report.report)
    app.command("selftest")(selftest.selftest)
    app.add_typer(ladder.app, name="ladder")
    app.add_typer(waits.app, name="waits")
    app.command("clock")(clock.clock)
    app.add_typer(module.app, name="module")
    app.command("status")(operator.status)
    app.command("stop")(operator.stop)
