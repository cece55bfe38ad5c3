"""`pgtare weigh --why` names what an instrument spends its time in."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.postgres.binaries import Binaries
from tests.commands import pgtare, read, words
from tests.flame_recordings import needs_perf
from tests.servers import named

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

TWO = ("log_min_duration_statement", "pg_stat_statements")


@pytest.mark.slow
def test_names_the_logging_and_the_hashing_functions(binaries: Binaries, tmp_path: Path) -> None:
    needs_perf("on")
    where = named(binaries)
    done = pgtare(
        "weigh",
        *TWO,
        *words("--why --duration 20 --scale 1"),
        *where,
        *words("--output {} --seed 7", tmp_path / "w.json"),
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    why = {reason["arm"]: reason for reason in read(tmp_path / "w.json")["why"]["computing"]}
    logging = {f["name"]: f for f in why["log_min_duration_statement"]["functions"]}
    assert "errfinish" in logging
    assert "write (system call)" in logging
    assert logging["errfinish"]["lo_us"] > 0
    statements = [f["name"] for f in why["pg_stat_statements"]["functions"]]
    assert "JumbleQuery" in statements
    # Debian's is stripped: functions of the extension's own have no names there
    own = ("pgss_", "pg_stat_statements.so+")
    assert any(name.startswith(own) for name in statements), statements
    assert "errfinish" not in statements
    control = why["control"]["total"]
    assert abs(control["growth_us"]) < 5 * (control["hi_us"] - control["lo_us"])
    assert "Why log_min_duration_statement costs what" in done.stdout
