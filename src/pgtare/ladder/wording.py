"""What a study's figures say, in sentences: the same on the terminal, the page and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pgtare.estimate import rounds as estimate
from pgtare.estimate.attainable import DRAWS
from pgtare.estimate.calibrate import clopper_pearson
from pgtare.estimate.layouts import Layouts
from pgtare.ladder.quantities import percent
from pgtare.ladder.result import Compared, Dropped, Effect, LadderResult, OnWorkload, Together
from pgtare.ladder.study import AGAIN, Expected
from pgtare.report import numbers

#: Of the sessions' time; less is not worth a sentence.
_WAITS_MORE = 0.001
#: No end of an interval is worth its digits from here on, in percent.
_ENDLESS = 1e5
METRICS = {
    "tps": "transactions a second",
    "cpu_us": "CPU time a transaction",
    "latency_mean_us": "mean latency",
    "latency_p50_us": "median latency",
    "latency_p95_us": "95th percentile of latency",
    "latency_p99_us": "99th percentile of latency",
    "service_us": "mean service time (below its 99.9th percentile)",
    "service_p50_us": "median service time",
    "service_p99_us": "99th percentile of service time",
}

SHORT = {
    "tps": "tx/s", "cpu_us": "CPU", "latency_mean_us": "mean latency",
    "latency_p50_us": "median latency", "latency_p95_us": "p95 latency",
    "latency_p99_us": "p99 latency", "service_us": "service time",
    "service_p50_us": "median service", "service_p99_us": "p99 service",
}  # fmt: skip


def heading(workload: OnWorkload) -> str:
    """A workload's name, its title where it has one, and its protocol where it has several."""
    by = f" by {workload.words.name}" if workload.called != workload.stated else ""
    return f"{workload.stated} {workload.title}".strip() + by


def blocks(workload: OnWorkload) -> str:
    """How many rounds, a duet's sets, or trials count, and by which protocol they were played."""
    return f"{workload.rounds_kept} of {workload.rounds_planned} {workload.words.blocks}"


def block(workload: OnWorkload) -> str:
    """What counts as one: a round, a duet's set of rounds, a trial."""
    return workload.words.block


def p_text(p: float | None) -> str:
    """A p-value with two digits: .031, < .0001."""
    if p is None:
        return numbers.NONE
    if p < 1e-4:
        return "< .0001"
    if p >= 0.995:
        return "1.00"
    places = 2 if p >= 0.1 else 3 if p >= 0.01 else 4
    return f"{p:.{places}f}".removeprefix("0")


def pct(value: float | None, places: int = 2) -> str:
    """A difference in percent: +1.21 %."""
    return numbers.NONE if value is None else f"{numbers.signed(value, places)} %"


def level_interval(alpha: float) -> str:
    """95 % interval, at α = 0.05."""
    return f"{100 * (1 - alpha):g} % interval"


def interval(effect: Effect, places: int = 2) -> str:
    """[−0.31, +0.42], with ∞ for an end that so few rounds cannot give."""
    if effect.pct is None:
        return numbers.NONE
    lo = "−∞" if effect.lo_pct is None or effect.lo_pct <= -100 else None
    hi = "+∞" if effect.hi_pct is None else "> +999" if effect.hi_pct > 999 else None
    left = lo or numbers.signed(effect.lo_pct, places)
    right = hi or numbers.signed(effect.hi_pct, places)
    return f"[{left}, {right}]"


def ratio(effect: Effect) -> str:
    """An effect as a multiple of the base, with its interval: 1.052 (1.048-1.056)."""

    def times(pct: float | None, endless: str) -> str:
        return endless if pct is None or pct > _ENDLESS else f"{1 + pct / 100:.3f}"

    if effect.pct is None:
        return numbers.NONE
    low, high = times(effect.lo_pct, "0"), times(effect.hi_pct, "∞")
    return f"{times(effect.pct, '∞')} ({low}-{high})"


