"""The metrics of one server: totals that continue from the spool, and the latest samples.

Nothing here is shown before the commit that it came with has been written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgtare.keeping.agent.server_findings import read_back
from pgtare.keeping.metrics.wait_totals import OTHER, WaitSeries, WaitTotals

#: Parts of the spool's readings.
WAITS_PART, LOSSES_PART = "metrics-waits", "metrics-losses"
#: Rows of the agent's table that count what the module could not, by their unit.
_LOST = pa.array(["waits", "entries"])
#: Known from the start, so that the first one is an increase.
LOSS_KINDS = ("missed", "overflows", "statements_evicted", "statements_missed")
GAP_KINDS = ("restart", "reset", "absence", "lost", "busy", "unexpected")
#: A server's counters are left out after this many intervals without a reading. When they come
#: back, they rise in one step; a window that did not see the time in between shows no false rate.
_STALE_INTERVALS = 3
#: Columns of findings: neither a process nor a name of a role, a statement or an object.
_FINDING = ("key", "kind", "class", "share")
#: The longest interval of a slowed-down look, as a multiple of the configured one.
_SLOWEST = 32

WaitingKey = tuple[str, str, str]
#: Kind and class of findings.
FindingKey = tuple[str, str]


@dataclass(frozen=True)
class ServerSnapshot:
    """What is shown of a server. *_until_s: when it is too old, by a clock that is never set.

    waiting: sessions by kind of process, type and event. last_readings: times since 1970, s.
    findings: by kind and class, how many are open, and the largest of their shares.
    """

    series: tuple[WaitSeries, ...]
    series_until_s: float
    waiting: Mapping[WaitingKey, float]
    waiting_until_s: float
    losses: Mapping[str, int]
    gaps: Mapping[str, int]
    last_readings: Mapping[str, float]
    processors: float | None
    findings: Mapping[FindingKey, tuple[int, float | None]]


@dataclass
class ServerTotals:
    """The state of one server. waits: with the number of its time series that there may be."""

    waits: WaitTotals
    losses: Counter[str] = field(default_factory=Counter)
    gaps: Counter[str] = field(default_factory=Counter)
    waiting: dict[WaitingKey, float] = field(default_factory=dict)
    last_readings: dict[str, float] = field(default_factory=dict)
    processors: float | None = None
    _open: dict[str, tuple[FindingKey, float | None]] = field(default_factory=dict)
    _shared: dict[FindingKey, bool] = field(default_factory=dict)
    """what was open at any time, and whether it had a share: shown as zero when it is closed"""
    _until_s: dict[str, float] = field(default_factory=dict)

    def restore(
        self, waits: pa.Table | None, losses: pa.Table | None, findings: pa.Table | None
    ) -> None:
        """Go on from what the newest commit holds. findings: the agent's own reading of them."""
        for episode in read_back(findings).open.values():
            found = episode.finding.model_dump(by_alias=True)
            self._set_open(**{name: found[name] for name in _FINDING})
        if waits is not None:
            self.waits.restore(waits)
        if losses is not None:
            for row in losses.to_pylist():
                (self.gaps if row["gap"] else self.losses)[row["kind"]] = row["count"]

    def add(
        self, rows: Mapping[str, pa.Table], interval_s: float, now_s: float
    ) -> dict[str, pa.Table]:
        """Rows of this server by table; the parts to be committed with them."""
        readings = {}
        if waits := rows.get("waits"):
            self.waits.add(waits, now_s)
            readings[WAITS_PART] = self.waits.to_table()
        before = self.losses.copy(), self.gaps.copy()
        if agent := rows.get("agent"):
            lost = agent.filter(pc.is_in(agent["unit"], _LOST))
            for kind, value in _pairs(lost, "kind", "value"):
                self.losses[kind] += int(value)
        if gaps := rows.get("gaps"):
            self.gaps.update(gaps["kind"].to_pylist())
        if before != (self.losses, self.gaps):
            readings[LOSSES_PART] = self._loss_table()
        if findings := rows.get("findings"):
            for event, *values in _pairs(findings.sort_by("ts"), "event", *_FINDING):
                if event == "close":
                    self._open.pop(values[0], None)
                else:
                    self._set_open(**dict(zip(_FINDING, values, strict=True)))
        if (activity := rows.get("activity")) and len(known := activity["processors"].drop_null()):
            self.processors = known[-1].as_py()
        ticks = rows.get("ticks")
        if ticks is not None:
            self._note(ticks, interval_s, now_s)
            looks = ticks["source"].to_pylist().count("sessions")
            if looks:
                self._sample(rows.get("sessions"), looks)
        return readings

    def snapshot(self) -> ServerSnapshot:
        """What to show of it as it is now."""
        return ServerSnapshot(
            tuple(self.waits.all_series()),
            self._until_s.get("waits", 0.0),
            dict(self.waiting),
            self._until_s.get("sessions", 0.0),
            {kind: self.losses[kind] for kind in {*LOSS_KINDS, *self.losses}},
            {kind: self.gaps[kind] for kind in {*GAP_KINDS, *self.gaps}},
            dict(self.last_readings),
            self.processors,
            self._findings(),
        )

    def _set_open(self, **finding: Any) -> None:
        place = finding["kind"], str(finding["class"])
        self._open[finding["key"]] = place, finding["share"]
        self._shared[place] = self._shared.get(place, False) or finding["share"] is not None

    def _findings(self) -> dict[FindingKey, tuple[int, float | None]]:
        found: dict[FindingKey, tuple[int, float | None]] = {
            place: (0, 0.0 if shared else None) for place, shared in self._shared.items()
        }
        for place, share in self._open.values():
            count, most = found[place]
            found[place] = count + 1, most if share is None else max(share, most or 0.0)
        return found

    def _note(self, ticks: pa.Table, interval_s: float, now_s: float) -> None:
        """When each table was read last, and until when that is new."""
        # the rows of one commit may come in any order
        known = ticks.group_by("source").aggregate([("ts", "max"), ("covered_ns", "max")])
        for source, ts, covered_ns in _pairs(known, "source", "ts_max", "covered_ns_max"):
            self.last_readings[source] = ts.timestamp()
            step_s = max(interval_s, min(covered_ns / 1e9, _SLOWEST * interval_s))
            self._until_s[source] = now_s + _STALE_INTERVALS * step_s

    def _sample(self, sessions: pa.Table | None, looks: int) -> None:
        """Sessions that waited, as the mean of the looks of one commit."""
        found: Counter[WaitingKey] = Counter()
        if sessions is not None:
            waiting = sessions.filter(pc.is_valid(sessions["type"]))
            found.update(_pairs(waiting, "backend_type", "type", "event"))
        self.waiting = dict.fromkeys(self.waiting, 0.0)
        for key, count in found.most_common():
            if key not in self.waiting and len(self.waiting) + self.waits.series >= self.waits.most:
                key = (OTHER, OTHER, OTHER)
            self.waiting[key] = self.waiting.get(key, 0.0) + count / looks

    def _loss_table(self) -> pa.Table:
        return pa.Table.from_pylist(
            [
                {"gap": gap, "kind": kind, "count": count}
                for gap, counts in ((False, self.losses), (True, self.gaps))
                for kind, count in counts.items()
            ]
        )


def _pairs(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """The rows of some columns."""
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))
