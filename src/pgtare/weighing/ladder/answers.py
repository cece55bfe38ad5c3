"""What a study found, a sentence each: verdicts, and what else was seen."""

from __future__ import annotations

from typing import Any

from pgtare.kit import numbers
from pgtare.weighing.ladder.result import Compared, LadderResult, OnWorkload
from pgtare.weighing.ladder.study_sections import AGAIN
from pgtare.weighing.ladder.wording import (
    METRICS,
    figure,
    interval,
    level_interval,
    p_text,
    pct,
)

#: Of the sessions' time; less is not worth a sentence.
_WAITS_MORE = 0.001
#: Of more the names speak for themselves, or must be looked up.
_VARIANTS_TOLD = 8


def found(result: LadderResult) -> list[tuple[str, str]]:
    """What was found, with the class of each sentence; the verdicts that say most first."""
    if result.state == "unfinished":
        done = f"{result.runs_done} of {result.runs_planned} runs are done"
        why = "figures are shown after the last one, so that nobody stops when they look good"
        sentence = f"{done}; {why}."
        return [("inconclusive", sentence)]
    answers: list[tuple[str, str]] = []
    for verdict in ("cost", "gain", "equivalent"):
        for workload in result.workloads:
            for c in workload.compared:
                if c.verdict == verdict:
                    answers.append((verdict, _sentence(result, workload, c)))
    open_ones = [c for w in result.workloads for c in w.compared if c.verdict == "inconclusive"]
    if open_ones:
        needed = sorted(c.rounds_to_settle for c in open_ones if c.rounds_to_settle is not None)
        none = len(open_ones) - len(needed)
        if result.state == "closed":
            how = "The study is closed, so it stays that way."
        elif not needed:
            how = "No number of rounds would probably decide that."
        else:
            span = numbers.span(numbers.count(needed[0]), numbers.count(needed[-1]))
            which = f"{len(needed)} of them" if none else "that"
            how = (
                f"{span} rounds would probably decide {which} (80 % power, if the estimates are "
                "exact and later ones vary as much as these did)."
            )
            how += f" For {none}, no number would." if none else ""
        noun = "comparison is" if len(open_ones) == 1 else "comparisons are"
        answers.append(
            (
                "inconclusive",
                f"{len(open_ones)} {noun} inconclusive: the data show neither a difference nor "
                f"that there is none. {how}",
            )
        )
    answers += [("not_verified", sentence) for sentence in _not_counted(result)]
    return answers


def _not_counted(result: LadderResult) -> list[str]:
    """The workloads without figures, and what to do about them."""
    left_out = [workload for workload in result.workloads if workload.why_not]
    sentences = [f"{w.name} does not count: {w.why_not}." for w in left_out]
    if any(w.proven and w.dropped for w in left_out):
        sentences.append(
            "The caveats list the runs that did not pass a gate, each with its reason: run the "
            "study again while nothing else runs on the machine, or allow for more under [gates] "
            "in the study file."
        )
    if any(w.idle is not None and not w.proven for w in left_out):
        sentences.append(
            "The page shows what a workload waits for: change its load, or what the study file "
            "states of it."
        )
    return sentences


def variants(result: LadderResult) -> str:
    """What the names of the variants mean, if they are few."""
    if len(result.variants) > _VARIANTS_TOLD:
        return (
            f"{len(result.variants)} variants: the page lists what each preloads and sets, "
            "under Variants."
        )
    return f"Variants: {'; '.join(_variant(variant) for variant in result.variants)}."


def _variant(variant: dict[str, Any]) -> str:
    """Its title, or what it preloads and sets if it has none."""
    what = [f"preloads {', '.join(variant['preload'])}"] if variant["preload"] else []
    what += [f"{k} = {v}" for k, v in {**variant["settings"], **variant["runtime"]}.items()]
    title = variant["title"] or ", ".join(what) or "nothing preloaded, nothing set"
    return f"{variant['name']}: {title}"


def _sentence(result: LadderResult, workload: OnWorkload, c: Compared) -> str:
    where = f"{workload.name} ({workload.title})" if workload.title else workload.name
    what = METRICS[c.metric].name
    if c.verdict == "equivalent":
        return (
            f"{where}: {c.arm} is equivalent to {c.base}: {what} {pct(c.effect.pct)}, "
            f"{level_interval(2 * result.alpha)} {interval(c.within or c.effect)}, within the "
            f"margin of ±{result.margin_pct:g} % (not corrected for the number of comparisons)."
        )
    differs = "costs something compared with" if c.verdict == "cost" else "improves on"
    sign = "lower" if (c.effect.pct or 0) < 0 else "higher"
    size = numbers.NONE if c.effect.pct is None else f"{abs(c.effect.pct):.2f} %"
    return (
        f"{where}: {c.arm} {differs} {c.base}: {what} {size} {sign}, "
        f"{level_interval(result.alpha)} {interval(c.effect)}, p = {p_text(c.p)}, "
        f"{p_text(c.p_adjusted)} after correction for "
        f"{numbers.counted(result.family, 'comparison')}."
    )


def seen(result: LadderResult) -> list[str]:
    """What else was counted in the runs: figures by variant, and what one waits for more."""
    sentences = []
    for workload in result.workloads:
        for name, unit in workload.figure_units.items():
            values = [
                f"{rung.variant} {figure(rung.figures[name])}"
                for rung in workload.rungs
                if name in rung.figures and not rung.variant.endswith(AGAIN)
            ]
            if values:
                sentences.append(f"{workload.name}: {name}, {unit}: {', '.join(values)}.")
        sentences += [line for c in workload.compared if (line := _waits_more(workload, c))]
    return sentences


def _waits_more(workload: OnWorkload, c: Compared) -> str:
    """The wait that takes most more of the sessions' time in the arm than in the base."""
    by_variant = workload.waits_by_variant
    if c.arm not in by_variant or c.base not in by_variant:
        return ""
    before = {wait.event: wait.of_sessions for wait in by_variant[c.base]}
    grown = {
        wait.event: (wait.of_sessions - before.get(wait.event, 0.0), wait.of_sessions)
        for wait in by_variant[c.arm]
        if not wait.idle
    }
    event, (more, share) = max(grown.items(), key=lambda item: item[1], default=("", (0.0, 0.0)))
    if more < _WAITS_MORE:
        return ""
    return (
        f"{workload.name}: what {c.arm} waits for more than {c.base} is {event}: "
        f"{numbers.percent(100 * share)} of its sessions' time, "
        f"{numbers.percent(100 * (share - more))} there."
    )


def terms(result: LadderResult) -> list[str]:
    """The ladder's own words, as far as the result uses them, a sentence each."""
    if not any(workload.floor for workload in result.workloads):
        return []
    return [
        f"Floor: {result.floor} compared with itself; its interval shows how small a "
        "difference this machine can show."
    ]
