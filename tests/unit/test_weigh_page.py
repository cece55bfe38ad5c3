"""The page as text: lean, escaped, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import MeasurementError
from pgtare.estimate.trial.observations import UnitFlag, empty
from pgtare.kit.interval import Interval
from pgtare.kit.page_frame import breakable, embeddable
from pgtare.weighing.weigh.report import chart_data
from pgtare.weighing.weigh.report.charts import charts
from pgtare.weighing.weigh.report.page import page, write_page
from tests.small_volume import raise_no_space
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
    text = page(drawn.result, empty()).replace("<wbr>", "")
    assert "Leaving pg_stat_statements on costs" in text
    assert 'id="chart-effects"' in text
    assert 'id="chart-distributions"' not in text


def test_numbers_that_are_missing_do_not_break_the_charts() -> None:
    drawn = sample(60)
    effect = drawn.result.arms[2].effect
    assert effect is not None
    for field in type(effect).model_fields:
        interval = getattr(effect, field)
        if interval is not None:
            interval.estimate = interval.lo = interval.hi = None
    json.loads(embeddable([c.figure() for c in charts(drawn.result, drawn.observations)]))


def test_the_margin_is_a_share_of_the_base_s_body() -> None:
    drawn = sample(60)
    drawn.result.baseline.mean_us, drawn.result.baseline.body_mean_us = 900.0, 60.0
    band = charts(drawn.result, drawn.observations)[0].layout["shapes"][0]
    assert (band["x0"], band["x1"]) == pytest.approx((-0.3, 0.3))
    drawn.result.baseline.body_mean_us = None
    assert charts(drawn.result, drawn.observations)[0].layout["shapes"] == []


def test_a_total_without_an_interval_is_not_drawn_as_if_it_were_exact() -> None:
    drawn = sample(60)
    effect = drawn.result.arms[2].effect
    assert effect is not None
    effect.total_us = Interval(estimate=987.0, lo=None, hi=None)
    chart = charts(drawn.result, drawn.observations)[0]
    assert "987" not in json.dumps(chart.figure())
    assert chart.layout["xaxis"]["range"][1] < 987


def test_an_arm_without_proof_is_not_drawn() -> None:
    drawn = sample()
    drawn.result.arms[2].verdict = "not_verified"
    for chart in charts(drawn.result, drawn.observations):
        if chart.id != "distributions":
            assert "pg_stat_statements" not in json.dumps(chart.figure()), chart.id


def test_the_course_over_time_finds_the_truth() -> None:
    drawn = sample(6000)
    units = chart_data.usable(drawn.observations)
    threshold = drawn.result.baseline.threshold_us
    assert threshold is not None
    course = chart_data.time_course(units, drawn.result.design.block, [threshold] * 7)
    assert course is not None
    assert len(course.at_s) == chart_data.TIME_BINS
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
    units = chart_data.usable(observations)
    assert units["service_ns"].max() < 10**12
    assert len(units) == len(observations) - 3  # and the first unit of two sessions


def test_embedded_json_cannot_end_its_element() -> None:
    text = embeddable(["</script><!--", "\u2028", "&"])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == ["</script><!--", "\u2028", "&"]


def test_the_head_tells_server_load_and_time_only() -> None:
    drawn = sample()
    drawn.result.load |= {"clients": 1, "median_tps": 20535.0, "seed": 7, "rate_tps": None}
    for version_num, shown in ((180006, "18.6"), (None, "of unknown version")):
        drawn.result.server["version_num"] = version_num
        text = page(drawn.result, empty())
        assert (
            f'<p class="sub">PostgreSQL {shown} · pgbench select-only, 1 client, '
            "20,535 transactions/s · 2025-08-17 09:30 UTC</p>" in text
        )


def test_arms_list_only_what_differs_from_the_base() -> None:
    drawn = sample()
    base, control, statements = drawn.result.arms[:3]
    base.settings = {"pg_stat_statements.track": "none", "track_io_timing": "off"}
    control.settings = dict(base.settings)
    statements.settings = base.settings | {"pg_stat_statements.track": "top"}
    text = page(drawn.result, empty()).replace("<wbr>", "").replace("\u00a0", " ")
    listed = text.split("<summary>Arms</summary>")[1]
    arms = dict(re.findall(r'<th scope="row">([^<]*)</th><td>(.*?)</td>', listed, re.DOTALL)[:7])
    settings = {name: re.findall(r"<code>(.*?)</code>", cell) for name, cell in arms.items()}
    assert settings["base"] == ["pg_stat_statements.track = none", "track_io_timing = off"]
    assert settings["pg_stat_statements"] == ["pg_stat_statements.track = top"]
    assert settings["control"] == []
    assert "the same as the base" in arms["control"]
    assert "5 µs added to each transaction" in arms["inject 5 µs"]
    assert "(base)" not in "".join(arms)


def test_a_trial_the_server_ended_shows_no_proof() -> None:
    drawn = sample()
    drawn.result.design.stopped_by = "server"
    for arm in drawn.result.arms[1:]:
        arm.verdict, arm.verdict_reason = "not_verified", "the trial ended early: it crashed"
    text = page(drawn.result, drawn.observations)
    assert '<p class="alarm">THE TRIAL ENDED EARLY: it crashed, after' in text
    assert "seen at work" not in text
    assert "Proof that" not in text


def test_names_may_break_between_words_and_stay_escaped() -> None:
    assert breakable("pg_stat_statements.track/x_y <b_c> 0.5 9_9 a.b") == (
        "pg_<wbr>stat_<wbr>statements.<wbr>track/x_y &lt;b_c&gt; 0.5 9_9 a.b"
    )
    assert breakable("+2.5 µs (4 %) 7 a") == "+2.5\u00a0µs (4\u00a0%) 7 a"
    assert breakable("</script_one>") == "&lt;/script_<wbr>one&gt;"


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

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raise_no_space)
        with pytest.raises(MeasurementError, match=r"page\.html could not be written: the disk"):
            write_page(drawn.result, drawn.observations, path)
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["page.html"]
    write_page(drawn.result, drawn.observations, path)
    assert path.read_text(encoding="utf-8").endswith("</html>")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
