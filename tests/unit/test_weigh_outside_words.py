"""What a weighing from outside says in words: nothing of what it does not know, no markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.estimate.trial.answer import Reason, ReasonKind
from pgtare.weighing.weigh import limit
from pgtare.weighing.weigh.outside_schema import OutsideInfo, ServerInfo, WindowsInfo
from pgtare.weighing.weigh.report import wording
from pgtare.weighing.weigh.schema import Limit, WeighResult
from tests.unit.sample_result import sample

SERVERS = [
    ServerInfo(name=name, version="18.1", standby=False, system_identifier=None, settings={})
    for name in ("old", "new")
]
WINDOWS = WindowsInfo(window_s=15, watchers=[])


def from_outside(**known: object) -> WeighResult:
    """A result from outside of which nothing else than this is known."""
    result = sample(50).result
    unknown = {"pause_us": None, "waiting_us": None, "disturbed_pct": None}
    counts = {"dropped": 3, "failed_blocks": 0, "server_busy_pct": 12.0, "left_out": {}}
    result.design.outside = OutsideInfo.model_validate({**unknown, **counts, **known})
    result.load = {"kind": "outside", "script": "cost.sql"}
    return result


@pytest.mark.parametrize("kind", [{}, {"servers": SERVERS}, {"windows": WINDOWS}])
def test_pauses_that_are_not_known_are_not_spoken_of(kind: dict[str, object]) -> None:
    said = wording._outside(from_outside(**kind))
    assert "–" not in said
    assert "pauses" not in said
    assert "has pauses of 250 µs. " in wording._outside(from_outside(pause_us=250.0, **kind)) + " "


def test_times_that_are_not_known_are_not_spoken_of() -> None:
    result = from_outside()
    assert "µs in bursts" in wording.subject(result)
    assert "with pauses" not in wording.subject(result)
    assert wording.subject(from_outside(waiting_us=70.9)).endswith(
        "µs in bursts, 70.9 µs with pauses"
    )
    result.baseline.body_mean_us = None
    assert wording.subject(result).endswith(" transactions")


def test_a_server_that_is_not_verified_has_its_reason() -> None:
    result = from_outside(servers=SERVERS)
    arm = next(arm for arm in result.arms if arm.role == "instrument")
    assert arm.answer is not None
    assert not wording._proofs(result)  # a server is not "seen working"
    arm.answer = arm.answer.model_copy(
        update={"verdict": "not_verified", "reasons": [Reason(ReasonKind.NO_PROOF)]}
    )
    assert wording._proofs(result).startswith(f"{arm.name} is not verified: ")


def test_the_logging_process_is_spoken_of_where_there_is_one() -> None:
    result = sample(50).result.model_copy(deep=True)
    result.server["kind"] = "running server"
    assert (
        "Not in the figure of auto_explain, log_min_duration_statement: what"
        in wording._logging(result)
    )
    result.server["kind"] = "embedded PostgreSQL"
    assert not wording._logging(result)


def test_names_in_the_summary_are_no_markup(tmp_path: Path) -> None:
    result = from_outside()
    result.load["script"] = "<img src=x onerror=alert(1)>|*b*\x1b[2J.sql"
    result.limits = [Limit(name="track_io_timing", at_most_pct=3.0, state="below", waiting=False)]
    limit.write_summary(result, tmp_path / "cost.md")
    summary = (tmp_path / "cost.md").read_text()
    assert "from outside, &lt;img src=x onerror=alert(1)&gt;\\|\\*b\\*?\\[2J.sql" in summary
    assert "<" not in summary
