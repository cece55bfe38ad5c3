"""The page as text: lean, escaped, written whole or not at all."""

from __future__ import annotations

import html
import json
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest

from pgtare.errors import MeasurementError
from pgtare.estimate.trial.answer import ReasonKind
from pgtare.estimate.trial.observations import UnitFlag, empty
from pgtare.kit.chart import Chart
from pgtare.kit.interval import Interval
from pgtare.kit.page_frame import breakable, embeddable
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.weigh.report import rows, wording
from pgtare.weighing.weigh.report.charts import by_position, charts
from pgtare.weighing.weigh.report.page import page, write_page
from pgtare.weighing.weigh.schema import Reason
from tests.small_volume import raise_no_space
from tests.unit.sample_result import COLD_US, COST_US, Sample, answer, effect, judged, sample


def effects(drawn: Sample) -> Chart:
    return next(c for c in charts(drawn.result, drawn.observations) if c.id == "effects")


def readable(text: str) -> str:
    """The page's text as it reads, without marks for line breaks."""
    return text.replace("<wbr>", "").replace("\u00a0", " ")


def table_rows(text: str) -> list[list[str]]:
    """The cells of the first table, with the name first."""
    (body,) = re.findall(r'<table class="cards".*?<tbody.*?>(.*?)</tbody>', text, re.DOTALL)
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("</tr>")[:-1]
    ]


def test_no_trace_has_more_than_300_points() -> None:
    drawn = sample()
    sizes = [len(t["x"]) for c in charts(drawn.result, drawn.observations) for t in c.data]
    assert sizes
    assert max(sizes) <= 300


def test_everything_but_plotly_is_small() -> None:
    from plotly.offline import get_plotlyjs

    drawn = sample()
    assert len(page(drawn.result, drawn.observations)) - len(get_plotlyjs()) < 250_000


def test_the_chart_of_answers_comes_after_the_table_and_that_of_settling_next() -> None:
    drawn = sample()
    found = [chart.id for chart in charts(drawn.result, drawn.observations)]
    assert found == ["effects", "settling"]
    text = page(drawn.result, drawn.observations)
    places = [text.index('class="cards"'), *(text.index(f'id="chart-{name}"') for name in found)]
    assert places == sorted(places)
    assert places[-1] < text.index('id="h-details"')


def test_the_table_is_that_of_the_terminal() -> None:
    drawn = sample()
    shown = [
        [row.cells[key] for key in ("name", "us", "interval_us", "pct", "answer")]
        for row in rows.table(drawn.result)
    ]
    assert table_rows(readable(page(drawn.result, empty()))) == shown


def test_every_note_is_below_the_table_and_every_answer_among_the_details() -> None:
    drawn = sample()
    text = readable(html.unescape(page(drawn.result, empty())))
    table, details = text.index('class="cards"'), text.index('id="h-details"')
    for note in wording.notes(drawn.result):
        assert table < text.index(note) < details
    for _, sentence in wording.answers(drawn.result):
        assert details < text.index(sentence)


def test_without_observations_the_page_still_answers() -> None:
    drawn = sample()
    text = readable(page(drawn.result, empty()))
    assert "All were seen working." in text
    assert 'id="chart-effects"' in text
    assert 'id="chart-settling"' not in text


def test_numbers_that_are_missing_do_not_break_the_charts() -> None:
    drawn = sample(60)
    arm = drawn.result.arms[2]
    nothing = Interval(estimate=None, lo=None, hi=None)
    judged(arm, "inconclusive", us=nothing, pct=nothing)
    for field in type(effect(arm)).model_fields:
        setattr(effect(arm), field, nothing)
    json.loads(embeddable([c.figure() for c in charts(drawn.result, drawn.observations)]))


def test_the_margin_is_a_share_of_the_base_s_body() -> None:
    drawn = sample(60)
    drawn.result.arms[0].mean_us, drawn.result.baseline.body_mean_us = 900.0, 60.0
    band = effects(drawn).layout["shapes"][0]
    assert (band["x0"], band["x1"]) == pytest.approx((-0.3, 0.3))
    drawn.result.baseline.body_mean_us = None
    assert effects(drawn).layout["shapes"] == []


