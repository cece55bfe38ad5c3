"""The lines below the table: what the figures of a result rest on."""

from __future__ import annotations

from collections.abc import Iterator

from pgtare.estimate.trial.runs import DROPPED
from pgtare.kit import numbers
from pgtare.weighing.weigh.outside_schema import OutsideInfo
from pgtare.weighing.weigh.report import traffic, wording
from pgtare.weighing.weigh.schema import ArmResult, DesignInfo, SliceInfo, WeighResult


def facts(result: WeighResult) -> Iterator[tuple[str, str]]:
    """As (label, text); of a trial that the server ended only what needs no figures."""
    base, design = result.arms[0], result.design
    yield (
        "base",
        f"mean {numbers.duration(base.mean_us)} (with the slowest cut off "
        f"{numbers.duration(result.baseline.body_mean_us)}, which percentages are of), "
        f"p50 {numbers.duration(base.p50_us)}, p99 {numbers.duration(base.p99_us)}, "
        f"{numbers.count(base.n)} transactions",
    )
    yield "load", traffic.describe(result.load)
    if not wording.ended_by_server(result):
        for arm in wording.of_role(result, "control"):
            yield "control", control_sentence(arm)
        together = design.unit == "slice" and design.sessions > 1
        for arm in wording.of_role(result, "injected"):
            yield "injected", injected_sentence(arm, together)
        yield from _outcomes(result)
        if not result.compares_servers:
            yield from _proofs(result)
    if design.outside is None:
        yield "switching", _switching(result)
        yield "sessions", _sessions(design)
    else:
        yield "outside", _outside(design.outside)
    yield (
        "trial",
        f"{numbers.seconds(design.duration_s)} of {numbers.seconds(design.planned_s)} planned, "
        f"{numbers.count(design.blocks)} {_blocks(result)}, "
        f"{numbers.count(design.blocks_discarded)} discarded, seed {design.seed}",
    )
    if design.slices is not None:
        yield "slices", _slices(design.slices)
    else:
        dropped = design.outside.dropped if design.outside else DROPPED
        yield (
            "runs",
            f"a session keeps an arm for {design.runs.shortest} to {design.runs.longest} "
            f"transactions; the first {dropped} of each are in no answer",
        )


def _blocks(result: WeighResult) -> str:
    if result.compares_servers:
        return "batches of sessions"
    return "blocks of windows" if result.windows else _BLOCKS[result.design.unit]


_BLOCKS = {
    "run": "blocks of runs",
    "slice": "blocks of slices",
    "both": "blocks of slices",
    "burst": "blocks of bursts",
}


def _outside(found: OutsideInfo) -> str:
    held_up = ""
    if found.disturbed_pct is not None:
        whose = "the most disturbed server's" if found.servers else "the base's"
        held_up = f"; {numbers.percent(found.disturbed_pct)} of {whose} bursts were held up"
    sessions = "sessions of pgtare’s own" if found.servers else "one session of pgtare’s own"
    return (
        f"{sessions}, {numbers.percent(found.server_busy_pct)} of one processor of the "
        f"server{held_up}; {numbers.counted(found.failed_blocks, 'block')} left out for errors"
    )


def _slices(slices: SliceInfo) -> str:
    outlasted = ""
    if slices.straddled_pct is not None:
        outlasted = (
            f"; of an arm’s transactions {numbers.percent(slices.straddled_pct)} at most "
            "outlasted theirs"
        )
    return (
        f"{slices.min_us / 1000:g} to {slices.max_us / 1000:g} ms in random order, nothing "
        f"measured in the first {slices.guard_us / 1000:g} ms{outlasted}"
    )


def _outcomes(result: WeighResult) -> Iterator[tuple[str, str]]:
    """What else must be known of the verdicts, if there is something."""
    equal = [arm for arm in wording.of_role(result, "instrument") if arm.verdict == "equivalent"]
    if len(equal) > 1:
        yield (
            "equivalence",
            f"shown for each of {len(equal)} instruments alone, at 5 % each; that all of them cost "
            "nothing together is not shown",
        )
    failed = ", ".join(
        f"{arm.name} {numbers.percent(100 * arm.aborted / arm.n)}"
        for arm in result.arms
        if arm.n and arm.aborted
    )
    if failed:
        yield "failed", f"transactions that ended in an error: {failed}"
    left = ", ".join(
        f"{arm.name} {arm.open} (up to {numbers.duration(arm.longest_open_us)})"
        for arm in result.arms
        if arm.open
    )
    if left:
        yield "open at end", f"transactions that had no answer yet: {left}"