def absolute(compared: Compared) -> str:
    """The difference in the metric's own unit."""
    if compared.absolute is None:
        return numbers.NONE
    size = abs(compared.absolute)
    places = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{numbers.signed(compared.absolute, places)} {compared.unit}"


def derivation(found: estimate.Paired, *, peeked: bool, noun: str = "round") -> str:
    """Where a p-value comes from, so that a reader can find it again."""
    if not found.n or math.isnan(found.p):
        return f"no p: the {noun}s do not vary"
    if peeked:
        return (
            f"the study was ended by hand after {found.n} {noun}s, so p and interval are those of "
            "the confidence sequence of Waudby-Smith et al., which hold whenever one stops"
        )
    if found.exact:
        total = 2**found.n
        extreme = round(found.p * total)
        return (
            f"{extreme:,} of the 2^{found.n} = {total:,} ways to choose the signs of the "
            f"{found.n} {noun}s' log-ratios give a mean as far from 0: p = {p_text(found.p)}"
        )
    return (
        f"{DRAWS:,} sign flips drawn of 2^{found.n}: p = 2 (k + 1) / "
        f"{DRAWS + 1:,} = {p_text(found.p)}"
    )


def over_layouts(found: estimate.Paired, over: Layouts, *, peeked: bool) -> str:
    """Where the p-value of two builds comes from, and what their linkings did."""
    if over.layouts < 2 or math.isnan(found.p):
        return f"no p: {count(over.layouts, 'linking')} of the builds in {count(found.n, 'round')}"
    by = "the confidence sequence of Waudby-Smith et al." if peeked else f"t, {over.df} df"
    told = (
        f"mean over {count(over.layouts, 'pair')} of linkings in {count(found.n, 'round')}, {by}: "
        f"p = {p_text(found.p)}"
    )
    if math.isnan(over.sd_layout):
        return f"{told}; each linking in one round, so that the two are not told apart"
    spread, lo, hi, of_round = (
        numbers.percent(100 * sd)
        for sd in (over.sd_layout, over.sd_layout_lo, over.sd_layout_hi, over.sd_round)
    )
    return (
        f"{told}; SD between linkings {spread} [{lo}, {hi}], of a round {of_round}, all linkings "
        f"alike: p = {p_text(over.p_layout)}"
    )


def adjustment(compared: Compared, family: int) -> str:
    """What follows for the declared family."""
    told = f"; Holm over {family} declared comparisons: {p_text(compared.p_holm)}"
    if compared.p_equivalence is not None:
        told += f"; equivalence (the larger of two one-sided p): {p_text(compared.p_equivalence)}"
    return told


def profile_line(
    expected: Expected, share: float, per_transaction: float, mean_us: float | None
) -> str:
    """What was asked of a profile, and what was found."""
    name = "all waits" if expected.event == "*" else " and ".join(expected.events)
    of = "time waited" if expected.of == "waits" else "sessions' time"
    told, asked = [f"{numbers.percent(100 * share)} of the {of}"], []
    if expected.at_least is not None:
        asked.append(f"≥ {percent(expected.at_least)}")
    if expected.at_most is not None:
        asked.append(f"≤ {percent(expected.at_most)}")
    if expected.waits_per_transaction_at_least is not None:
        told.append(f"{per_transaction:.2f} a transaction")
        asked.append(f"≥ {expected.waits_per_transaction_at_least:g} a transaction")
    if mean_us is not None:
        told.append(f"{numbers.duration(mean_us)} on average")
    if expected.mean_us_at_least is not None:
        asked.append(f"≥ {expected.mean_us_at_least:g} µs")
    return f"{name}: {', '.join(told)} (wanted {', '.join(asked)})"


def answers(result: LadderResult) -> list[tuple[str, str]]:
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
    for workload in result.workloads:
        if workload.why_not:
            told.append(("not_verified", f"{workload.called} does not count: {workload.why_not}."))
    return told


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


def figure(value: float | None) -> str:
    """A figure beside the metrics: whole where it is large."""
    if value is None:
        return numbers.NONE
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.1f}"


