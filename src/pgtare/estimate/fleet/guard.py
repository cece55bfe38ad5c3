"""A guard stops a fleet's trials if an arm harms: body, tail and aborts, at any time.

The chance that a guard breaches while the arm keeps to all limits on all servers is at most α: over
all looks, with any tail and any number of transactions. This rests on transactions being assigned
to arm and base in runs, by chance; so it is runs, and the means of their blocks, that are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.fleet.wealth import (
    BODY_BETS,
    ODDS_BETS,
    body_wealth,
    log_combined,
    log_mean,
    odds_wealth,
    threshold,
)

Harm = Literal["body", "tail", "aborts"]
HARMS: tuple[Harm, ...] = ("body", "tail", "aborts")


@dataclass(frozen=True)
class HarmLimits:
    """The harm that is tolerated, of an arm relative to the base."""

    body: float = 0.25  # share of the base's body by which the arm may be slower
    tail: float = 2.0  # odds of a run with a slow transaction
    aborts: float = 1.5  # odds of a run with an aborted transaction


@dataclass(frozen=True)
class GuardedServer:
    """A server that a guard watches.

    group: servers that share a load, so that what slows one slows the others. A server that shares
    none is a group of its own. cap_us: the quantile of the base at which times are cut, frozen
    before the trial.
    """

    group: str
    cap_us: float


@dataclass(frozen=True)
class GuardLook:
    """What one server added since the last look, of one arm and the base.

    arm_us, base_us: (blocks,) means in each whole block, in the order in which blocks were
    completed: of the base's min(time, cap), and of the arm's min(time, (1 + limit) × cap). Counts
    are of runs of transactions.
    """

    arm_us: Floats
    base_us: Floats
    arm_n: int
    base_n: int
    arm_slow: int  # with one longer than the base's quantile that was frozen before the trial
    base_slow: int
    arm_aborted: int
    base_aborted: int


@dataclass(frozen=True)
class Breach:
    """The harm, and the server, with most evidence when the guard breached."""

    harm: Harm
    server: str
    e_value: float  # of the guard


@dataclass
class HarmGuard:
    """One arm's guard on all servers that run it.

    Make a new one for each stage of a rollout, with the servers of that stage and its share of α:
    weights of servers that join later would otherwise depend on what was seen. log_e_value: the
    logarithm of the e-value, which is the mean of body, tail and aborts.
    """

    servers: Mapping[str, GuardedServer]
    limits: HarmLimits = field(default_factory=HarmLimits)
    alpha: float = 0.05
    breach: Breach | None = None
    log_e_value: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("a guard needs at least one server")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, not {self.alpha}")
        if not all(0 < s.cap_us < math.inf for s in self.servers.values()):
            raise ValueError("a guard needs each server's cap: a finite time above zero")
        self._at = {name: at for at, name in enumerate(sorted(self.servers))}
        groups = [self.servers[name].group for name in self._at]
        of_group = {group: at for at, group in enumerate(sorted(set(groups)))}
        self._group = np.array([of_group[group] for group in groups])
        bets: dict[Harm, Floats] = {"body": BODY_BETS, "tail": ODDS_BETS, "aborts": ODDS_BETS}
        self._wealth = {harm: np.zeros((len(groups), len(bets[harm]))) for harm in HARMS}
        # logarithms of mean wealth; a look changes one server's and its group's
        self._of_servers = {harm: np.zeros(len(groups)) for harm in HARMS}
        self._of_groups = {harm: np.zeros(len(of_group)) for harm in HARMS}

    def update(self, server: str, look: GuardLook) -> None:
        """Count what a server added; the breach, if this is one, stays."""
        limits, cap_us = self.limits, self.servers[server].cap_us
        at = self._at[server]
        if len(look.arm_us):
            added = body_wealth(look.arm_us, look.base_us, cap_us, limits.body)
            self._wealth["body"][at] += added
        self._wealth["tail"][at] += odds_wealth(
            look.arm_slow, look.base_slow, look.arm_n, look.base_n, limits.tail
        )
        self._wealth["aborts"][at] += odds_wealth(
            look.arm_aborted, look.base_aborted, look.arm_n, look.base_n, limits.aborts
        )
        group = self._group[at]
        members = self._group == group
        for harm, of_servers in self._of_servers.items():
            of_servers[at] = log_mean(self._wealth[harm][at])
            self._of_groups[harm][group] = log_mean(of_servers[members])
        harms = [log_combined(self._of_groups[harm]) for harm in HARMS]
        self.log_e_value = float(log_mean(np.array(harms)))
        if self.breach is None and self.log_e_value >= threshold(self.alpha):
            self.breach = self._worst()

    def e_value(self) -> float:
        """Evidence that an arm harms some server beyond a limit: 1 is none, 1 / α is a breach."""
        return math.exp(min(self.log_e_value, 700.0))

    def _worst(self) -> Breach:
        harm = max(HARMS, key=lambda harm: float(self._of_servers[harm].max()))
        name = list(self._at)[int(self._of_servers[harm].argmax())]
        return Breach(harm, name, self.e_value())
