"""What a terminal of a given width shows."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def printed(view: RenderableType, width: int) -> str:
    """A table or text as it is printed, without colours."""
    file = io.StringIO()
    Console(file=file, width=width).print(view, highlight=False)
    return file.getvalue()
