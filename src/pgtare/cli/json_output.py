"""Where a command's JSON document goes: to standard output (--json) or to a file (--output)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType

from pgtare import cli
from pgtare.cli import standard_output
from pgtare.errors import UsageError
from pgtare.kit import files

if TYPE_CHECKING:
    from pgtare.kit.document import Document

JSON_HELP = "Print the result as a JSON document, and nothing else, to standard output."
OUTPUT_HELP = "Write the JSON document to this file instead."
Json = Annotated[bool, typer.Option("--json", help=JSON_HELP)]
Output = Annotated[Path | None, typer.Option("--output", help=OUTPUT_HELP)]


class Destination:
    """What --json and --output request. Raises UsageError if the file cannot be written."""

    def __init__(self, json: bool, output: Path | None) -> None:
        files.check_target(output)
        #: Whether standard output is the document's alone.
        self.printed = json and output is None
        self._file = output
        self._begun = False

    @property
    def wanted(self) -> bool:
        """Whether a document is wanted."""
        return self.printed or self._file is not None

    def refuse(self, option: str) -> None:
        """Refuse a document with an option whose answer is words. Raises UsageError."""
        if self.wanted:
            raise UsageError(f"{option} has no document: leave out --json and --output")

    def console(self) -> Console:
        """For what is printed in addition to the document."""
        return cli.stderr() if self.printed else Console(soft_wrap=True)

    def tell(self, text: str) -> None:
        """Print a line in addition to the document."""
        cli.say(text, err=self.printed)

    def write(self, text: str) -> None:
        """Deliver the document, if one is wanted."""
        if self.printed:
            _print(text)
        elif self._file is not None:
            files.write_text(self._file, text + "\n")
            self.tell(f"JSON: {self._file}")

    def deliver(self, document: Document, view: RenderableType) -> None:
        """Write the document; print what people read, unless standard output is the document's."""
        self.write(document.to_json())
        if not self.printed:
            cli.stdout().print(view, highlight=False)

    def write_line(self, text: str) -> None:
        """Deliver one of several documents, each on a line of its own."""
        if self.printed:
            _print(text)
        elif self._file is not None:
            files.append_line(self._file, text, first=not self._begun)
        self._begun = True


def _print(text: str) -> None:
    if not standard_output.holds_all(getattr(sys.stdout, "encoding", None) or "utf-8"):
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
    typer.echo(text)
