"""A section that a command adds to a page of a job, which need not know what it shows."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Addition:
    """A section: html is ours and already escaped, script draws what is in it."""

    title: str
    html: Markup
    script: str
