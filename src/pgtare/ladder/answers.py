"""What a study found, a sentence each: verdicts, arms taken together, what else was seen."""

from __future__ import annotations

from typing import Any

from pgtare.ladder.result import Compared, LadderResult, OnWorkload, Together
from pgtare.ladder.sections import AGAIN
from pgtare.ladder.wording import (
    METRICS,
    block,
    figure,
    interval,
    level_interval,
    p_text,
    pct,
)
from pgtare.report import numbers

#: Of the sessions' time; less is not worth a sentence.
_WAITS_MORE = 0.001
#: Of more the names speak for themselves, or must be looked up.
_VARIANTS_TOLD = 8


def found(result: LadderResult) -> list[tuple[str, str]]:
    """What was found, with the class of each sentence; the verdicts that say most first."""
    if result.state == "unfinished":
        done = f"{result.runs_done} of {result.runs_planned} runs are done"
        why = "the figures come with the last, since whoever sees them early may stop on them"
        sentence = f"{done}; {why}."
        return [("inconclusive", sentence)]
    told: list[tuple[str, str]] = []
    for verdict in ("cost", "gain", "equivalent"):
        for workload in result.workloads:
            for c in workload.compared:
                if c.verdict == verdict:
                    told.append((verdict, _sentence(result, workload, c)))
    open_ones = [c for w in result.workloads for c in w.compared if c.verdict == "inconclusive"]
    if open_ones:
        nouns = {
            block(w) for w in result.workloads for c in w.compared if c.verdict == "inconclusive"
        }
        unit = " or ".join(f"{noun}s" for noun in sorted(nouns))
        needed = sorted(c.rounds_to_settle for c in open_ones if c.rounds_to_settle is not None)
        how = ""
        none = len(open_ones) - len(needed)
        if needed:
            least, most = numbers.count(needed[0]), numbers.count(needed[-1])
            span = least if least == most else f"{least} to {most}"
            which = f"{len(needed)} of them" if none else "that"
            how = (
                f" {span} {unit} would settle {which} with 80 % power, were the estimates the "
                "truth and did the rest vary as these did."
            )
            if none:
                how += f" For {none} there is no such number."
        else:
            how = f" There is no number of {unit} that would probably settle that."
        if result.state == "closed":
            how = " The study is closed, so that nothing will settle that."
        noun = "comparison is" if len(open_ones) == 1 else "comparisons are"
        told.append(("inconclusive", f"{len(open_ones)} {noun} inconclusive.{how}"))
    told += [("not_verified", sentence) for sentence in _not_counted(result)]
    return told


def _not_counted(result: LadderResult) -> list[str]:
    """The workloads without figures, those with one reason together, and what to do about them."""
    alike: dict[tuple[str, str], list[OnWorkload]] = {}
    for workload in result.workloads:
        if workload.why_not:
            alike.setdefault((workload.stated, workload.why_not), []).append(workload)
    told = [f"{_all_of(those)} not count: {why}." for (_, why), those in alike.items()]
    left_out = [w for those in alike.values() for w in those]
    if any(w.proven and w.dropped for w in left_out):
        told.append(
            "Runs that did not pass a gate stand in the caveats, each with its reason: run the "
            "study anew while nothing else runs on the machine, or allow for more under [gates] in "
            "the study file."
        )
    if any(w.idle is not None and not w.proven for w in left_out):
        told.append(
            "`pgtare ladder prove` shows what a workload waits for: change its load, or what the "
            "study file states of it."
        )
    return told


def _all_of(workloads: list[OnWorkload]) -> str:
    """W1 by rounds does, or W1 by rounds, duet and units in one server do."""
    if len(workloads) == 1:
        return f"{workloads[0].called} does"
    *names, last = (workload.words.name for workload in workloads)
    return f"{workloads[0].stated} by {', '.join(names)} and {last} do"


def variants(result: LadderResult) -> str:
    """What the names of the variants stand for, where they are few."""
    if len(result.variants) > _VARIANTS_TOLD:
        return (
            f"{len(result.variants)} variants: what each preloads and sets stands in the page, "
            "under Variants."
        )
    return f"Variants: {'; '.join(_variant(variant) for variant in result.variants)}."


def _variant(variant: dict[str, Any]) -> str:
    """Its title, or what it preloads and sets where it has none."""
    what = [f"preloads {', '.join(variant['preload'])}"] if variant["preload"] else []
    what += [f"{k} = {v}" for k, v in {**variant["settings"], **variant["runtime"]}.items()]
    told = variant["title"] or ", ".join(what) or "nothing preloaded, nothing set"
    return f"{variant['name']}: {told}"


def _sentence(result: LadderResult, workload: OnWorkload, c: Compared) -> str:
    where = f"{workload.stated} ({workload.title})" if workload.title else workload.stated
    where += (
        ""
        if workload.protocol == "rounds" and workload.called == workload.stated
        else f" by {workload.words.name}"
    )
    what = METRICS[c.metric]
    if c.verdict == "equivalent":
        return (
            f"{where}: {c.arm} against {c.base} is equivalent, {what} {pct(c.effect.pct)}, "
            f"{level_interval(2 * result.alpha)} {interval(c.within or c.effect)} within "
            f"±{result.margin_pct:g} % (in this comparison; the family is not corrected for)."
        )
    slower = "costs" if c.verdict == "cost" else "gains"
    sign = "lower" if (c.effect.pct or 0) < 0 else "higher"
    size = numbers.NONE if c.effect.pct is None else f"{abs(c.effect.pct):.2f} %"
    return (
        f"{where}: {c.arm} {slower} against {c.base}: {what} {size} {sign} {interval(c.effect)}, "
        f"p = {p_text(c.p)}, over the family {p_text(c.p_holm)}."
    )


def seen(result: LadderResult) -> list[str]:
    """What else was counted in the runs: figures by variant, and what one waits for more."""
    told = []
    for workload in result.workloads:
        for name, unit in workload.figure_units.items():
            values = [
                f"{rung.variant} {figure(rung.figures[name])}"
                for rung in workload.rungs
                if name in rung.figures and not rung.variant.endswith(AGAIN)
            ]
            if values:
                told.append(f"{workload.name}: {name}, {unit}: {', '.join(values)}.")
        told += [line for c in workload.compared if (line := _waits_more(workload, c))]
    return told


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


def together(result: LadderResult) -> list[str]:
    """Arms that share a base, taken together."""
    called = {workload.name: workload.called for workload in result.workloads}

    def names(t: Together) -> str:
        return ", ".join(called[name] for name in t.workloads)

    told = [
        f"{' and '.join(t.arms)} against {t.base} over {names(t)}, taken together: "
        f"{pct(t.mean_pct)}, p = {p_text(t.p)}"
        for t in result.together
    ]
    if not told:
        return []
    how = (
        "by dealing the rungs of each round anew: deltas that share a base are dependent, and "
        "their signs may not be counted as fresh coins; "
        + ("this p stands" if len(told) == 1 else "each such p stands")
        + " outside the declared family, and Holm's correction does not cover it"
    )
    return [f"{told[0]} ({how}).", *(f"{sentence}." for sentence in told[1:])]
