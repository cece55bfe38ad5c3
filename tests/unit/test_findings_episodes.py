"""Findings over time: when they open, go on, end and come back."""

from __future__ import annotations

from typing import Any

from pgtare.observing.findings.episodes import Episodes
from pgtare.observing.findings.model import ACTIVE, OUTAGE, Finding
from pgtare.observing.findings.observation import moment

T = 1_800_000_000.0


def finding(key: str = "lock/1@0", **more: Any) -> Finding:
    fields: dict[str, Any] = {
        "kind": "lock",
        "class_": ACTIVE,
        "level": "warning",
        "since": moment(T - 3),
        "share": 0.5,
        "aas": 2.0,
        "active_s": 20.0,
        "title": "one holds up others",
        "evidence": [],
        "why": "",
        "remedy": [],
        "sure": "certain",
        "because": "",
    }
    return Finding(key=key, **{**fields, **more})


def changes(episodes: Episodes, at: float, *found: Finding) -> list[tuple[str, str]]:
    return [(one.change, one.episode.finding.key) for one in episodes.evaluate(found, T + at, 10.0)]


def test_two_of_three_looks_open_and_a_minute_of_nothing_ends() -> None:
    episodes, one = Episodes(), finding()
    assert changes(episodes, 0, one) == []
    assert changes(episodes, 10) == []
    assert changes(episodes, 20, one) == [("open", one.key)]
    assert episodes.open[one.key].since == T - 3
    assert changes(episodes, 30, one) == []
    assert changes(episodes, 80) == []
    (ended,) = episodes.evaluate([], T + 90, 10.0)
    assert (ended.change, ended.until) == ("close", T + 30)
    assert changes(episodes, 100) == []


def test_one_look_in_a_row_of_three_opens_nothing() -> None:
    episodes, one = Episodes(), finding()
    for at in range(0, 300, 30):
        assert changes(episodes, at, one) == []
        assert changes(episodes, at + 10) == []
        assert changes(episodes, at + 20) == []


def test_an_outage_and_a_long_queue_open_at_once() -> None:
    long = {"longest_wait_s": 6.0, "sessions": 3.0}
    for one in (finding(class_=OUTAGE), finding(figures=long)):
        assert changes(Episodes(), 0, one) == [("open", one.key)]
    few = finding(figures={"longest_wait_s": 6.0, "sessions": 2.0})
    assert changes(Episodes(), 0, few) == []


def test_an_outage_whose_holder_is_not_known_waits_for_a_second_look() -> None:
    """At the first look nobody was asked whom he waits for."""
    episodes = Episodes()
    unknown = finding("hotlock/Lock/relation/hot", kind="hotlock", class_=OUTAGE)
    known = finding(class_=OUTAGE)
    assert changes(episodes, 0, unknown) == []
    assert changes(episodes, 10, known) == [("open", known.key)]


def test_a_setting_that_was_read_opens_at_once_and_a_restart_ends_all() -> None:
    episodes = Episodes()
    one = finding("setting/logging", kind="logging", quality="exact")
    assert changes(episodes, 0, one) == [("open", one.key)]
    counted = finding("setting/checkpoints", kind="checkpoints")
    assert changes(episodes, 10, one, counted) == []
    assert [change.change for change in episodes.end_all()] == ["close"]
    assert episodes.open == {}


def test_what_is_open_is_written_anew_if_it_rises_and_each_minute() -> None:
    episodes = Episodes()
    changes(episodes, 0, finding(class_=OUTAGE))
    assert changes(episodes, 10, finding(class_=OUTAGE, share=0.55)) == []
    risen = finding(class_=OUTAGE, share=0.65)
    assert changes(episodes, 20, risen) == [("update", risen.key)]
    assert changes(episodes, 70, risen) == []
    assert changes(episodes, 80, risen) == [("update", risen.key)]
    more = finding(class_=OUTAGE, share=0.66, aas=3.0)
    assert changes(episodes, 90, more) == [("update", more.key)]
    # its time is what it took in all, not that of one window
    assert episodes.open[risen.key].active_s == 20.0 + (4 * 2.0 + 3.0) * 10.0


def test_what_comes_back_within_ten_minutes_is_the_same() -> None:
    episodes, one = Episodes(), finding(class_=OUTAGE)
    changes(episodes, 0, one)
    assert changes(episodes, 60) == [("close", one.key)]
    later = finding(class_=OUTAGE, since=moment(T + 500))
    assert changes(episodes, 500, later) == [("open", one.key)]
    assert (episodes.open[one.key].since, episodes.open[one.key].episodes) == (T - 3, 2)
    assert changes(episodes, 560) == [("close", one.key)]
    assert changes(episodes, 1101) == []
    much_later = finding(class_=OUTAGE, since=moment(T + 1110))
    assert changes(episodes, 1110, much_later) == [("open", one.key)]
    assert (episodes.open[one.key].since, episodes.open[one.key].episodes) == (T + 1110, 1)


def test_a_new_root_of_the_same_object_follows_the_one_that_was_ended() -> None:
    episodes = Episodes()
    changes(episodes, 0, finding("lock/1@0", class_=OUTAGE, object="hot"))
    changes(episodes, 10, finding("lock/2@0", class_=OUTAGE, object="hot"))
    assert episodes.open["lock/2@0"].follows == "lock/1@0"
    changes(episodes, 20, finding("lock/3@0", class_=OUTAGE, object="cold"))
    assert episodes.open["lock/3@0"].follows is None


def test_a_clock_that_was_set_back_keeps_nothing_open() -> None:
    episodes, one = Episodes(), finding(class_=OUTAGE)
    changes(episodes, 0, one)
    assert changes(episodes, -3600) == []
    (ended,) = episodes.evaluate([], T - 3540, 10.0)
    assert (ended.change, ended.until) == ("close", T - 3600)
    other = finding("lock/2@0", class_=OUTAGE)
    changes(episodes, 0, other)
    changes(episodes, -3600, other)
    assert changes(episodes, -3530, other) == [("update", other.key)]
