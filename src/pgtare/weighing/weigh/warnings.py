"""What a reader of a weighing must know besides its figures, in sentences."""

from __future__ import annotations

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
) -> list[str]:
    """What went wrong, or was left out, while the trial was recorded."""
    found = []
    if recording.trouble:
        found.append(
            f"The trial ended early: {recording.trouble}. No verdict is drawn from what was "
            "measured before."
        )
    found += _data_warnings(recording.observations)
    if recording.status:
        found += _status_warnings(plan, recording.status)
    if outside and plan.population.participation == 1.0:
        found.append(
            f"{numbers.counted(outside, 'session')} of the population did not take part (idle "
            "since the trial began, or connected before the module was there)."
        )
    if steal_pct is not None and steal_pct > _STEAL_PCT:
        found.append(
            f"Other guests took {steal_pct:.1f} % of the processor time of the machine on which "
            "pgtare ran; if the server is there, intervals allow for it, but are wider."
        )
    return found


def _status_warnings(plan: WeighPlan, status: Status) -> list[str]:
    found = []
    if status.lost:
        total = status.lost + status.observations
        found.append(
            f"{status.lost} of {total} observations were lost because they were read too slowly."
        )
    if status.sessions_no_ring:
        sessions = numbers.counted(status.sessions_no_ring, "session")
        found.append(f"{sessions} found no memory for observations and stayed outside.")
    if status.sessions_lacking_settings:
        found.append(
            f"{numbers.counted(status.sessions_lacking_settings, 'session')} without a setting of "
            "the trial (a library is not loaded there) stayed outside."
        )
    if status.negative_clock:
        times = numbers.counted(status.negative_clock, "time")
        found.append(f"The clock stepped back {times}; look at pgtare clock.")
    for arm in status.failed_arms:
        found.append(f"Arm {plan.design.arms[arm].name}: a session refused its settings.")
    return found


def _data_warnings(data: Observations) -> list[str]:
    if not len(data):
        return []
    flags = data["flags"]
    said = {
        UnitFlag.APP_CHANGED: "were left out, as the application changed "
        "one of the settings during them (SET, SET LOCAL, set_config, or a function's SET clause)",
        UnitFlag.NO_ARRIVAL: "began in the buffer (pipelined), so that their arrival is not exact",
        UnitFlag.COPY: "held a COPY; waiting for the client's data is not counted",
        UnitFlag.ABORTED: "ended in an error",
    }
    found = []
    for flag, text in said.items():
        share = float(np.mean((flags & flag) != 0))
        if share > _WORTH_SAYING:
            found.append(f"{100 * share:.1f} % of the transactions {text}.")
    return found


def of_estimate(estimate: TrialEstimate) -> list[str]:
    """What the figures themselves show that a reader must know."""
    return [
        *_coverage_warnings(estimate),
        *_settling_warnings(estimate),
        *_slice_warnings(estimate),
        *_mix_warnings(estimate),
        *_cluster_warnings(estimate),
    ]


def _settling_warnings(estimate: TrialEstimate) -> list[str]:
    """For arms whose cost has not settled by the end of a run."""
    return [
        f"{arm.name}: what it costs still changes within a run of transactions, so its figure is "
        "not yet that of an instrument that stays on; slices (--unit slice) show that."
        for arm in estimate.arms
        if arm.answer is not None and arm.role != "control"
        if arm.answer.verdict != "not_verified" and arm.answer.because(*_CHANGES)
    ]


def _coverage_warnings(estimate: TrialEstimate) -> list[str]:
    """Whose answer it is, if many transactions are in sessions too short for it."""
    if estimate.covered >= COVERS_ALL:
        return []
    if not estimate.shortest:
        return ["No session ran a whole block of runs: nothing can be said of later transactions."]
    return [
        f"{100 * (1 - estimate.covered):.0f} % of the transactions are in sessions that had no "
        f"whole block of runs: the answer is of sessions with {estimate.shortest:,} transactions "
        "or more. Fewer instruments or more time let shorter ones in."
    ]


def _slice_warnings(estimate: TrialEstimate) -> list[str]:
    share = estimate.straddled_pct
    if share is None or share <= _STRADDLED_PCT:
        return []
    return [
        f"{share:.0f} % of the transactions of an arm outlasted their slice, and weigh on the next "
        "one: lengthen the slices (--slice-ms)."
    ]


def _mix_warnings(estimate: TrialEstimate) -> list[str]:
    found = estimate.contention
    if found is None or not found.total_less_own_us.hi < 0:
        return []
    return [
        f"The total of {found.name} is below its own effect: what it slows is slow already, so its "
        "slices hold fewer of the slow transactions. The total is of transactions as they come; "
        "the effect on the transaction itself is that at the base's mix."
    ]


def _cluster_warnings(estimate: TrialEstimate) -> list[str]:
    few = [
        arm
        for arm in estimate.arms
        if arm.effective_clusters is not None and 0 < arm.effective_clusters < FEW
    ]
    if not few or estimate.blocks < FEW:
        return []
    return [
        f"{arm.name}: its estimate rests on {arm.effective_clusters:.1f} effective clusters of "
        f"{estimate.blocks} blocks: a few sessions or moments have nearly all of the variance. The "
        "interval allows for that."
        for arm in few
    ]
