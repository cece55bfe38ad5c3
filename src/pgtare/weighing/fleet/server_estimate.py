"""One server of a fleet, estimated again from its observations: what is combined over servers.

The estimators are those of `pgtare weigh`. The threshold c between body and tail is each server's
own: estimated once from the server's base, control and arm, and then taken as known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.answer import Answer
from pgtare.estimate.trial.results import ArmEstimate
from pgtare.weighing.verdict_names import Verdict
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.reanalysis import estimate_again
from pgtare.weighing.weigh.report import reason_words, wording
from pgtare.weighing.weigh.schema import ArmResult, ArmRole, WeighResult
from pgtare.weighing.weigh.transaction_rate import transaction_rate


@dataclass(frozen=True)
class ArmFigures:
    """One arm on one server.

    log_ratio: log of the body with the instrument over the body of the base; its interval is not
    used. clusters: effective clusters that the standard errors rest on. unusable: why the arm is
    not combined with those of other servers; empty if it is.
    """

    name: str
    role: ArmRole
    settings: tuple[tuple[str, str], ...]
    n: int
    verdict: Verdict | None
    because: str
    us: Estimate
    pct: Estimate
    log_ratio: float
    log_ratio_se: float
    clusters: float
    unusable: str


@dataclass(frozen=True)
class ServerFigures:
    """What one server's observations say; little enough to keep that of every server.

    base_us: body of its base. margin_pct: of equivalence, as its weighing had it. alarms: what
    must be read before its figures. lost: its server ended the trial, or was lost in it.
    """

    name: str
    created: str
    pgtare_version: str
    version: str
    transactions: int
    transactions_per_s: float
    whole_rate: bool
    duration_s: float
    base_us: float
    margin_pct: float
    arms: tuple[ArmFigures, ...]
    alarms: tuple[str, ...]
    lost: bool = False


def estimate_server(name: str, directory: Path, margin: float | None = None) -> ServerFigures:
    """Estimate a server again from a directory of `pgtare weigh --out`.

    margin: of equivalence for the server's own verdicts, as a share; None takes the earlier one.
    Raises as `store.load` does, and UsageError if it compares servers or is of windows.
    """
    stored = store.load(directory)
    if stored.design.grouping == "sessions":
        raise UsageError(f"{directory} compares servers: it has no instruments")
    if stored.design.grouping == "windows":
        raise UsageError(f"{directory} is of a watcher: a fleet is of what a session can switch")
    found = estimate_again(stored.design, stored.observations, stored.result, margin)
    rate = transaction_rate(stored.result)
    arms = zip(found.arms, stored.result.arms, strict=True)
    return ServerFigures(
        name=name,
        created=stored.result.created,
        pgtare_version=stored.result.pgtare_version,
        version=stored.result.server_version,
        transactions=sum(arm.n for arm in found.arms),
        transactions_per_s=rate.per_s if rate else math.nan,
        whole_rate=rate is not None and rate.whole,
        duration_s=stored.result.design.duration_s,
        base_us=found.baseline.body_mean_us,
        margin_pct=found.margin_pct,
        arms=tuple(_arm(arm, kept) for arm, kept in arms if arm.role != "base"),
        alarms=_alarms(stored.result),
        lost=stored.result.design.stopped_by == "server",
    )


def _arm(arm: ArmEstimate, kept: ArmResult) -> ArmFigures:
    answer = arm.answer
    assert answer is not None
    ratio, ratio_se = log_ratio(answer.pct)
    clusters = arm.effective_clusters or 0.0
    figures = (answer.us.estimate, answer.us.se, ratio, ratio_se)
    return ArmFigures(
        name=arm.name,
        role=arm.role,
        settings=tuple(sorted(kept.settings.items())),
        n=arm.n,
        verdict=answer.verdict,
        because=reason_words.because(kept),
        us=answer.us,
        pct=answer.pct,
        log_ratio=ratio,
        log_ratio_se=ratio_se,
        clusters=clusters,
        unusable=_unusable(answer, kept, all(math.isfinite(x) for x in figures), clusters),
    )


def log_ratio(pct: Estimate) -> tuple[float, float]:
    """An effect in percent of the base's body as log((base + effect) / base), and its SE.

    By the delta method; the percentage's standard error already allows for what effect and base
    have in common. NaN if there is none.
    """
    share = pct.estimate / 100
    if not (math.isfinite(share) and math.isfinite(pct.se) and share > -1):
        return math.nan, math.nan
    return math.log1p(share), pct.se / 100 / (1 + share)


def _unusable(answer: Answer, kept: ArmResult, known: bool, clusters: float) -> str:
    if answer.verdict == "not_verified":
        return f"not verified: {reason_words.because(kept)}"
    if not known or clusters <= 1:
        return "too few transactions for an interval"
    return ""


def _alarms(result: WeighResult) -> tuple[str, ...]:
    """That the trial was cut short, or that its control is off."""
    found = []
    if result.design.stopped_by == "interrupt":
        found.append("it was interrupted by someone who may have seen the effects")
    if any(wording.control_off(arm) for arm in wording.of_role(result, "control")):
        found.append("its control is off: the base measured again differs from the base")
    return tuple(found)