def control_sentence(arm: ArmResult) -> str:
    """How the control arm, which is the base again, came out."""
    answer = wording.answer_of(arm)
    if answer is None or not numbers.bounded(answer.us):
        return "no figure for the base arm measured again"
    p = wording.control_p(arm)
    by = "" if p is None else f"; p = {p:.2g}, of its answer and tail together"
    return f"base again: {numbers.with_bounds(answer.us, 'µs')}{by}"


def injected_sentence(arm: ArmResult, together: bool = False) -> str:
    """Whether a delay of known size was found again.

    together: all sessions had it at once, and so waited for each other longer as well.
    """
    known = arm.inject_ns / 1000
    answer = wording.answer_of(arm)
    if answer is None or answer.us.lo is None or answer.us.hi is None:
        return f"{known:g} µs added on purpose: no figure"
    found = answer.us.lo <= known <= answer.us.hi
    remark = "covers the truth" if found else "misses the truth"
    if together:
        remark = "with what sessions cost each other"
    return f"{known:g} µs added on purpose: {numbers.with_bounds(answer.us, 'µs')}, {remark}"


def _proofs(result: WeighResult) -> Iterator[tuple[str, str]]:
    """What shows of each instrument whether it really ran."""
    for arm in wording.by_cost(wording.of_role(result, "instrument")):
        if arm.proof is not None:
            state = wording.PROOF_STATES[wording.proof_state(arm)]
            yield "proof", f"{arm.name}: {state}: {arm.proof.evidence}"


def _switching(result: WeighResult) -> str:
    switching = result.switching
    if switching.switch_us is None:
        return "not timed"
    lost = (
        ""
        if switching.switch_throughput_pct is None
        else f"; it cost {numbers.percent(switching.switch_throughput_pct)} of the throughput"
    )
    return (
        f"{numbers.duration(switching.switch_us)} between transactions, outside every figure{lost}"
    )


def _sessions(design: DesignInfo) -> str:
    text = f"{numbers.count(design.sessions)} in the trial, "
    text += f"{numbers.count(design.sessions_outside)} outside it"
    if design.participation is not None and design.participation < 1:
        text += f"; each drawn with a chance of {numbers.percent(100 * design.participation)}"
    if design.transactions_took_part_pct is not None:
        share = numbers.percent(design.transactions_took_part_pct)
        text += f"; {share} of the database’s transactions took part"
    return f"{text}; {numbers.count(design.lost)} observations lost"


_DIFFERENCES = {
    "run": "Differences from the base arm per transaction, in runs of transactions in which a "
    "session keeps its arm.",
    "burst": "Differences from the base arm per transaction, in bursts and without the stamps.",
    "slice": "Differences per transaction between slices in which all sessions follow the arm and "
    "such of the base: with what sessions cost each other.",
}
_DIFFERENCES["both"] = _DIFFERENCES["slice"]


def threshold_sentence(result: WeighResult) -> str:
    """How the answer and the column tail divide the effect, and whether the tail can be judged."""
    part = "99.9th percentile"
    if result.design.outside is not None:
        part = f"{'99.9th' if result.windows is not None else '99th'} percentile of runs"
    return (
        f"{_DIFFERENCES[result.design.unit]} Up to "
        f"the {part} of arm and base together (base alone: "
        f"{numbers.duration(result.baseline.threshold_us)}); tail: the mean of what lies above it."
        f"{_unjudged_tails(result)}"
    )


def _unjudged_tails(result: WeighResult) -> str:
    arms = [(arm, wording.figures(arm)) for arm in result.arms]
    known = [
        (arm.name, effect.excess_us)
        for arm, effect in arms
        if effect is not None and effect.excess_us.estimate is not None
    ]
    names = [name for name, excess in known if not numbers.bounded(excess)]
    if not names:
        return ""
    whose = "" if len(names) == len(known) else f" of {', '.join(names)}"
    return f" Too few slow transactions to judge the tail{whose}."
