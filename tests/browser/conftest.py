"""Chromium for the browser tests, and the shared sample of a result."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))


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
