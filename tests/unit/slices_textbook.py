"""Estimators of trials in slices written plainly, and simulated trials."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pgtare.estimate.trial.design import MIXED, Arm, Design, Slices, slice_ends, slice_order
from pgtare.estimate.trial.observations import NO_BLOCK, OBSERVATION, Observations, UnitFlag
from tests.assignment import mixed_arm
from tests.unit.estimate_textbook import BAD, DROPPED


def sliced(n_arms: int, seed: int = 1) -> Design:
    """A trial in slices: a base, a control and instruments i2, i3, ..."""
    arms = [Arm("base", "base"), Arm("control", "control")]
    arms += [Arm(f"i{k}", "instrument") for k in range(2, n_arms)]
    return Design(tuple(arms), tuple(range(n_arms)), seed, Slices(tuple(range(n_arms))))


def saturation(seed: int = 1) -> Design:
    """A saturation design: one instrument against the base."""
    arms = (Arm("base", "base"), Arm("x", "instrument"))
    return Design(arms, (0, 1), seed, Slices((0, 1, MIXED)))


def simulate(
    design: Design,
    blocks: int,
    *,
    levels_us: Sequence[float] = (1000.0, 1000.0),
    own: Sequence[float] = (),
    carry: Sequence[float] = (),
    spillover: Sequence[float] = (),
    seed: int = 1,
) -> Observations:
    """Sessions in closed loops, one for each level, as the server records them.

    own: effect of each arm on its unit; carry: on the session's next one; spillover: on all units,
    times the share of the others that have the arm. In microseconds.
    """
    assert design.slices is not None
    rng = np.random.default_rng(seed)
    kinds = [kind for b in range(blocks) for kind in slice_order(design, b)]
    ends = list(itertools.islice(slice_ends(design), len(kinds)))
    drift = rng.normal(0, 0.03, len(kinds))
    tau, after, spill = (
        [*effects, *[0.0] * (len(design.arms) - len(effects))]
        for effects in (own, carry, spillover)
    )
    rows = []
    for backend, level in enumerate(levels_us):
        noise = rng.lognormal(0, 0.1, int(2 * ends[-1] / 1000 / level) + 100)
        at, unit, last, number, position = 2_000, 0, 0, 0, 0
        while at < ends[-1]:
            while at >= ends[number]:
                number, position = number + 1, 0
            kind = kinds[number]
            arm = mixed_arm(design, backend, number) if kind == MIXED else kind
            others = sum(spill) / len(design.arms) if kind == MIXED else spill[kind]
            x = level * (noise[unit] + drift[number]) + tau[arm] + after[last] + others
            service_ns = round(1000 * x)
            flags = int(UnitFlag.EXECUTED) | (int(UnitFlag.MIXED) if kind == MIXED else 0)
            flags |= int(UnitFlag.STRADDLED) if at + service_ns >= ends[number] else 0
            place = (backend, unit, NO_BLOCK, min(position, 255), arm)
            described = (1, flags, 500, 100 + backend, number, 0, 0)
            rows.append((at, service_ns, 0, service_ns, *place, *described))
            at, last = at + service_ns + 2_000, arm
            unit, position = unit + 1, position + 1
    return np.array(rows, dtype=OBSERVATION)


@dataclass
class Unit:
    """One usable unit."""

    session: int
    slice: int
    block: int
    kind: int
    arm: int
    body_us: float
    stands_for: float = 1.0  # units of its session's part of the slice


def usable(obs: Observations, design: Design, arm: int | None = None) -> list[Unit]:
    """Units within the window of their slice, of sessions that lack no kind.

    Times end at the 99.9th percentile of all, or of an arm's and the base's, either side counted as
    one half.
    """
    assert design.slices is not None
    n = len(design.slices.kinds)
    ends = list(itertools.islice(slice_ends(design), n * (int(obs["slice"].max()) // n + 1)))
    late = np.quantile([o["service_ns"] for o in obs if not o["flags"] & BAD], 0.99)
    late = min(late, 500 * (design.slices.min_us - design.slices.guard_us))
    by_unit = {(int(o["backend"]), int(o["unit"])): o for o in obs}
    found, every = [], []
    for (backend, _), o in sorted(by_unit.items()):
        number = int(o["slice"])
        begin = ends[number - 1] if number else 0
        kind = slice_order(design, number // n)[number % n]
        if o["flags"] & BAD:
            continue
        if not begin + 1000 * design.slices.guard_us <= o["start_ns"] <= ends[number] - late:
            continue
        if ends[(number // n + 1) * n - 1] > obs["start_ns"].max():
            continue
        every.append((backend, number))
        if o["position"] < DROPPED:
            continue
        found.append(
            Unit(
                backend,
                number,
                number // n,
                kind,
                int(o["arm"]),
                o["service_ns"] / 1000,
            )
        )
    there = Counter(every)
    left = Counter((u.session, u.slice) for u in found)
    for u in found:
        u.stands_for = there[u.session, u.slice] / left[u.session, u.slice]
    found = _without_gaps(found, design)
    c = np.quantile([u.body_us for u in found], 0.999)
    if arm is not None:
        c = shared_threshold(
            [u.body_us for u in found if u.kind in (0, 1)],
            [u.body_us for u in found if u.kind == arm],
        )
    for u in found:
        u.body_us = min(u.body_us, float(c))
    return found


def shared_threshold(base: list[float], arm: list[float]) -> float:
    """The smallest value with at most a thousandth of the mean of two distributions above it."""
    for x in sorted([*base, *arm]):
        above = sum(v > x for v in base) / len(base) / 2 + sum(v > x for v in arm) / len(arm) / 2
        if above <= 0.001:
            return x
    raise AssertionError("unreachable")


def _without_gaps(found: list[Unit], design: Design) -> list[Unit]:
    """Without the sessions that lack a kind, or an arm in mixed slices."""
    assert design.slices is not None
    wanted = {
        (kind, arm)
        for kind in design.slices.kinds
        for arm in range(len(design.arms))
        if kind in (arm, MIXED)
    }
    there: dict[int, set[tuple[int, int]]] = {}
    for u in found:
        there.setdefault(u.session, set()).add((u.kind, u.arm))
    return [u for u in found if there[u.session] == wanted]


def mean(units: list[Unit], members: list[Unit], values: list[float], w: dict[int, float]) -> float:
    """Mean of the members' values at the base's mix of sessions; w: weight of each block."""
    base = [u for u in units if u.kind == 0]
    total = 0.0
    for session in {u.session for u in units}:
        own = [
            (v, w[u.block] * u.stands_for)
            for u, v in zip(members, values, strict=True)
            if u.session == session
        ]
        share = sum(w[u.block] * u.stands_for for u in base if u.session == session)
        share /= sum(w[u.block] * u.stands_for for u in base)
        total += share * sum(v * weight for v, weight in own) / sum(weight for _, weight in own)
    return total


def cost(units: list[Unit], arm: int, w: dict[int, float]) -> float:
    """Mean of the arm's slices less that of the base's."""
    means = []
    for kind in (arm, 0):
        members = [u for u in units if u.kind == kind]
        means.append(mean(units, members, [u.body_us for u in members], w))
    return means[0] - means[1]


def own(units: list[Unit], w: dict[int, float]) -> float:
    """In mixed slices, sessions that have the instrument less those that have not."""
    means = []
    for arm in (1, 0):
        members = [u for u in units if u.kind == MIXED and u.arm == arm]
        means.append(mean(units, members, [u.body_us for u in members], w))
    return means[0] - means[1]


def spillover(units: list[Unit], w: dict[int, float]) -> float:
    """Base units in mixed slices less base units among their like."""
    members = [u for u in units if u.kind == MIXED and u.arm == 0]
    base = [u for u in units if u.kind == 0]
    found = mean(units, members, [u.body_us for u in members], w)
    return found - mean(units, base, [u.body_us for u in base], w)


def standard_error(statistic, units: list[Unit]) -> float:  # type: ignore[no-untyped-def]
    """By the infinitesimal jackknife over blocks: how the statistic moves with a block's weight."""
    blocks = sorted({u.block for u in units})
    moves = []
    for block in blocks:
        at = [
            statistic({b: 1 + (sign * 1e-4 if b == block else 0) for b in blocks})
            for sign in (1, -1)
        ]
        moves.append((at[0] - at[1]) / 2e-4)
    n = len(blocks)
    return math.sqrt(n / (n - 1) * sum(m * m for m in moves))
