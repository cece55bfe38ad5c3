"""The same comparison by several protocols: time spent and width of the interval, in a row each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pgtare.weighing.ladder.result import Compared, OnWorkload, SideBySide, Way

_MINUTE_S = 60.0


def side_by_side(workloads: Sequence[OnWorkload]) -> tuple[SideBySide, ...]:
    """The comparisons that more than one protocol gave figures for, the floor's last."""
    by_name: dict[str, list[OnWorkload]] = {}
    for workload in workloads:
        by_name.setdefault(workload.stated, []).append(workload)
    compared = []
    for name, played in by_name.items():
        pairs = dict.fromkeys((c.arm, c.base) for workload in played for c in _all(workload))
        for arm, base in pairs:
            ways = tuple(
                _way(workload, c)
                for workload in played
                for c in _all(workload)
                if (c.arm, c.base) == (arm, base) and c.effect.pct is not None
            )
            if len(ways) > 1:
                compared.append(
                    SideBySide(workload=name, title=played[0].title, arm=arm, base=base, ways=ways)
                )
    return tuple(compared)


def _all(workload: OnWorkload) -> list[Compared]:
    return [*workload.compared, *([workload.floor] if workload.floor else [])]


def _way(workload: OnWorkload, c: Compared) -> Way:
    minutes = workload.spent_s / _MINUTE_S
    return Way(
        protocol=workload.protocol,
        metric=c.metric,
        blocks=c.rounds,
        spent_s=workload.spent_s,
        effect=c.effect,
        half_width_pct=c.effect.half_width_pct,
        se_pct=c.se_pct,
        se_1min_pct=None if c.se_pct is None else c.se_pct * math.sqrt(minutes),
    )
