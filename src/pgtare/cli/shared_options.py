"""Options of a weighing that several commands take: what is weighed, and who takes part."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

what = partial(typer.Option, rich_help_panel="What")
_sessions = partial(typer.Option, rich_help_panel="A running server's sessions")

Instruments = Annotated[
    list[str] | None,
    typer.Argument(help="What to weigh: names as `pgtare instruments` lists them."),
]
Arms = Annotated[
    list[str] | None,
    what("--arm", help="An arm of your own, as 'name: setting=value, setting=value'."),
]
Margin = Annotated[
    str, what("--margin", help="Equivalence margin, as a share of transaction time.")
]
OtherMargin = Annotated[
    str | None, typer.Option("--margin", help="Another equivalence margin, for example 1%.")
]
Details = Annotated[
    bool, typer.Option("--details", help="Print all figures, not only the answers.")
]
InjectNs = Annotated[
    list[int] | None,
    what("--inject-ns", help="An arm with this known delay, for calibration."),
]
Catalogues = Annotated[
    list[Path] | None, what("--catalog", help="A file with instruments of your own.")
]
PgConfig = Annotated[
    Path | None,
    typer.Option(
        "--pg-config",
        rich_help_panel="Server",
        help="Start a server of this installation, not the embedded one.",
    ),
]
Role = Annotated[str | None, _sessions("--role", help="Only sessions of this role take part.")]
Application = Annotated[
    str,
    _sessions(
        "--application", help="Only sessions whose application_name fits this shell pattern."
    ),
]
Participation = Annotated[
    str, _sessions("--participation", help="Chance of each session to be drawn for the trial.")
]
Allow = Annotated[
    list[str] | None,
    _sessions(
        "--allow", help="Weigh this instrument, or setting of --reload, although it may do harm."
    ),
]
Yes = Annotated[bool, _sessions("--yes", "-y", help="Answer yes to questions.")]
