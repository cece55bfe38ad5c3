"""Raw observations of trials by runs with a known truth, made without any of the estimators.

A session is an array of the service times (n,) in microseconds that its transactions would have
under the base. `simulate` deals the arms as the server would, and applies effects to them. Of the
assignment it takes the word of tests/assignment.py, of the layout of an observation that of
observations.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import signal

from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.estimate.trial.observations import (
    NO_BLOCK,
    NO_SLICE,
    OBSERVATION,
    Observations,
    UnitFlag,
)
from tests.assignment import NOBODY, first_arm, permuted_block, run_length

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Rng = np.random.Generator
#: Service times (n,) under the base, and what each would be with an arm on that is warm.
Settled = Callable[[Floats], Floats]

#: Between an answer and the session's next request, in microseconds.
GAP_US = 20.0


def design_of(
    instruments: int, seed: int, *, control: bool = False, block: Sequence[int] | None = None
) -> Design:
    """A base, a control if wanted, and instruments i1, i2, …, in the blocks of a weighing."""
    arms = [Arm("base", "base")] + [Arm("control", "control")] * control
    arms += [Arm(f"i{k}", "instrument") for k in range(1, instruments + 1)]
    return Design(tuple(arms), tuple(block or block_layout(len(arms))), seed)


@dataclass(frozen=True)
class Effect:
    """What an arm does.

    settled: once it is warm. cold_us: added to its first transactions after it was switched on.
    after_us: added to the first transactions after it was switched off.
    """

    settled: Settled = lambda x: x
    cold_us: Sequence[float] = ()
    after_us: Sequence[float] = ()


@dataclass(frozen=True)
class Session:
    """One session.

    base_us: (n,) service times under the base. new: it begins during the trial, at begins_us; the
    others are there before. life_us: when it is cut off, be it within a transaction, which is then
    reported as open.
    """

    base_us: Floats
    new: bool = False
    begins_us: float = 0.0
    life_us: float = np.inf
    stratum: int = 0


class Place(NamedTuple):
    """Where each transaction (n,) of a session is."""

    arm: Ints
    block: Ints
    run: Ints
    position: Ints
    first: Bools  # in the first run of a new session


@dataclass(frozen=True)
class Simulated:
    """Observations, and for each of them (N,) both potential service times, in their order.

    base_us: under the base. on_us: with the judged arm on since the session began, or for long in a
    session that is older than the trial. whole: in a session that had at least one whole block.
    """

    observations: Observations
    base_us: Floats
    on_us: Floats
    whole: Bools

    def truth(self, c: float = np.inf, *, first: bool = True) -> float:
        """Mean of what the judged arm adds below c to the transactions that the answer is of.

        Those of first runs, if they are used, and of later runs of sessions with a whole block.
        """
        return float(self._added(c)[self._of(first=first)].mean())

    def truth_of_all(self, c: float = np.inf) -> float:
        """The same of all transactions."""
        return float(self._added(c).mean())

    def base_body(self, c: float, *, first: bool = True) -> float:
        """Mean below c of these transactions under the base."""
        return float(np.minimum(self.base_us, c)[self._of(first=first)].mean())

    def _added(self, c: float) -> Floats:
        return np.asarray(np.minimum(self.on_us, c) - np.minimum(self.base_us, c))

    def _of(self, *, first: bool) -> Bools:
        in_first = self.observations["flags"] & UnitFlag.FIRST_RUN != 0
        return np.asarray(self.whole & ~in_first | (in_first & first))


def simulate(
    sessions: Sequence[Session],
    design: Design,
    effects: Mapping[int, Effect] | None = None,
    *,
    judged: int = 1,
) -> Simulated:
    """A trial. effects: of arms by their number; the others do nothing. judged: of the truth."""
    effects = effects or {}
    order = sorted(
        (i for i, session in enumerate(sessions) if session.new),
        key=lambda i: sessions[i].begins_us,
    )
    number = {i: n for n, i in enumerate(order)}
    parts, base, on_us = [], [], []
    for i, session in enumerate(sessions):
        # once: whether a transaction stalls may be drawn in it
        warm = {arm: effect.settled(session.base_us) for arm, effect in effects.items()}
        place = _placed(design, i, len(session.base_us), number.get(i))
        parts.append(_played(session, i, place, effects, warm))
        base.append(session.base_us[: len(parts[-1])])
        on_us.append(_always(session, effects.get(judged), warm.get(judged))[: len(parts[-1])])
    whole = [np.full(len(part), _has_whole(part, design)) for part in parts]
    return Simulated(
        np.concatenate(parts),
        np.concatenate(base),
        np.concatenate(on_us),
        np.concatenate(whole),
    )


def _placed(design: Design, backend: int, units: int, new: int | None) -> Place:
    """As the server deals: new sessions have a first run of their own before the blocks."""
    arms, blocks, runs, lengths = [], [], [], []
    left = units
    if new is not None:
        arms, blocks, runs = [first_arm(design, new)], [NO_BLOCK], [0]
        lengths = [run_length(design, backend, NOBODY)]
        left -= lengths[0]
    for block in itertools.count():
        if left <= 0:
            break
        length = run_length(design, backend, block)
        for run, arm in enumerate(permuted_block(design, backend, block)):
            arms.append(arm)
            blocks.append(block)
            runs.append(run)
            lengths.append(length)
            left -= length
    starts = np.cumsum([0, *lengths[:-1]])
    of = np.repeat(np.arange(len(arms)), lengths)[:units]
    return Place(
        arm=np.array(arms, dtype=np.int64)[of],
        block=np.array(blocks, dtype=np.int64)[of],
        run=np.array(runs, dtype=np.int64)[of],
        position=np.arange(units) - starts[of],
        first=np.asarray((of == 0) & (new is not None)),
    )


def _played(
    session: Session,
    backend: int,
    place: Place,
    effects: Mapping[int, Effect],
    warm: Mapping[int, Floats],
) -> Observations:
    """What the server reports of a session."""
    x = session.base_us.copy()
    for arm, settled in warm.items():
        mine = place.arm == arm
        x[mine] = settled[mine]
    if any(effect.cold_us or effect.after_us for effect in effects.values()):
        since, before = _since_change(place.arm), _arm_before(place.arm)
    for arm, effect in effects.items():
        for k, us in enumerate(effect.cold_us):
            x[(place.arm == arm) & (since == k)] += us
        for k, us in enumerate(effect.after_us):
            x[(before == arm) & (since == k)] += us
    rows = np.zeros(len(x), OBSERVATION)
    service_ns = np.rint(1_000 * x).astype(np.int64)
    rows["service_ns"] = service_ns
    rows["start_ns"] = np.cumsum(service_ns + round(1_000 * GAP_US)) - service_ns
    rows["start_ns"] += round(1_000 * session.begins_us)
    rows["cpu_ns"], rows["switch_ns"], rows["slice"] = service_ns * 9 // 10, 500, NO_SLICE
    rows["backend"], rows["pid"] = backend, 1_000 + backend
    rows["unit"], rows["requests"], rows["stratum"] = np.arange(len(x)), 1, session.stratum
    rows["arm"], rows["block"], rows["run"] = place.arm, place.block, place.run
    rows["position"] = place.position
    rows["flags"] = np.where(place.first, int(UnitFlag.FIRST_RUN), 0)
    return _until(rows, session)


def _until(rows: Observations, session: Session) -> Observations:
    if not np.isfinite(session.life_us):
        return rows
    end = round(1_000 * (session.begins_us + session.life_us))
    kept = rows[rows["start_ns"] < end]
    cut = kept["start_ns"] + kept["service_ns"] > end
    kept["service_ns"][cut] = end - kept["start_ns"][cut]
    kept["flags"][cut] |= int(UnitFlag.OPEN)
    return kept


def _always(session: Session, effect: Effect | None, warm: Floats | None) -> Floats:
    """Service times with the arm on all the time; cold at the beginning of a new session."""
    if effect is None or warm is None:
        return session.base_us
    found = np.array(warm, dtype=np.float64)
    if session.new:
        cold = np.array(effect.cold_us)[: len(found)]
        found[: len(cold)] += cold
    return found


def _since_change(arm: Ints) -> Ints:
    """Transactions since the arm was switched on (n,)."""
    at = np.arange(len(arm))
    changed = np.concatenate(([True], arm[1:] != arm[:-1]))
    return at - np.maximum.accumulate(np.where(changed, at, 0))


def _arm_before(arm: Ints) -> Ints:
    """The arm before the one that is on (n,), -1 at first."""
    starts = np.flatnonzero(np.concatenate(([True], arm[1:] != arm[:-1])))
    before = np.concatenate(([-1], arm[starts[1:] - 1])) if len(starts) else starts
    return np.repeat(before, np.diff(np.append(starts, len(arm))))


def _has_whole(rows: Observations, design: Design) -> bool:
    """Whether the session's first block came to its end."""
    mine = rows[(rows["block"] == 0) & (rows["flags"] & UnitFlag.OPEN == 0)]
    return len(mine) > 0 and len(mine) == len(design.block) * (int(mine["position"].max()) + 1)


