"""What a reader of a weighing must know besides its figures, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pgtare.estimate.effective_clusters import FEW
from pgtare.estimate.trial.answer import COVERS_ALL, ReasonKind
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.estimate.trial.results import TrialEstimate
from pgtare.kit import numbers
from pgtare.weighing.trials import Status
from pgtare.weighing.weigh.plan import WeighPlan
from pgtare.weighing.weigh.recording import TrialRecording

#: Above this share, losses, merged requests and the like are worth a sentence.
_WORTH_SAYING = 0.01
_CHANGES = (ReasonKind.GROWS, ReasonKind.SHRINKS, ReasonKind.UNSETTLED)
_STEAL_PCT = 2.0
#: Transactions that outlast their slice, in percent of their arm's.
_STRADDLED_PCT = 10.0


def of_recording(
    plan: WeighPlan, recording: TrialRecording, outside: int, steal_pct: float | None
) -> Iterator[str]:
    """What went wrong, or was left out, while the trial was recorded."""
    if recording.trouble:
        yield (
            f"The trial ended early: {recording.trouble}. No verdict is drawn from what was "
            "measured before."
        )
    yield from _of_data(recording.observations)
    if recording.status:
        yield from _of_status(plan, recording.status)
    if outside and plan.population.participation == 1.0:
        yield (
            f"{numbers.counted(outside, 'session')} of the population did not take part (idle "
            "since the trial began, or connected before the module was there)."
        )
    if steal_pct is not None and steal_pct > _STEAL_PCT:
        yield (
            f"Other guests took {steal_pct:.1f} % of the processor time of the machine on which "
            "pgtare ran; if the server is there, intervals allow for it, but are wider."
        )


def _of_status(plan: WeighPlan, status: Status) -> Iterator[str]:
    if status.lost:
        total = status.lost + status.observations
        yield f"{status.lost} of {total} observations were lost because they were read too slowly."
    if status.sessions_no_ring:
        sessions = numbers.counted(status.sessions_no_ring, "session")
        yield f"{sessions} found no memory for observations and stayed outside."
    if status.sessions_lacking_settings:
        yield (
            f"{numbers.counted(status.sessions_lacking_settings, 'session')} without a setting of "
            "the trial (a library is not loaded there) stayed outside."
        )
    if status.negative_clock:
        times = numbers.counted(status.negative_clock, "time")
        yield f"The clock stepped back {times}; look at pgtare clock."
    for arm in status.failed_arms:
        yield f"Arm {plan.design.arms[arm].name}: a session refused its settings."


_SAID = {
    UnitFlag.APP_CHANGED: "were left out, as the application changed one of the settings during "
    "them (SET, SET LOCAL, set_config, or a function's SET clause)",
    UnitFlag.NO_ARRIVAL: "began in the buffer (pipelined), so that their arrival is not exact",
    UnitFlag.COPY: "held a COPY; waiting for the client's data is not counted",
    UnitFlag.ABORTED: "ended in an error",
}


def _of_data(data: Observations) -> Iterator[str]:
    if not len(data):
        return
    for flag, text in _SAID.items():
        share = float(np.mean((data["flags"] & flag) != 0))
        if share > _WORTH_SAYING:
            yield f"{100 * share:.1f} % of the transactions {text}."


def of_estimate(estimate: TrialEstimate) -> Iterator[str]:
    """What the figures themselves show that a reader must know."""
    if estimate.covered < COVERS_ALL and estimate.shortest:
        yield (
            f"{100 * (1 - estimate.covered):.0f} % of the transactions are in sessions that had no "
            f"whole block of runs: the answer is of sessions with {estimate.shortest:,} "
            "transactions or more. Fewer instruments or more time let shorter ones in."
        )
    elif estimate.covered < COVERS_ALL:
        yield "No session ran a whole block of runs: nothing can be said of later transactions."
    for arm in estimate.arms:
        answer = None if arm.role == "control" else arm.answer
        if answer and answer.verdict != "not_verified" and answer.because(*_CHANGES):
            yield (
                f"{arm.name}: what it costs still changes within a run of transactions, so its "
                "figure is not yet that of an instrument that stays on; slices (--unit slice) "
                "show that."
            )
    straddled = estimate.straddled_pct
    if straddled is not None and straddled > _STRADDLED_PCT:
        yield (
            f"{straddled:.0f} % of the transactions of an arm outlasted their slice, and weigh on "
            "the next one: lengthen the slices (--slice-ms)."
        )
    mix = estimate.contention
    if mix is not None and mix.total_less_own_us.hi < 0:
        yield (
            f"The total of {mix.name} is below its own effect: what it slows is slow already, so "
            "its slices hold fewer of the slow transactions. The total is of transactions as they "
            "come; the effect on the transaction itself is that at the base's mix."
        )
    for arm in estimate.arms if estimate.blocks >= FEW else ():
        if arm.effective_clusters is not None and 0 < arm.effective_clusters < FEW:
            yield (
                f"{arm.name}: its estimate rests on {arm.effective_clusters:.1f} effective "
                f"clusters of {estimate.blocks} blocks: a few sessions or moments have nearly all "
                "of the variance. The interval allows for that."
            )
