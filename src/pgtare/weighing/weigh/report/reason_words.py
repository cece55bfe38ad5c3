"""The table that turns the reasons of an answer into words."""

from __future__ import annotations

from collections.abc import Callable

from pgtare.estimate.trial.answer import ReasonKind
from pgtare.kit import numbers
from pgtare.weighing.weigh.schema import ArmResult, Reason

TAIL_OPEN = "too little is known of slow transactions"

_WORDS: dict[ReasonKind, Callable[[Reason], str]] = {
    ReasonKind.ENDED_EARLY: lambda r: f"the trial ended early: {r.text}",
    ReasonKind.NO_PROOF: lambda r: "it was not seen to run",
    ReasonKind.CONTROL_OFF: lambda r: f"the control is off ({_p(r)})",
    ReasonKind.CONTROL_UNKNOWN: lambda r: "the control could not be judged",
    ReasonKind.CONTROL_COULD_EXPLAIN: lambda r: (
        f"the control misses 0 ({_p(r)}), by enough to explain it"
    ),
    ReasonKind.FEW_BLOCKS: lambda r: (
        "too little was measured" + (f": only {numbers.counted(r.n, 'block')}" if r.n else "")
    ),
    ReasonKind.NOT_ESTIMATED: lambda r: "it could not be estimated",
    ReasonKind.FAILURES_DIFFER: lambda r: (
        f"its transactions do not fail as often as the base's ({_rates(r)}, {_p(r)}), so that "
        "their times do not compare"
    ),
    ReasonKind.FAILURES_COULD_EXPLAIN: lambda r: (
        f"failed transactions could explain it ({_rates(r)})"
    ),
    ReasonKind.OPEN_COULD_EXPLAIN: lambda r: "transactions still open at the end could explain it",
    ReasonKind.OPEN_ADD: lambda r: f"{r.n} of its transactions were still open at the end",
    ReasonKind.INSIDE_MARGIN: lambda r: "the whole interval is inside the margin",
    ReasonKind.DIFFERS: lambda r: _p(r),
    ReasonKind.TOTAL_DIFFERS: lambda r: f"because of slow transactions, {_p(r)}",
    ReasonKind.TAIL_OUTWEIGHS: lambda r: "slow transactions outweigh it",
    ReasonKind.TAIL_OPEN: lambda r: TAIL_OPEN,
    ReasonKind.COVERS_ZERO: lambda r: "the interval holds 0, and reaches out of the margin",
    ReasonKind.CORRECTED: lambda r: (
        "not told from 0 after correction for "
        + ("its two tests" if r.n == 1 else f"{r.n} instruments")
    ),
    ReasonKind.GROWS: lambda r: "it still grows within a run",
    ReasonKind.SHRINKS: lambda r: "it still shrinks within a run",
    ReasonKind.UNSETTLED: lambda r: "it still changes within a run",
    ReasonKind.WAITING_OPEN: lambda r: (
        "it is inside the margin for sessions that never wait, but not shown so for those that do"
    ),
    ReasonKind.DISTURBED: lambda r: f"{r.pct or 0:.0f} % of the bursts were held up",
    ReasonKind.SHORT_SESSIONS: lambda r: f"of sessions with {r.n or 0:,} transactions or more",
}


def because(arm: ArmResult) -> str:
    """Why the answer is what it is, without a full stop; with the evidence if it was not seen."""
    if arm.answer is None:
        return "nothing was measured"
    found = [_WORDS[reason.kind](reason) for reason in arm.answer.reasons]
    if arm.proof is not None and arm.proof.state == "missing":
        found.append(arm.proof.evidence)
    return "; ".join(text for text in found if text)


def _p(reason: Reason) -> str:
    if reason.p is None:
        return "p unknown"
    return "p < 0.0001" if reason.p < 0.0001 else f"p = {reason.p:.2g}"


def _rates(reason: Reason) -> str:
    return f"{reason.pct or 0:.3g} % against {reason.base_pct or 0:.3g} %"
