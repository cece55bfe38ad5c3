"""The analysis of a trial from outside: a driver's transactions between stamps of the server.

A run lasts from one stamp of the server's clock to the next and holds n transactions and what one
stamp takes; a third stamp follows at once. The time from the second to the third is taken off, so
that an instrument may cost a stamp something else than a transaction.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.estimate.arrays import Floats
from pgtare.estimate.inference import NAN
from pgtare.estimate.trial import quantiles
from pgtare.estimate.trial.analysis_request import Question
from pgtare.estimate.trial.answer import WITHHOLD, Answer, Basis, Reason, ReasonKind
from pgtare.estimate.trial.comparison import Comparisons
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.effects import Effects, Strata, effects_of
from pgtare.estimate.trial.results import (
    ArmEstimate,
    Baseline,
    Effect,
    Live,
    LiveArm,
    Switching,
    TrialEstimate,
)
from pgtare.estimate.trial.strata import LaterRuns, Units
from pgtare.estimate.trial.threshold import alike, weighted_threshold

#: Which loop a run is of: in a burst the session never waits for its client; in the other, it waits
#: before each transaction, as an application's sessions do.
BURST, PACED = 0, 1

#: One run as the driver writes it; times by the server's clock.
RUN = np.dtype(
    [
        ("start_us", "<i8"),  # first stamp, since the trial began
        ("run_us", "<i4"),  # from there to the second: the transactions, and one stamp
        ("stamp_us", "<i4"),  # from the second stamp to the third
        ("block", "<u4"),  # running number of the block in the trial
        ("position", "u1"),  # of the run within the block
        ("arm", "u1"),  # index of the arm
        ("transactions", "u1"),  # of the run, those left out at its beginning not counted
        ("loop", "u1"),  # BURST or PACED
        ("epoch", "<u2"),  # how often the driver's sessions had been made anew; block of windows
    ]
)

#: c is the 99th percentile of runs: of eight transactions, one is slow more often than of one.
QUANTILE = 0.99
#: Of windows it is a higher one: a watcher that acts every 15 s makes few transactions slow.
WINDOW_QUANTILE = 0.999
#: A run is disturbed if it takes longer than the median by this, or by half of it.
DISTURBED_US = 100.0
_DISTURBED_SHARE = 0.5
_LATEST_US = np.iinfo(np.int64).max
#: With a larger share of disturbed runs effects read high; from the second on nothing is called
#: equivalent.
DISTURBED_SOME, DISTURBED_MANY = 12.0, 20.0


def empty() -> npt.NDArray[Any]:
    """A table of runs with no rows."""
    return np.empty(0, dtype=RUN)


def disturbed_pct(rows: npt.NDArray[Any], design: Design) -> float:
    """Share of the bursts' runs of base and control that something held up; NaN without any.

    Of servers, each may be held up by something else: that of the one with the largest share.
    """
    bursts = rows[rows["loop"] == BURST]
    servers = range(2, len(design.arms)) if design.grouping == "sessions" else ()
    sides = [bursts[np.isin(bursts["arm"], design.reference)]]
    sides += [bursts[bursts["arm"] == arm] for arm in servers]
    return max((_held_up_pct(side) for side in sides if len(side)), default=NAN)


def _held_up_pct(rows: npt.NDArray[Any]) -> float:
    """Share of the runs that took much longer than usual. rows: one at least."""
    per_transaction = rows["run_us"] / (1 + rows["transactions"])
    usual = np.median(per_transaction) * (1 + rows["transactions"])
    limit = usual + np.maximum(DISTURBED_US, _DISTURBED_SHARE * usual)
    return 100 * float(np.mean(rows["run_us"] > limit))


def analyse_bursts(rows: npt.NDArray[Any], asked: Question) -> TrialEstimate:
    """Effects, tests and verdicts of a trial from outside; see `analyse`.

    rows: of dtype RUN. The answers are those of the bursts. What the same instruments cost sessions
    that wait stands beside them, and nothing is called equivalent that is not so in both.
    """
    bursts = _Loop(rows, asked, BURST, Basis.BURSTS)
    paced = _Loop(rows, asked, PACED, Basis.PACED)
    found, beside = bursts.result(), paced.result()
    disturbed = disturbed_pct(rows, asked.design)

    def answered(arm: ArmEstimate, paced: Answer | None) -> ArmEstimate:
        if arm.answer is None:
            return arm
        answer = _beside(arm.answer, paced, disturbed)
        if asked.design.grouping == "windows":
            answer = _by_windows(answer, 100 * asked.margin)
        return replace(arm, answer=answer)

    arms = tuple(
        answered(arm, other.answer) for arm, other in zip(found.arms, beside.arms, strict=True)
    )
    return replace(
        found, arms=arms, disturbed_pct=disturbed, waiting_us=beside.baseline.body_mean_us
    )


def live_bursts(rows: npt.NDArray[Any], design: Design, *, limits: bool) -> Live:
    """Each arm's body so far, that of the bursts with the other loop's beside it; see `live`."""
    asked = Question(design, peeked=True)
    found, beside = (_Loop(rows, asked, loop, Basis.BURSTS) for loop in (BURST, PACED))
    waits = beside.live(limits=limits)
    if beside.units.n_clusters < design.least_blocks:
        # so few decide nothing in the result, and are not to end the trial either
        waits = [replace(arm, least_pct=-math.inf, half_width_pct=NAN) for arm in waits]
    return Live(
        blocks=found.units.n_clusters,
        arms=tuple(
            replace(mine, waiting=waiting)
            for mine, waiting in zip(found.live(limits=limits), waits, strict=True)
        ),
    )


class _Loop:
    """The estimators of one loop, and what its arms share."""

    def __init__(self, rows: npt.NDArray[Any], asked: Question, loop: int, basis: Basis) -> None:
        self.asked, self.design, self.basis = asked, asked.design, basis
        self.rows = rows[(rows["loop"] == loop) & (rows["arm"] < len(asked.design.arms))]
        self.units = _units(self.rows, _clusters(self.rows, self.design))
        # each server has its clock
        servers = self.design.grouping == "sessions"
        timed = np.isin(rows["arm"], self.design.reference) if servers else slice(None)
        self.seconds = _seconds(rows[timed])
        reference = self.design.reference
        base = self._pair(0)
        self.base_c, self.base_us, _ = effects_of(base, reference, [], peeked=asked.peeked)
        self.of = {arm: self._effects(arm) for arm in range(1, len(self.design.arms))}

    @cached_property
    def compared(self) -> Comparisons:
        return Comparisons(self.asked, {arm: self.of[arm].compared() for arm in self.of})

    @cached_property
    def quantiles(self) -> list[quantiles.Quantiles]:
        return [quantiles.of_arm(self.units, arm) for arm in range(len(self.design.arms))]

    def _effects(self, arm: int) -> Effects:
        reference = self.design.reference
        both = self._pair(arm)
        _, _, found = effects_of(both, reference, [arm], peeked=self.asked.peeked)
        return replace(found[arm], base_us=self.base_us, tuned_at=self.design.tuned_at)

    def _pair(self, arm: int) -> Strata:
        """The runs of the base, its control and an arm, with those of slow stamps cut.

        A stamp that was held up makes its run look too short. So a run is taken for no shorter than
        the lowest percentile of an equal mixture of both sides, as it is cut at c of the same
        mixture.
        """
        reference = self.design.reference
        quantile = WINDOW_QUANTILE if self.design.grouping == "windows" else QUANTILE
        some = self.units.where(
            np.asarray(np.isin(self.units.arm, [*reference, arm]), dtype=np.bool_)
        )
        base, other = (alike(-some.service_us[np.isin(some.arm, k)]) for k in (reference, [arm]))
        least = -weighted_threshold(base, other, quantile)
        cut = replace(some, service_us=np.fmax(some.service_us, least))
        return Strata(LaterRuns(cut), quantile=quantile)

    def live(self, *, limits: bool) -> list[LiveArm]:
        names = {arm: self.design.arms[arm].name for arm in self.of}
        return [self.of[arm].live(name, len(self.of), limits=limits) for arm, name in names.items()]

    def result(self) -> TrialEstimate:
        return self.compared.estimated(
            Baseline(self.base_us, self.base_c, None),
            self._arm,
            switching=Switching(NAN, NAN),
            blocks=self.units.n_clusters,
            sessions=1 if len(self.rows) else 0,
        )

    def _arm(self, index: int) -> ArmEstimate:
        arm, units = self.design.arms[index], self.units
        at = self.quantiles[index].value
        described = ArmEstimate(
            name=arm.name,
            role=arm.role,
            n=int(self.rows["transactions"][self.rows["arm"] == index].sum()),
            excluded=0,
            mean_us=units.mean(units.service_us, index).value,
            p50_us=float(at[0]),
            p99_us=float(at[1]),
        )
        if index == 0:
            return described
        effects, found = self.of[index], self.compared.arms[index]
        p50, p99 = quantiles.differences(
            self.quantiles[index], self.quantiles[0], effects.reference
        )
        return self.compared.judged(
            index,
            described,
            effects.c,
            Effect(found.total_us, found.excess_us, p50, p99, cpu_us=None),
            blocks=effects.strata.clusters(index),
            seconds=self.seconds,
            basis=self.basis,
        )


def transaction_us(rows: npt.NDArray[Any]) -> Floats:
    """What a transaction of each run took, (N,), the stamp taken off. rows: of dtype RUN."""
    n = np.maximum(rows["transactions"], 1).astype(np.float64)
    each: Floats = (rows["run_us"].astype(np.float64) - rows["stamp_us"]) / n
    return each


def _clusters(rows: npt.NDArray[Any], design: Design) -> npt.NDArray[Any]:
    """What counts as one, (N,), by the design's grouping.

    Two sessions may differ for as long as they last, by where their memory lies, and windows by
    what else the server did. Two servers drift: so sessions are batched by when they began, by the
    first server's clock. What is left at the end is a batch if it is half of one.
    """
    if design.grouping != "sessions" or not len(rows):
        return np.asarray(rows["block" if design.grouping == "block" else "epoch"])
    epochs, session = np.unique(rows["epoch"], return_inverse=True)
    known = np.isin(rows["arm"], design.reference)
    began_us = np.full(len(epochs), _LATEST_US)
    np.minimum.at(began_us, session[known], rows["start_us"][known])
    began_us[began_us == _LATEST_US] = 0  # with what came before
    began_us = np.maximum.accumulate(began_us)  # whatever was done to the clock
    last_us = max(int(rows["start_us"][known].max(initial=0)), int(began_us[-1]))
    batch_us = max(1e6 * design.batch_s, 1.0)
    batches = max(round((last_us - int(began_us[0])) / batch_us), 1)
    number = np.minimum((began_us - began_us[0]) // batch_us, batches - 1)
    return np.asarray(number.astype(np.int64)[session])


def _units(rows: npt.NDArray[Any], clusters: npt.NDArray[Any]) -> Units:
    """Runs as units: the time of a transaction, the stamp taken off. clusters: (N,) of each."""
    cluster = np.unique(clusters, return_inverse=True)[1].astype(np.int64)
    return Units(
        service_us=transaction_us(rows),
        cpu_us=np.full(len(rows), np.nan),
        arm=rows["arm"].astype(np.int64),
        cluster=cluster,
        open=np.zeros(len(rows), dtype=np.bool_),
        n_clusters=int(cluster.max(initial=-1)) + 1,
    )


def _seconds(rows: npt.NDArray[Any]) -> float:
    if not len(rows):
        return 0.0
    ends = rows["start_us"] + rows["run_us"] + rows["stamp_us"]
    return float(ends.max() - rows["start_us"].min()) / 1e6


def _beside(answer: Answer, waiting: Answer | None, disturbed: float) -> Answer:
    """The answer of the bursts with that of the other loop beside it, if that stands."""
    if waiting is not None and waiting.because(
        ReasonKind.CONTROL_OFF, ReasonKind.CONTROL_UNKNOWN, ReasonKind.NOT_ESTIMATED
    ):
        waiting = None
    if waiting is not None:
        stands = waiting.because(*WITHHOLD, ReasonKind.FEW_BLOCKS) is None
        answer = replace(
            answer,
            waiting_us=waiting.us,
            waiting_pct=waiting.pct,
            waiting_stands=stands,
            most_pct=max(answer.most_pct, waiting.most_pct) if stands else math.inf,
        )
    if answer.verdict != "equivalent":
        return answer
    if not disturbed <= DISTURBED_MANY:
        reason = Reason(ReasonKind.DISTURBED, pct=disturbed)
        return replace(answer, verdict="inconclusive", reasons=(reason,))
    if waiting is None or waiting.verdict != "equivalent":
        needed = waiting.needed_s if waiting is not None else None
        reason = Reason(ReasonKind.WAITING_OPEN)
        return replace(answer, verdict="inconclusive", reasons=(reason,), needed_s=needed)
    return answer


def _by_windows(answer: Answer, margin_pct: float) -> Answer:
    """The answer where the usual cost is that something is held up now and then.

    Bursts are a small part of the time and may not have met it: without the other loop there is no
    bound, nor from too few windows.
    """
    if answer.waiting_pct is None or answer.because(ReasonKind.FEW_BLOCKS):
        answer = replace(answer, most_pct=math.inf)
    if answer.verdict == "equivalent" and not answer.most_pct <= margin_pct:
        reason = Reason(ReasonKind.TAIL_OPEN)
        return replace(answer, verdict="inconclusive", reasons=(reason,))
    return answer