def seen_sentences(result: LadderResult) -> list[str]:
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


def together_sentences(result: LadderResult) -> list[str]:
    """Arms that share a base, taken together."""
    called = {workload.name: workload.called for workload in result.workloads}

    def names(t: Together) -> str:
        return ", ".join(called[name] for name in t.workloads)

    return [
        f"{' and '.join(t.arms)} against {t.base} over {names(t)}, taken together: "
        f"{pct(t.mean_pct)}, p = {p_text(t.p)} (by dealing the rungs of each round anew: deltas "
        "that share a base are dependent, and their signs may not be counted as fresh coins; this "
        "p stands outside the declared family, and Holm's correction does not cover it)."
        for t in result.together
    ]


def caveats(result: LadderResult) -> list[str]:
    """What a reader must know of how the runs went, from the gates."""
    told = list(result.warnings)
    if result.quick:
        told.insert(0, "A quick study: short runs, few rounds. It shows sizes and settles little.")
    if result.state == "closed":
        told.append("The study was ended by hand: its intervals allow for a chosen moment.")
    for workload in result.workloads:
        for dropped in workload.dropped:
            reasons = "; ".join(dropped.reasons[:3])
            more = len(dropped.reasons) - 3
            tail = f"; and {more} more" if more > 0 else ""
            which = f"{workload.called}, {block(workload)} {dropped.round}"
            told.append(f"{which} was dropped: {reasons}{tail}.")
        told += [f"{workload.called}: {caveat}." for caveat in workload.caveats]
        for c in workload.compared:
            if c.over_layouts is not None:
                told.append(
                    f"{workload.called}: {c.arm} and {c.base} are builds, compared over "
                    f"{count(c.over_layouts.layouts, 'linking')} of each: the interval holds for "
                    "other linkings of the same objects, and more rounds alone do not narrow it."
                )
        if workload.floor is not None:
            told.append(f"{workload.called}: {_floor(result, workload, workload.floor)}.")
        if workload.stopped_on_width:
            told.append(
                f"{workload.called} was ended after {workload.rounds_kept} {block(workload)}s, "
                "when every interval was as narrow as asked for; such a rule looks at no effect, "
                "but stops where they happen to vary little, so that its intervals are a little "
                "too narrow."
            )
    return told


def _floor(result: LadderResult, workload: OnWorkload, floor: Compared) -> str:
    """What the floor says: how wide no difference at all is, and no more than that."""
    width = floor.effect.half_width_pct
    if width is None:
        few = count(floor.rounds, block(workload))
        return f"the floor cannot say how narrow a comparison gets, as {few} give no interval"
    told = f"{floor.base} against itself (the floor) is known to ± {width:.2f} %"
    if floor.effect.covers_zero:
        return told
    often = f"{100 * result.alpha:g} % of floors"
    return (
        f"{told}; it misses 0, as {often} do by chance: which is which was drawn by lot, so that "
        "nothing else can make it, and a floor that covers 0 shows no run to be sound"
    )


def dropped_by(dropped: Sequence[Dropped], by: Mapping[str, int], noun: str) -> list[str]:
    """Whether one variant was dropped more often than others, which gates must not do."""
    if not dropped:
        return []
    machine = sum(not block.variants for block in dropped)
    told = [f"{name} in {n}" for name, n in by.items()]
    told += [f"the machine under all of them in {machine}"] if machine else []
    return [f"{count(len(dropped), f'{noun}')} dropped; what did not pass: {', '.join(told)}"]


def remarks(by_variant: Mapping[str, Sequence[tuple[str, ...]]], noun: str) -> list[str]:
    """Where a variant's waits were not as stated, an example each."""
    return [
        f"the waits of {name} were not as stated in {count(len(told), noun)} ({told[0][0]}), which "
        "count all the same: a variant that counts no waits could not be held against it"
        for name, told in by_variant.items()
    ]


