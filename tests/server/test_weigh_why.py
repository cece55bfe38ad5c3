"""`pgtare weigh --why` names what an instrument spends its time in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgtare.postgres.binaries import Binaries
from tests.commands import pgtare, read, words
from tests.flame_recordings import needs_perf
from tests.servers import named

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

TWO = ("log_min_duration_statement", "pg_stat_statements")


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_names_the_logging_and_the_hashing_functions(binaries: Binaries, tmp_path: Path) -> None:
    needs_perf("on")
    # Debian's is stripped: functions of the extension's own have no names there
    own = ("pgss_", "pg_stat_statements.so+")
    why: dict[str, dict[str, Any]] = {}
    logging: dict[str, dict[str, Any]] = {}
    statements: list[str] = []
    out = ""
    for seconds in (20, 100):  # on a busy machine few samples are of what takes little time
        file = tmp_path / f"{seconds}.json"
        done = pgtare(
            "weigh",
            *TWO,
            *words("--why --duration {} --scale 1", seconds),
            *named(binaries),
            *words("--output {} --seed 7", file),
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        out = done.stdout
        print(out)
        why = {reason["arm"]: reason for reason in read(file)["why"]["computing"]}
        logging = {f["name"]: f for f in why["log_min_duration_statement"]["functions"]}
        statements = [f["name"] for f in why["pg_stat_statements"]["functions"]]
        if (
            {"errfinish", "write (system call)"} <= logging.keys()
            and "JumbleQuery" in statements
            and any(name.startswith(own) for name in statements)
        ):
            break
    assert "errfinish" in logging
    assert "write (system call)" in logging
    assert logging["errfinish"]["lo_us"] > 0
    assert "JumbleQuery" in statements
    assert any(name.startswith(own) for name in statements), statements
    assert "errfinish" not in statements
    control = why["control"]["total"]
    assert abs(control["growth_us"]) < 5 * (control["hi_us"] - control["lo_us"])
    assert "Why log_min_duration_statement costs what" in out
