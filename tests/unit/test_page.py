"""The page as text: lean, escaped, written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgtare.errors import MeasurementError
from pgtare.observations import UnitFlag, empty
from pgtare.report import summaries
from pgtare.report.charts import charts
from pgtare.report.page import embeddable, page, write_page
from tests.unit.sample_result import sample


def test_no_trace_has_more_than_300_points() -> None:
    drawn = sample()
    sizes = [len(t["x"]) for c in charts(drawn.result, drawn.observations) for t in c.data]
    assert sizes
    assert max(sizes) <= 300


def test_everything_but_plotly_is_small() -> None:
    from plotly.offline import get_plotlyjs

    drawn = sample()
    assert len(page(drawn.result, drawn.observations)) - len(get_plotlyjs()) < 250_000


def test_without_observations_the_page_still_answers() -> None:
    drawn = sample()
    drawn.result.by_backend = []
    text = page(drawn.result, empty())
    assert "Leaving pg_stat_statements on costs" in text
    assert 'id="chart-effects"' in text
    assert 'id="chart-distributions"' not in text


def test_numbers_that_are_missing_do_not_break_the_charts() -> None:
    drawn = sample(60)
    effect = drawn.result.arms[2].effect
    assert effect is not None
    for field in type(effect).model_fields:
        interval = getattr(effect, field)
        interval.estimate = interval.lo = interval.hi = None
    json.loads(embeddable([c.figure() for c in charts(drawn.result, drawn.observations)]))


def test_an_arm_without_proof_is_not_drawn() -> None:
    drawn = sample()
    drawn.result.arms[2].verdict = "not_verified"
    for chart in charts(drawn.result, drawn.observations):
        if chart.id != "distributions":
            assert "pg_stat_statements" not in json.dumps(chart.figure()), chart.id


def test_the_course_over_time_finds_the_truth() -> None:
    drawn = sample(6000)
    units = summaries.usable(drawn.observations)
    threshold = drawn.result.baseline.threshold_us
    assert threshold is not None
    course = summaries.time_course(units, drawn.result.design.block, threshold, 7)
    assert course is not None
    assert len(course.at_s) == summaries.TIME_BINS
    assert np.isfinite(course.mean).all()
    own = drawn.result.arms[5].effect
    assert own is not None
    assert course.mean[5].mean() == pytest.approx(own.own_us.estimate, abs=0.05)
    covered = (course.lo[5] <= own.own_us.estimate) & (own.own_us.estimate <= course.hi[5])
    assert covered.mean() > 0.8
    assert (course.mean[0] == 0).all()


def test_units_in_which_the_arm_was_not_in_force_stay_out() -> None:
    observations = sample(60).observations
    observations["flags"][10] |= int(UnitFlag.SWITCH_FAILED)
    observations["service_ns"][10] = 10**12
    units = summaries.usable(observations)
    assert units["service_ns"].max() < 10**12
    assert len(units) == len(observations) - 3  # and the first unit of two sessions


def test_embedded_json_cannot_end_its_element() -> None:
    text = embeddable(["</script><!--", "\u2028", "&"])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == ["</script><!--", "\u2028", "&"]


def test_nothing_points_out_of_the_file() -> None:
    drawn = sample()
    text = page(drawn.result, drawn.observations)
    ours = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"(?:https?:)?//\w+", ours) == []
    assert re.findall(r"<a [^>]*href=\"([^\"]*)\"", ours) == ["#main"]


def test_replaces_an_older_page_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = sample()
    path = tmp_path / "page.html"
    path.write_text("older")

    def full(_: int) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(MeasurementError, match=r"page\.html could not be written: the disk"):
            write_page(drawn.result, drawn.observations, path)
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["page.html"]
    write_page(drawn.result, drawn.observations, path)
    assert path.read_text(encoding="utf-8").endswith("</html>")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
