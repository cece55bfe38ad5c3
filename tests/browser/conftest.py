"""Chromium for the browser tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest


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
        )
        yield browser
        browser.close()
