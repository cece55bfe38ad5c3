"""Proof of activity: whether each arm's instrument really ran, by evidence of the trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pgtare.estimate.trial.design import Arm, Design
from pgtare.estimate.trial.observations import Observations, UnitFlag, finished
from pgtare.estimate.trial.outcomes import rate_p
from pgtare.weighing.instruments.counters import Snapshot
from pgtare.weighing.instruments.model import EVIDENCE, Chosen, FlagRule, SqlRule
from pgtare.weighing.instruments.proof_result import Proof

#: What the evidence of a trial from outside says of an instrument without a counter.
_UNSEEN = "no counter of the server shows it at work"
#: An arm's settings must have been in force in at least this share of its transactions.
IN_FORCE = 0.95
_NOT_IN_FORCE = UnitFlag.SWITCH_FAILED | UnitFlag.APP_CHANGED | UnitFlag.RELOADED
_ANY = UnitFlag(0)
# A unit without an arm says nothing of any; an error ends a transaction before its evidence is
# complete, and logs a line in every arm; the end of a trial cuts others short.
_LEFT_OUT = UnitFlag.UNDRAWN | UnitFlag.ABORTED | UnitFlag.OPEN
# Four standard errors: a chance of one in 30,000 to call a sampling instrument missing.
_SAMPLING_SIGMAS = 4.0
# With fewer transactions, that an instrument did not show is no proof that it did not run.
_FEWEST = 20
# Error rates of an arm and the base may differ by this much.
_SAME_ERRORS = 0.001
_ERROR_SIGMAS = 5.0
# From outside, they differ if chance makes such a difference no more often than this.
_ERRORS_DIFFER = 0.001

State = Literal["active", "idle", "missing", "unknown"]
Flags = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class ProofFinding:
    """What one rule found; unknown: the evidence could not be read."""

    state: State
    evidence: str


def prove(
    arms: Sequence[Arm],
    chosen: Sequence[Chosen],
    observations: Observations,
    before: Snapshot,
    after: Snapshot,
) -> list[Proof | None]:
    """The proof of each arm, in the order of `arms`; None for the base.

    arms: as `combine` made them (index = the observations' `arm`). before, after: snapshots taken
    around the trial. States: active (it ran); idle (in force, but there was nothing to do); missing
    (no number may be given). Everything in doubt is missing.
    """
    by_name = {choice.name: choice for choice in chosen}
    base = evidence_flags(observations, 0)
    return [
        None
        if arm.role == "base"
        else _prove(arm, by_name, observations, index, base, before, after)
        for index, arm in enumerate(arms)
    ]


def proven(arms: Sequence[Arm], proofs: Sequence[Proof | None]) -> dict[str, bool]:
    """Whether each arm's instrument was not missing, by name; without the base."""
    return {
        arm.name: proof.state != "missing"
        for arm, proof in zip(arms, proofs, strict=True)
        if proof is not None
    }


def prove_driven(
    arms: Sequence[Arm],
    chosen: Sequence[Chosen],
    transactions: Sequence[int],
    read_back: Sequence[Mapping[str, str] | None],
    before: Snapshot,
    after: Snapshot,
) -> list[Proof | None]:
    """The proof of each arm of a trial from outside; None for the base.

    transactions: of each arm. read_back: what pg_settings shows with the arm's settings in force,
    None if that could not be read. Without a counter of the server an instrument counts as idle and
    unseen.
    """
    by_name = {choice.name: choice for choice in chosen}
    return [
        None
        if arm.role == "base"
        else _prove_driven(arm, by_name.get(arm.name), ran, back, before, after)
        for arm, ran, back in zip(arms, transactions, read_back, strict=True)
    ]


def _prove_driven(
    arm: Arm,
    choice: Chosen | None,
    transactions: int,
    back: Mapping[str, str] | None,
    before: Snapshot,
    after: Snapshot,
) -> Proof:
    if not transactions:
        return Proof(state="missing", evidence="the arm has no transactions")
    if arm.role == "control":
        return Proof(state="active", evidence="same settings as base")
    if back is None:
        return Proof(state="missing", evidence="its settings could not be read back")
    gone = sorted(name for name, value in back.items() if not value and arm.settings[name])
    if gone:
        return Proof(state="missing", evidence=f"pg_settings does not have {', '.join(gone)}")
    in_force = f"its {len(back)} settings were in force, as pg_settings shows"
    rules = choice.rules if choice is not None else ()
    ran = np.full(transactions, int(UnitFlag.EXECUTED), dtype=np.uint32)
    findings = [
        judge_counter(rule, ran, before, after)
        for rule in rules
        if isinstance(rule, SqlRule) and rule.applies(after.major)
    ]
    if not any(finding.state != "unknown" for finding in findings):
        unread = [finding.evidence for finding in findings]
        text = "; ".join([in_force, _UNSEEN, *unread])
        return Proof(state="idle", evidence=text, unproven="unseen")
    return combine_findings(findings, in_force)


def refuted_by_errors(
    design: Design, proofs: Sequence[Proof | None], failed_arms: Sequence[int]
) -> list[Proof | None]:
    """Proofs from outside, "missing" for an arm that changes how often transactions fail.

    failed_arms: in whose run each block failed. A block that failed is left out whole, so what an
    arm makes fail, such as the slow transactions that a timeout ends, is missing from its cost. A
    block has its arms in random order: if none of them matters, the error is in any run alike.
    """
    counts = np.bincount(np.array(failed_arms, np.int64), minlength=len(design.arms))
    others = int(counts[list(design.reference)].sum())
    slots = sum(design.block.count(index) for index in design.reference)
    found = list(proofs)
    for index, arm in enumerate(design.arms):
        if arm.role != "instrument":
            continue
        mine, own = int(counts[index]), design.block.count(index)
        each = np.repeat(np.array([1, 0], np.int64), [mine, others])
        if rate_p(each, np.ones_like(each), own, own + slots) < _ERRORS_DIFFER:
            errors = f"{mine} blocks failed in its run, {others} in one of the base or the control"
            found[index] = Proof(
                state="missing", evidence=f"it changes what the load does: {errors}"
            )
    return found


def evidence_flags(observations: Observations, arm: int) -> Flags:
    """The flags of the arm's transactions that can carry evidence: of blocks, and finished well."""
    flags: Flags = observations["flags"][observations["arm"] == arm]
    kept: Flags = flags[(flags & int(_LEFT_OUT)) == 0]
    return kept


def _prove(
    arm: Arm,
    by_name: dict[str, Chosen],
    observations: Observations,
    index: int,
    base: Flags,
    before: Snapshot,
    after: Snapshot,
) -> Proof:
    flags = evidence_flags(observations, index)
    if not len(flags):
        return Proof(state="missing", evidence="the arm has no transactions")
    if not len(base):
        return Proof(state="missing", evidence="the base arm has no transactions")
    if arm.role == "control":
        return Proof(state="active", evidence="same settings as base")
    if arm.role == "injected":
        return Proof(state="active", evidence="the delay is the server module's own")
    errors = _more_errors(observations, index)
    if errors:
        return Proof(state="missing", evidence=errors)
    for name, some in (("arm", flags), ("base arm", base)):
        if _ratio(_count(some, without=_NOT_IN_FORCE), len(some)) < IN_FORCE:
            return Proof(state="missing", evidence=f"the {name} was not in force: {_force(some)}")
    choice = by_name.get(arm.name)
    if choice is None or not choice.rules:
        return Proof(
            state="idle",
            evidence=f"{_force(flags)} (values checked at each end)",
            unproven="own" if choice is None or choice.entry is None else "unknown",
        )
    findings = [
        judge_flags(rule, flags, base)
        if isinstance(rule, FlagRule)
        else judge_counter(rule, flags, before, after)
        for rule in choice.rules
        if isinstance(rule, FlagRule) or rule.applies(after.major)
    ]
    return combine_findings(findings, in_force=_force(flags))


def _more_errors(observations: Observations, arm: int) -> str:
    """Whether the arm's transactions end in errors at another rate than the base's, in words.

    Such an arm changes what the load does, so that its service times say nothing of a cost. Two
    proportions, at 5 standard errors and a thousandth apart, as transactions of a session are not
    independent.
    """
    n, failed = [], []
    for which in (arm, 0):
        rows = finished(observations)
        flags = rows["flags"][rows["arm"] == which]
        n.append(max(len(flags), 1))
        failed.append(_count(flags, UnitFlag.ABORTED))
    rates = [k / total for k, total in zip(failed, n, strict=True)]
    pooled = sum(failed) / sum(n)
    se = math.sqrt(pooled * (1 - pooled) * (1 / n[0] + 1 / n[1]))
    if abs(rates[0] - rates[1]) <= max(_SAME_ERRORS, _ERROR_SIGMAS * se):
        return ""
    return (
        f"it changes what the load does: {100 * rates[0]:.1f} % of its transactions "
        f"ended in an error, {100 * rates[1]:.1f} % of the base's"
    )


def combine_findings(findings: Iterable[ProofFinding], in_force: str = "") -> Proof:
    """One state from what all rules found: missing before idle before active.

    Evidence that could not be read is passed over if other evidence is there, and means missing
    if it is all there is.
    """
    found = list(findings)
    known = [f for f in found if f.state != "unknown"]
    text = "; ".join(f.evidence for f in found if f.evidence)
    if not known:
        return Proof(state="missing", evidence=text or "no evidence is known for this server")
    for state in ("missing", "idle"):
        if any(f.state == state for f in known):
            break
    else:
        return Proof(state="active", evidence=text)
    if state == "missing":  # what went wrong comes first
        text = "; ".join(f.evidence for f in sorted(found, key=lambda f: f.state != "missing"))
        return Proof(state="missing", evidence=text)
    return Proof(state="idle", evidence="; ".join(part for part in (in_force, text) if part))


def judge_flags(rule: FlagRule, arm: Flags, base: Flags) -> ProofFinding:
    """Compare how often the arm's and the base's transactions carry the rule's flag.

    arm, base: `flags` of observations. A transaction in which the settings were not in force counts
    against the arm.
    """
    flag = UnitFlag[rule.flag]
    where = UnitFlag[rule.where] if rule.where else _ANY
    n, base_n = _count(arm, where), _count(base, where)
    k = _count(arm, where | flag, without=_NOT_IN_FORCE)
    base_k = _count(base, where | flag)
    seen = _seen(rule, k, n, _text(base_k / base_n) if base_k else "none")
    hint = f" ({rule.hint})" if rule.hint else ""
    share, base_share = _ratio(k, n), _ratio(base_k, base_n)

    if rule.expect == "none":
        if share > base_share + 0.01:
            return ProofFinding("missing", f"{seen}, but expected no more than in base{hint}")
        return ProofFinding("active", "")
    if n == 0:
        return ProofFinding("idle", f"no transaction of the arm {EVIDENCE[rule.where or '']}")
    if rule.expect == "some":
        if k > 0 and share > 2 * base_share:
            return ProofFinding("active", seen)
        reason = f"{seen}{hint}"
        return ProofFinding(rule.otherwise, reason)
    if base_share > rule.base_limit:
        return ProofFinding("missing", f"the base arm is contaminated: {seen}{hint}")
    least = rule.share
    if rule.expect == "about":
        least -= _SAMPLING_SIGMAS * math.sqrt(rule.share * (1 - rule.share) / n)
    if n < _FEWEST and share < least:
        return ProofFinding("idle", f"{seen}: too few to tell")
    if k == 0 or share < least:
        return ProofFinding(
            rule.otherwise, f"{seen}, but {_text(rule.share)} expected{_against(arm, n, k)}{hint}"
        )
    if share > rule.at_most:
        return ProofFinding("missing", f"{seen}, but at most {_text(rule.at_most)} expected")
    return ProofFinding("active", seen)


def _seen(rule: FlagRule, k: int, n: int, base: str) -> str:
    """How many of the arm's transactions did what the flag stands for; base: share of its own."""
    did, share = EVIDENCE[rule.flag], _text(_ratio(k, n))
    if rule.where:
        some = "all" if k == n else f"{k:,} ({share})"
        return f"of {n:,} transactions that {EVIDENCE[rule.where]}, {some} {did} (base: {base})"
    if k == n:
        return f"all {n:,} transactions {did} (base: {base})"
    return f"{k:,} of {n:,} transactions {did} ({share}; base: {base})"


def judge_counter(rule: SqlRule, arm: Flags, before: Snapshot, after: Snapshot) -> ProofFinding:
    """Judge how much a counter of the server grew in the trial, over all arms and sessions.

    Counters are cumulative and may be reset or lose entries: a change of the rule's void_sql, or a
    counter that fell, makes this evidence unknown.
    """
    executed = _count(arm, UnitFlag.EXECUTED)
    grown, why_not = _growth(rule.sql, before, after)
    if grown is None:
        return ProofFinding("unknown", f"{rule.label}: not readable ({why_not})")
    if rule.void_sql is not None:
        void, why_not = _growth(rule.void_sql, before, after)
        if void != 0:
            reason = rule.void_reason if void is not None else why_not
            return ProofFinding("unknown", f"{rule.label}: not reliable ({reason})")
    if grown < 0:
        return ProofFinding(
            "unknown", f"{rule.label}: not reliable (it was reset during the trial)"
        )
    seen = f"{rule.label}: +{grown:,.0f}" if grown >= 10 else f"{rule.label}: +{grown:.3g}"
    hint = f" ({rule.hint})" if rule.hint else ""
    least = rule.per_unit * executed
    if grown > 0 and grown >= least:
        return ProofFinding("active", f"{seen} in all arms")
    if executed == 0 and rule.per_unit > 0:
        return ProofFinding("idle", f"{seen}; no transaction of the arm executed a plan")
    if rule.work_sql is not None:
        work, why_not = _growth(rule.work_sql, before, after)
        if work is None:
            return ProofFinding("unknown", f"{seen}; {rule.work_label}: not readable ({why_not})")
        # `or 1`: a counter that did not move at all is no work even if any work would count.
        if work < (rule.work_per_unit * len(arm) or 1):
            return ProofFinding(
                "idle", f"{seen}; {rule.work_label}: +{work:,.0f}, too few to watch"
            )
        seen += f"; {rule.work_label}: +{work:,.0f}"
    if least:
        seen += f", but at least {least:,.0f} expected"
    return ProofFinding(rule.otherwise, seen + hint)


def _growth(sql: str, before: Snapshot, after: Snapshot) -> tuple[float | None, str]:
    first, last = before[sql], after[sql]
    if first.value is None or last.value is None:
        return None, first.error or last.error
    return last.value - first.value, ""


def _count(flags: Flags, wanted: UnitFlag = _ANY, without: UnitFlag = _ANY) -> int:
    """Transactions which carry all of `wanted` and none of `without`."""
    hit = ((flags & int(wanted)) == int(wanted)) & ((flags & int(without)) == 0)
    return int(np.count_nonzero(hit))


def _force(flags: Flags) -> str:
    n = len(flags)
    text = f"in force in {_count(flags, without=_NOT_IN_FORCE):,} of {n:,} transactions"
    causes = [
        f"{_count(flags, bit):,} {why}"
        for bit, why in (
            (UnitFlag.SWITCH_FAILED, "could not be switched"),
            (UnitFlag.APP_CHANGED, "changed by the application"),
            (UnitFlag.RELOADED, "met by a configuration reload"),
        )
        if _count(flags, bit)
    ]
    return f"{text} ({', '.join(causes)})" if causes else text


def _against(arm: Flags, n: int, k: int) -> str:
    bad = len(arm) - _count(arm, without=_NOT_IN_FORCE)
    return f"; settings not in force in {bad:,} of {len(arm):,}" if bad and k < n else ""


def _ratio(k: int, n: int) -> float:
    return k / n if n else 0.0


def _text(share: float) -> str:
    return f"{100 * share:.3g} %"
