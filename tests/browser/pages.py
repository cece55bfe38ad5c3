"""What the tests of pages share: a page as it is open, and names that would break out of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HOSTILE = "<script>window.pwned = 1</script>"
HOSTILE_IMAGE = "\"'><img src=x onerror='window.pwned = 1'>"
HOSTILE_LINK = '<a href="https://example.org/">%{x} $y$</a>\u2028</script>'


class Visit:
    """An open page and everything it complained about or asked for."""

    def __init__(self, context: Any, path: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)
        if context.scripts:
            self.page.wait_for_selector("html[data-drawn]", timeout=20_000)
