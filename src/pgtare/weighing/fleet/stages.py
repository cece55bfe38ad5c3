"""Canary first: which servers are weighed when, and with what share of their sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Shares of sessions that take part on the first server, and on the few that follow.
CANARY, FEW = 0.01, 0.10
#: A stage before the last one takes this share of the duration, within bounds in s.
_STAGE_SHARE, _SHORTEST_S, _LONGEST_S = 1 / 6, 5.0, 60.0
#: How long setting up, finishing blocks and reading the server take, for each trial, in s.
OVERHEAD_S = 4.0


@dataclass(frozen=True)
class Stage:
    """Trials that run side by side. participation: chance of each session to be drawn.

    last: what is measured here is estimated; the stages before only look for harm.
    """

    name: str
    servers: tuple[str, ...]
    participation: float
    seconds: float
    last: bool = False

    def share_of(self, traffic: ServerTraffic) -> float:
        """The chance of a server's sessions: before the last stage, one at least takes part."""
        if self.last:
            return self.participation
        return min(1.0, max(self.participation, 1 / max(traffic.sessions, 1)))

    def lasts_s(self, at_once: int) -> float:
        """How long it takes if this many trials run at a time."""
        return math.ceil(len(self.servers) / at_once) * (self.seconds + OVERHEAD_S)


@dataclass(frozen=True)
class ServerTraffic:
    """What a server does without us. sessions: those at work now, of those to weigh."""

    transactions_per_s: float
    sessions: int
    weight: float


def order(traffic: Mapping[str, ServerTraffic]) -> list[str]:
    """Servers in the order in which they are exposed.

    One without traffic shows no harm, so it comes last; of the others those that matter least come
    first, and of equals those with the fewest transactions.
    """
    return sorted(
        traffic,
        key=lambda name: (
            traffic[name].transactions_per_s < 1,
            traffic[name].weight,
            traffic[name].transactions_per_s,
            name,
        ),
    )


def plan(
    names: Sequence[str], seconds: float, participation: float, canary_s: float | None = None
) -> list[Stage]:
    """The stages for servers in their order. canary_s: how long those before the last one take."""
    before = seconds * _STAGE_SHARE
    each = canary_s or min(max(before, _SHORTEST_S), _LONGEST_S)
    few = max(2, math.ceil(math.sqrt(len(names))))
    stages = [Stage("canary", tuple(names[:1]), min(CANARY, participation), each)]
    if len(names) > few:
        stages.append(Stage("few", tuple(names[:few]), min(FEW, participation), each))
    stages.append(Stage("all", tuple(names), participation, seconds, last=True))
    return stages


@dataclass(frozen=True)
class Exposure:
    """Transactions with an instrument on. cut_off: at most, if the command is cut off then."""

    stage: Stage
    transactions: float
    cut_off: float


def exposures(
    stages: Sequence[Stage],
    traffic: Mapping[str, ServerTraffic],
    instrumented: float,
    lease_s: float,
    at_once: int,
) -> list[Exposure]:
    """What each stage exposes if nothing stops it, at the present rates.

    instrumented: the share of a trial's transactions whose arm is neither base nor control.
    """
    found = []
    for stage in stages:
        rates = sorted(
            (
                traffic[name].transactions_per_s * stage.share_of(traffic[name])
                for name in stage.servers
            ),
            reverse=True,
        )
        whole = sum(rates) * stage.seconds
        cut_off = sum(rates[:at_once]) * lease_s
        found.append(Exposure(stage, whole * instrumented, cut_off * instrumented))
    return found
