"""Whether a study's servers fit on the disk, before any of them is made."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from pgtare.errors import UsageError
from pgtare.weighing.ladder.settings_check import check_installations
from tests.unit.simulated_study import STUDY, study

SHORT = STUDY.replace('name = "W1"', 'name = "W1"\nbuiltin = "tpcb-like"')
WRITING = SHORT.replace('run = "1s"', 'run = "5m"')


def refused(text: str, free_gb: float) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free_gb * 1e9))
        try:
            check_installations(study(text))
        except UsageError as ex:
            return str(ex)
    return ""


def limited(size: str, table: str) -> str:
    return WRITING.replace(table, f"{table}\nsettings = {{ max_wal_size = {size} }}", 1)


@pytest.mark.parametrize(
    ("text", "needed_gb"),
    [
        (STUDY, 1.2 * (4.096 + 0.16)),
        (WRITING, 1.2 * (16.384 + 0.16)),
        (SHORT, 1.2 * (4.096 + 0.16)),
        (limited("5000", 'name = "W1"'), 1.2 * (5.0 + 0.16)),
        (limited('"32GB"', 'name = "stats"'), 1.2 * (32.768 + 0.16)),
        (limited('"much"', 'name = "W1"'), 1.2 * (4.096 + 0.16)),
    ],
)
def test_what_a_study_takes_is_known_before_it_begins(text: str, needed_gb: float) -> None:
    message = refused(text, 0.99 * needed_gb)
    assert "lower the scales" in message
    assert refused(text, 1.01 * needed_gb) == ""


def test_a_limit_on_wal_is_proposed_where_it_is_what_takes_the_disk() -> None:
    assert "or lower max_wal_size" in refused(WRITING, 10)
    assert "max_wal_size" not in refused(STUDY, 1)
