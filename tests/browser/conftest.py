"""Chromium for the browser tests, and pages opened in it without a network."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.pages import Reader, Visit
from tests.live_pages import ServedPage


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """Debian's Chromium; the tests are skipped, with the reason shown, where it is absent."""
    executable = shutil.which("chromium", path="/usr/bin:/usr/local/bin")
    if executable is None:
        pytest.skip("no chromium in /usr/bin or /usr/local/bin")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
            timeout=120_000,  # as below
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Visit]]:
    """Open pages, each in a context of its own; only files are let through."""
    contexts = []

    def open_page(
        path: Path, width: int = 1100, scheme: str = "light", scripts: bool = True
    ) -> Visit:
        context = chromium.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        # half a minute, the usual time, has passed where many processes share two processors
        context.set_default_timeout(120_000)
        contexts.append(context)
        context.route(
            "**/*",
            lambda route: (
                route.continue_() if route.request.url.startswith("file:") else route.abort()
            ),
        )
        context.set_offline(True)
        context.scripts = scripts
        return Visit(context, path)

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def reader(chromium: Any, page_server: ServedPage) -> Iterator[Callable[..., Reader]]:
    """Browsers that are let in to the page of `pgtare live` that a module of tests serves."""
    contexts = []

    def open_page(width: int = 1200, scheme: str = "light", scripts: bool = True) -> Reader:
        context = chromium.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        # half a minute, the usual time, has passed where many processes share two processors
        context.set_default_timeout(120_000)
        contexts.append(context)
        return Reader(context, page_server)

    yield open_page
    for context in contexts:
        context.close()
