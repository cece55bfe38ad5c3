"""Fixtures of the tests of `pgtare live`: a made-up spool, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live_pages import ServedPage, served
from tests.unit.live_rows import make_spool


@pytest.fixture(scope="session")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool that tests only read."""
    return make_spool(tmp_path_factory.mktemp("live") / "spool")


@pytest.fixture(scope="module")
def page(spool: Path) -> Iterator[ServedPage]:
    """Its page, which has let no browser in yet."""
    with served(spool) as found:
        yield found
