"""What a study names of installed servers is looked at before anything is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.server.binaries import Binaries
from pgtare.weighing.ladder import settings_check
from pgtare.weighing.ladder.study_file import parse

STUDY = """
title = "What a library costs"
[servers]
main = {{ pg_config = "{pg_config}" }}
[protocol]
rounds = 6
run = "1s"
[analysis]
floor = "plain"
[[variant]]
name = "plain"
[[variant]]
name = "loaded"
preload = ["wait_event_timing", "{library}"]
[[comparison]]
arm = "loaded"
base = "plain"
[[workload]]
name = "W1"
scale = {scale}
"""


def check(pg_config: str | Path, library: str = "pg_stat_statements", scale: int = 1) -> None:
    text = STUDY.format(pg_config=pg_config, library=library, scale=scale)
    settings_check.check_installations(parse(text, "study.toml"))


def test_a_pg_config_that_is_not_there_is_reported() -> None:
    with pytest.raises(UsageError, match="there is no /nowhere/pg_config: give the path"):
        check("/nowhere/pg_config")


@pytest.mark.debian
def test_a_library_that_an_installation_lacks_is_reported(debian15: Binaries) -> None:
    check(debian15.pg_config)
    with pytest.raises(UsageError, match=r"'pg_stat_statments'.*did you mean pg_stat_statements"):
        check(debian15.pg_config, library="pg_stat_statments")
    with pytest.raises(UsageError, match="lower the scales, or let PGTARE_DIR name a larger disk"):
        check(debian15.pg_config, scale=21_474)