def old(arrays: Iterable[Floats]) -> list[Session]:
    """Sessions that are there when the trial begins."""
    return [Session(x) for x in arrays]


def new(
    arrays: Sequence[Floats], rng: Rng, over_us: float = 1e6, stratum: int = 0
) -> list[Session]:
    """Sessions that begin at random moments of the trial."""
    return [Session(x, True, float(rng.uniform(0, over_us)), stratum=stratum) for x in arrays]


# Failures


def fail(made: Simulated, failed: Bools, times: float = 1.0) -> Observations:
    """The observations, some of which failed, and took so many times as long."""
    rows = made.observations.copy()
    rows["service_ns"][failed] = np.rint(times * rows["service_ns"][failed])
    rows["flags"][failed] |= int(UnitFlag.ABORTED)
    return rows


def in_spells(n: int, rng: Rng, rate: float, length: int = 50) -> Bools:
    """Which of n transactions fail: every second one in spells."""
    spell = np.zeros(n, dtype=np.bool_)
    for at in np.flatnonzero(rng.random(n) < 2 * rate / length):
        spell[at : at + length] = True
    return spell & (rng.random(n) < 0.5)


# Service times of n transactions of a session, in microseconds


def lognormal(n: int, rng: Rng, sigma: float = 0.5) -> Floats:
    return np.asarray(100 * np.exp(rng.normal(0, sigma, n)))