SIDE_BY_SIDE = (
    "Each protocol's own metric, and the time that its runs of all variants took, the proof apart. "
    "SE is the standard error of the blocks' mean, and SE in 1 min what it would be had the "
    "protocol had a minute: errors go with the square root of time. A half width needs six blocks "
    "or more."
)
_BY_ROUNDS = (
    "Whole runs are compared: what differs between runs beside the variant (where memory lies, "
    "what the machine's other guests do) is in the intervals as noise."
)
_BY_DUET = (
    "In a duet the servers take turns on the same processors: what a variant does to the caches "
    "falls on the others too, so that a difference may come out too small, and every transaction "
    "finds them colder than in a run alone; throughput is not measured."
)
_BY_UNITS = (
    "Units in one server share its locks, caches and background processes: what a variant does to "
    "other sessions falls on the base too and is not in the difference. Service time runs from a "
    "request's arrival to its answer, so that what is done while the client is waited for shows "
    "in CPU time only."
)
_ALWAYS = (
    "Variants of one server binary share their code's layout; variants of different binaries "
    "differ in it as well, which is in the interval only where both are built over layouts.",
    "One machine, one PostgreSQL, one load a workload: the figures carry no further than that.",
)


def not_shown(result: LadderResult) -> list[str]:
    """What the figures do not show, by the protocols that gave them."""
    kinds = {workload.protocol for workload in result.workloads}
    told = [(_BY_ROUNDS, "rounds"), (_BY_DUET, "duet"), (_BY_UNITS, "units")]
    return [
        *(sentence for sentence, kind in told if kind in kinds), *_rare(result), *_ALWAYS,
    ]  # fmt: skip


def _rare(result: LadderResult) -> list[str]:
    """What may befall some blocks though it befell none: a bound by the fewest that count."""
    counted = [w for w in result.workloads if any(c.rounds for c in w.compared)]
    if not counted:
        return []
    fewest = min(counted, key=lambda w: w.rounds_kept)
    bound = clopper_pearson(0, fewest.rounds_kept, 0.90)[1]
    noun = block(fewest)
    return [
        f"Intervals and equivalence are of what a variant does in every {noun} alike. A cost that "
        f"strikes now and then may be in none of them: what happened in 0 of "
        f"{count(fewest.rounds_kept, noun)} may happen in up to {100 * bound:.0f} % of {noun}s "
        "(95 %), however equivalent the variants were in these."
    ]


def protocols(result: LadderResult) -> list[str]:
    """How the runs were laid out, a sentence a protocol."""
    rounds, duet, n = result.protocol, result.protocol["duet"], len(result.variants) + 1
    played: dict[str, list[str]] = {}
    for workload in result.workloads:
        played.setdefault(workload.protocol, []).append(workload.stated)
    told = []
    if names := played.get("rounds"):
        told.append(
            f"{', '.join(names)}: rounds of {n} runs of {rounds['run']} s after "
            f"{rounds['warm_up']} s of warm-up, every variant once in random order and "
            f"{result.floor} twice (the floor); restart: {rounds['restart']}; seed {result.seed}."
        )
    if names := played.get("duet"):
        told.append(
            f"{', '.join(names)}: duet, {n} servers up together ({result.floor} twice, the floor), "
            f"one load alternating between them; sets of {n} rounds of {duet['run']} s after "
            f"{duet['warm_up']} s of warm-up, in which every variant plays every data directory "
            f"once, by lot; seed {result.seed}."
        )
    if names := played.get("units"):
        units = result.protocol["units"]
        told.append(
            f"{', '.join(names)}: {units['trials']} trials of {units['run']} s after "
            f"{units['warm_up']} s of warm-up, each in a server of its own, in which every "
            f"{units['unit']} draws its variant in permuted blocks ({result.floor} twice, the "
            f"floor); seed {result.seed}."
        )
    return told


def count(n: int, noun: str) -> str:
    """1 client, 2 clients."""
    return f"{numbers.count(n)} {noun}" if n == 1 else f"{numbers.count(n)} {noun}s"