def test_a_cost_without_an_interval_is_not_drawn_as_if_it_were_exact() -> None:
    drawn = sample(60)
    answer(drawn.result.arms[2]).us = Interval(estimate=987.0, lo=None, hi=None)
    points = effects(drawn).data[0]
    assert 987.0 not in points["x"]
    assert points["x"].count(None) == 1


def test_the_chart_of_answers_has_the_points_of_the_table() -> None:
    drawn = sample()
    chart = effects(drawn)
    shown = [answer(row.arm).us.estimate for row in rows.table(drawn.result)]
    assert chart.data[0]["x"] == pytest.approx(shown, abs=1e-3)
    assert [row[1] for row in chart.table_rows] == [
        row.cells["us"] for row in rows.table(drawn.result)
    ]


def test_an_arm_without_proof_is_not_drawn() -> None:
    drawn = sample()
    judged(drawn.result.arms[2], "not_verified", ReasonKind.NO_PROOF)
    seen = set()
    for chart in charts(drawn.result, drawn.observations):
        seen.add(chart.id)
        assert "pg_stat_statements" not in json.dumps(chart.figure()), chart.id
        assert "pg_stat_statements" not in json.dumps(chart.table_rows), chart.id
    assert seen == {"effects", "settling"}


def test_the_settling_curve_finds_the_truth() -> None:
    """What is larger in the first transactions after a switch, and what it comes to."""
    drawn = sample()
    thresholds = [arm.threshold_us for arm in drawn.result.arms]
    curves = by_position(drawn.observations, thresholds)
    assert curves is not None
    assert curves.shape == (7, 32)
    cost, cold = COST_US[2], COLD_US[2]
    assert curves[2, 0] == pytest.approx(cost + cold, abs=0.7)
    assert curves[2, 8:].mean() == pytest.approx(cost, abs=0.2)
    assert curves[3].mean() == pytest.approx(COST_US[3], abs=0.3)
    assert np.isnan(curves[0]).all()


def test_units_in_which_the_arm_was_not_in_force_stay_out() -> None:
    observations = sample(60).observations
    first, *_ = np.flatnonzero(observations["position"] >= 8)
    for flag in (UnitFlag.SWITCH_FAILED, UnitFlag.UNDRAWN, UnitFlag.FIRST_RUN, UnitFlag.OPEN):
        changed = observations.copy()
        changed["flags"][first] |= int(flag)
        changed["service_ns"][first] = 10**12
        curves = by_position(changed, [None, *[10.0**9] * 6])
        assert curves is not None
        assert np.nanmax(np.abs(curves)) < 1e6


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
        judged(
            arm, "not_verified", reasons=[Reason(kind=ReasonKind.ENDED_EARLY, text="it crashed")]
        )
    text = page(drawn.result, drawn.observations)
    assert '<p class="alarm">THE TRIAL ENDED EARLY: it crashed, after' in text
    assert "seen at work" not in text
    assert "seen working" not in text
    assert "chart-effects" not in text


def test_names_may_break_between_words_and_stay_escaped() -> None:
    assert breakable("pg_stat_statements.track/x_y <b_c> 0.5 9_9 a.b") == (
        "pg_<wbr>stat_<wbr>statements.<wbr>track/x_y &lt;b_c&gt; 0.5 9_9 a.b"
    )
    assert breakable("+2.5 µs (4 %) 7 a") == "+2.5\u00a0µs (4\u00a0%) 7 a"
    assert breakable("</script_one>") == "&lt;/script_<wbr>one&gt;"


HOSTILE = "<script>x</script>\"'><img src=x onerror='y'>"


def test_what_comes_from_elsewhere_is_escaped_wherever_it_is_shown() -> None:
    """Names, the server's words, settings, the command, warnings."""
    drawn = sample(60)
    result = drawn.result
    for arm in result.arms[2:4]:
        arm.name = HOSTILE
        arm.settings = {HOSTILE: HOSTILE}
        arm.proof = Proof(state="idle", evidence=HOSTILE)
    named = Reason(kind=ReasonKind.ENDED_EARLY, text=HOSTILE)
    judged(result.arms[4], "not_verified", reasons=[named])
    result.warnings, result.command = [HOSTILE], [HOSTILE]
    result.server["settings"] = {HOSTILE: HOSTILE}
    result.load["script"] = HOSTILE
    text = readable(page(result, drawn.observations))
    ours = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "<img" not in ours
    assert "<script>x" not in text
    assert ours.count("&lt;img src=x") > 10


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
