"""Findings for Prometheus: what is open, by kind and class, and no name of anything else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgtare.keeping.agent.server_findings import PART, ServerFindings
from pgtare.observing.findings.episodes import Episode
from pgtare.observing.findings.model import Finding
from pgtare.observing.findings.statement_texts import TextFile
from tests.unit.live_findings import finding_row, findings_of_shop
from tests.unit.live_rows import SHOP, STORY, finding_table
from tests.unit.spool_rows import at
from tests.unit.test_metrics import commit, exporter, going_on, samples, tick

OPEN, SHARE = "pgtare_finding_open", "pgtare_finding_share"


def row(second: int, event: str, key: str, class_: int, share: float | None, **more: Any) -> Any:
    given = {"since": at(0), "key": key, "class": class_, "share": share, "kind": "lock", **more}
    return finding_row(at(second), event, **given)


def rows(*found: Any) -> pa.Table:
    return finding_table(SHOP, list(found))


def shown(found: Any, name: str) -> dict[tuple[str, str], float]:
    """Values by kind and class."""
    return {
        (one.labels["kind"], one.labels["class"]): one.value
        for one in samples(found)
        if one.name == name
    }


def test_what_is_open_and_the_largest_share() -> None:
    found = exporter()
    first = [row(1, "open", "a", 1, 0.3), row(2, "open", "b", 1, 0.2)]
    setting = row(3, "open", "c", 3, None, kind="evictions")
    commit(found, findings=rows(*first, setting), ticks=tick())
    assert shown(found, OPEN) == {("lock", "1"): 2, ("evictions", "3"): 1}
    assert shown(found, SHARE) == {("lock", "1"): 0.3}
    # one becomes an outage; rows of one commit come in any order
    commit(found, findings=rows(row(30, "update", "a", 0, 0.8), row(20, "update", "a", 1, 0.4)))
    assert shown(found, OPEN) == {("lock", "0"): 1, ("lock", "1"): 1, ("evictions", "3"): 1}
    assert shown(found, SHARE) == {("lock", "0"): 0.8, ("lock", "1"): 0.2}
    # what is closed is a zero from then on
    ended = row(40, "close", "a", 0, 0.8), row(41, "close", "c", 3, None, kind="evictions")
    commit(found, findings=rows(*ended))
    assert shown(found, OPEN) == {("lock", "0"): 0, ("lock", "1"): 1, ("evictions", "3"): 0}
    assert shown(found, SHARE) == {("lock", "0"): 0, ("lock", "1"): 0.2}


def test_nothing_is_shown_before_its_commit_is_written() -> None:
    found = exporter()
    commit(found, findings=rows(row(1, "open", "a", 1, 0.3)), ticks=tick(), written=False)
    assert shown(found, OPEN) == {}
    commit(found)
    assert shown(found, OPEN) == {("lock", "1"): 1}


def findings_of_an_agent() -> pa.Table:
    """The reading of an agent, with one that is open and one that is closed."""
    before = ServerFindings(None, TextFile())
    for key, these in (("a", before.episodes.open), ("b", before.episodes.closed)):
        finding = Finding(
            **{"key": key, "kind": "lock", "class": 0, "level": "critical", "title": "t"},
            **{"evidence": [], "why": "", "remedy": [], "sure": "certain", "because": ""},
            share=0.7,
        )
        these[key] = Episode(finding, 1.0, 2.0)
    return before.reading()


def test_the_next_agent_goes_on_with_what_is_open() -> None:
    again = going_on({("shop", PART): findings_of_an_agent()})
    commit(again, ticks=tick())
    assert shown(again, OPEN) == {("lock", "0"): 1}
    assert shown(again, SHARE) == {("lock", "0"): 0.7}
    commit(again, findings=rows(row(1, "close", "a", 0, 0.7)))
    assert shown(again, OPEN) == {("lock", "0"): 0}


def test_what_the_next_agent_cannot_read_is_not_open() -> None:
    found = findings_of_an_agent().to_pylist()
    for these in found:
        these["episodes"] = these["episodes"].replace('"finding": {', '"finding": {"later": 1, ')
    stored = pa.Table.from_pylist(found)
    assert not ServerFindings(stored, TextFile()).episodes.open
    again = going_on({("shop", PART): stored})
    commit(again, ticks=tick())
    assert not any(shown(again, OPEN).values())


def test_labels_name_no_process_query_or_role() -> None:
    found = exporter()
    all_of_it = findings_of_shop(*STORY.locked, STORY.deployed, STORY.end)
    commit(found, findings=rows(*all_of_it), ticks=tick())
    labels = [one.labels for one in samples(found) if "finding" in one.name]
    assert {name for one in labels for name in one} == {"server", "kind", "class"}
    values = {value for one in labels for value in one.values()}
    assert values == {"shop", "lock", "statement", "0", "1"}
