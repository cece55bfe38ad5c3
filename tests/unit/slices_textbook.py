"""Estimators of trials in slices written plainly, and simulated trials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pgtare.estimate.trial.design import MIXED, Arm, Design, Slices, slice_ends, slice_order
from pgtare.estimate.trial.observations import OBSERVATION, Observations, UnitFlag
from tests.assignment import permuted_block
from tests.unit.estimate_textbook import BAD

NO_BLOCK = 0xFFFFFFFF


def sliced(n_arms: int, seed: int = 1) -> Design:
    """A trial in slices: a base, a control and instruments i2, i3, ..."""
    arms = [Arm("base", "base"), Arm("control", "control")]
    arms += [Arm(f"i{k}", "instrument") for k in range(2, n_arms)]
    return Design(tuple(arms), tuple(range(n_arms)), seed, Slices(tuple(range(n_arms))))


def saturation(seed: int = 1) -> Design:
    """A saturation design: one instrument against the base."""
    arms = (Arm("base", "base"), Arm("x", "instrument"))
    return Design(arms, (0, 1) * 3, seed, Slices((0, 1, MIXED)))


def simulate(
    design: Design,
    blocks: int,
    *,
    levels_us: Sequence[float] = (1000.0, 1000.0),
    own: Sequence[float] = (),
    carry: Sequence[float] = (),
    second: Sequence[float] = (),
    spillover: Sequence[float] = (),
    seed: int = 1,
) -> Observations:
    """Sessions in closed loops, one for each level, as the server records them.

    own, carry, second: effect of each arm on its unit, the session's next, and the one after;
    spillover: on all units, times the share of the others that have the arm. In microseconds.
    """
    assert design.slices is not None
    rng = np.random.default_rng(seed)
    kinds = [kind for b in range(blocks) for kind in slice_order(design, b)]
    ends = list(itertools.islice(slice_ends(design), len(kinds)))
    drift = rng.normal(0, 0.03, len(kinds))
    tau, one, two, spill = (
        [*effects, *[0.0] * (len(design.arms) - len(effects))]
        for effects in (own, carry, second, spillover)
    )
    rows = []
    for backend, level in enumerate(levels_us):
        noise = rng.lognormal(0, 0.1, int(2 * ends[-1] / 1000 / level) + 100)
        queue: list[tuple[int, int, int]] = []
        at, unit, block, last, number, drawn_in = 2_000, 0, 0, (0, 0), 0, -1
        while at < ends[-1]:
            while at >= ends[number]:
                number += 1
            kind = kinds[number]
            where = (NO_BLOCK, 0)
            arm = kind
            if kind == MIXED:
                if drawn_in != number:
                    queue, drawn_in, block = [], number, block + 1
                if not queue:
                    order = permuted_block(design, backend, block)
                    queue = [(arm, block, position) for position, arm in enumerate(order)]
                    block += 1
                arm, *place = queue.pop(0)
                where = (place[0], place[1])
            others = sum(spill) / len(design.arms) if kind == MIXED else spill[kind]
            x = level * (noise[unit] + drift[number]) + tau[arm] + one[last[0]] + two[last[1]]
            x += others
            service_ns = round(1000 * x)
            flags = int(UnitFlag.EXECUTED) | (int(UnitFlag.MIXED) if kind == MIXED else 0)
            flags |= int(UnitFlag.STRADDLED) if at + service_ns >= ends[number] else 0
            flags |= int(UnitFlag.UNBLOCKED) if unit == 0 else 0
            rows.append(
                (
                    at,
                    service_ns,
                    0,
                    service_ns,
                    backend,
                    unit,
                    *where,
                    arm,
                    1,
                    flags,
                    500,
                    100 + backend,
                    number,
                )
            )
            at, unit, last = at + service_ns + 2_000, unit + 1, (arm, last[0])
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
    before: tuple[int, int]


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
    found = []
    for (backend, unit), o in sorted(by_unit.items()):
        number = int(o["slice"])
        begin = ends[number - 1] if number else 0
        before = [by_unit.get((backend, unit - lag)) for lag in (1, 2)]
        arms = [-1 if b is None or b["flags"] & BAD else int(b["arm"]) for b in before]
        kind = slice_order(design, number // n)[number % n]
        wanted = arms[:1] if MIXED not in design.slices.kinds else arms
        if o["flags"] & BAD or (-1 in arms if kind == MIXED else set(wanted) != {kind}):
            continue
        if not begin + 1000 * design.slices.guard_us <= o["start_ns"] <= ends[number] - late:
            continue
        if ends[(number // n + 1) * n - 1] > obs["start_ns"].max():
            continue
        found.append(
            Unit(
                backend,
                number,
                number // n,
                kind,
                int(o["arm"]),
                o["service_ns"] / 1000,
                (arms[0], arms[1]),
            )
        )
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
            (v, w[u.block]) for u, v in zip(members, values, strict=True) if u.session == session
        ]
        share = sum(w[u.block] for u in base if u.session == session) / sum(
            w[u.block] for u in base
        )
        total += share * sum(v * weight for v, weight in own) / sum(weight for _, weight in own)
    return total


def cost(units: list[Unit], arm: int, w: dict[int, float]) -> float:
    """Mean of the arm's slices less that of the base's."""
    means = []
    for kind in (arm, 0):
        members = [u for u in units if u.kind == kind]
        means.append(mean(units, members, [u.body_us for u in members], w))
    return means[0] - means[1]


def lags(units: list[Unit], w: dict[int, float]) -> list[float]:
    """Effects at lags 0, 1 and 2 in mixed slices: least squares with every dummy written out."""
    mixed = [u for u in units if u.kind == MIXED]
    cells = sorted({(u.session, u.slice) for u in mixed})
    x = np.zeros((len(mixed), 3 + len(cells)))
    for i, u in enumerate(mixed):
        x[i, :3] = [arm == 1 for arm in (u.arm, *u.before)]
        x[i, 3 + cells.index((u.session, u.slice))] = 1
    root = np.sqrt([w[u.block] for u in mixed])
    y = np.array([u.body_us for u in mixed])
    found = np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0]
    return [float(b) for b in found[:3]]


def spillover(units: list[Unit], w: dict[int, float]) -> float:
    """Base units in mixed slices less base units among their like, carry-over taken off."""
    members = [u for u in units if u.kind == MIXED and u.arm == 0]
    base = [u for u in units if u.kind == 0]
    found = mean(units, members, [u.body_us for u in members], w)
    found -= mean(units, base, [u.body_us for u in base], w)
    effects = lags(units, w)
    for lag in (1, 2):
        found -= effects[lag] * mean(units, members, [u.before[lag - 1] == 1 for u in members], w)
    return found


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