def pareto(n: int, rng: Rng, index: float = 1.5) -> Floats:
    """Without a variance."""
    return np.asarray(50 * (1 + rng.pareto(index, n)))


def bimodal_with_drift(n: int, rng: Rng) -> Floats:
    """Two kinds of transactions, the share of which drifts, and a level that wanders."""
    share = 0.1 + 0.5 * np.abs(np.sin(np.linspace(0, 3, n) + rng.uniform(0, 6)))
    level = np.exp(np.cumsum(rng.normal(0, 0.005, n)))
    slow = rng.random(n) < share
    return np.asarray(level * np.where(slow, 1_000, 100) * np.exp(rng.normal(0, 0.1, n)))


def autoregressive(n: int, rng: Rng, rho: float = 0.999, sd: float = 0.5) -> Floats:
    """A level that wanders for thousands of transactions, in its steady state."""
    steps = rng.normal(0, sd * np.sqrt(1 - rho**2), n)
    steps[0] = rng.normal(0, sd)
    level = signal.lfilter([1.0], [1.0, -rho], steps)
    return np.asarray(100 * np.exp(level + rng.normal(0, 0.1, n)))


def cycle(n: int, rng: Rng, period: int) -> Floats:
    """The same few transactions again and again, of very different lengths."""
    lengths = 100 * np.exp(rng.normal(0, 1, period))
    return np.asarray(np.resize(lengths, n) * np.exp(rng.normal(0, 0.05, n)))


def bursts(n: int, rng: Rng, length: int = 100, times: float = 20.0) -> Floats:
    """One stretch of slow transactions."""
    x = lognormal(n, rng, 0.2)
    start = int(rng.integers(0, n - length))
    x[start : start + length] *= times
    return x


def doubling(n: int, rng: Rng) -> Floats:
    x = lognormal(n, rng)
    x[n // 2 :] *= 2
    return x
