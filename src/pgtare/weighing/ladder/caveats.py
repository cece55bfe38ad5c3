"""What a reader must know about a study's figures: how runs went, what they cannot show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pgtare.estimate.study.attainable import rounds_for_level
from pgtare.kit.numbers import counted
from pgtare.weighing.ladder.records import Dropped
from pgtare.weighing.ladder.result import Compared, LadderResult, OnWorkload
from pgtare.weighing.ladder.rounds import NOT_SHOWN, how


def of_runs(result: LadderResult) -> list[str]:
    """What a reader must know of how the runs went, from the gates."""
    lines = list(result.warnings)
    if result.quick:
        lines.insert(0, "A quick study: short runs, few rounds. It shows sizes and settles little.")
    if result.state == "closed":
        lines.append("The study was ended by hand: its intervals allow for a chosen moment.")
    for workload in result.workloads:
        for dropped in workload.dropped:
            reasons = "; ".join(dropped.reasons[:3])
            more = len(dropped.reasons) - 3
            tail = f"; and {more} more" if more > 0 else ""
            which = f"{workload.name}, round {dropped.round}"
            lines.append(f"{which} was dropped: {reasons}{tail}.")
        lines += [f"{workload.name}: {caveat}." for caveat in workload.caveats]
        if workload.floor is not None:
            lines.append(f"{workload.name}: {_floor(result, workload, workload.floor)}.")
    return lines


def _floor(result: LadderResult, workload: OnWorkload, floor: Compared) -> str:
    """What the floor says: how wide no difference at all is, and no more than that."""
    width = floor.effect.half_width_pct
    if width is None:
        few = counted(floor.rounds, "round")
        text = f"the floor cannot say how narrow a comparison gets, as {few} give no interval"
        return text + _for_an_interval(result, workload, floor.rounds)
    text = f"{floor.base} against itself (the floor) is known to ± {width:.2f} %"
    if floor.effect.covers_zero:
        return text
    often = f"{100 * result.alpha:g} % of floors"
    return (
        f"{text}; it misses 0, as {often} do by chance: which is which was drawn by lot, so that "
        "nothing else can make it, and a floor that covers 0 shows no run to be sound"
    )


def _for_an_interval(result: LadderResult, workload: OnWorkload, blocks: int) -> str:
    """Why intervals are endless, and what the study file must say for them to be not."""
    needed = rounds_for_level(result.alpha, 1)
    if blocks >= needed or result.state == "closed":
        return ""
    text = (
        f": fewer than {needed} rounds exclude no effect at this level, however large, which is "
        "what [−∞, +∞] says"
    )
    if workload.rounds_planned >= needed:
        return f"{text}; more were planned, and dropped or not done"
    table = "quick" if result.quick else "protocol"
    return f"{text}; `rounds = {needed}` or more under [{table}] of the study file gives ends"


def dropped_by(dropped: Sequence[Dropped]) -> list[str]:
    """Whether one variant was dropped more often than others, which gates must not do.

    A block with several at fault is in each.
    """
    if not dropped:
        return []
    by = Counter(name for block in dropped for name in block.variants)
    machine = sum(not block.variants for block in dropped)
    failures = [f"{name} in {n}" for name, n in by.items()]
    failures += [f"the machine under all of them in {machine}"] if machine else []
    return [f"{counted(len(dropped), 'round')} dropped; what did not pass: {', '.join(failures)}"]


def remarks(by_variant: Mapping[str, Sequence[tuple[str, ...]]]) -> list[str]:
    """An example of each variant's waits that were not as stated."""
    return [
        f"the waits of {name} were not as stated in {counted(len(seen), 'round')} ({seen[0][0]}), "
        "which count all the same: a variant that counts no waits could not be held against it"
        for name, seen in by_variant.items()
    ]


def behind(by_variant: Mapping[str, Sequence[str]]) -> list[str]:
    """Which variants could not keep up with an open load, each with an example."""
    return [
        f"{name} could not keep up with the load in {counted(len(seen), 'round')} (it did "
        f"{seen[0]}): its latency is that of a queue that grows; a lower load shows what a "
        "transaction pays"
        for name, seen in by_variant.items()
    ]


_ALWAYS = (
    "Variants of one server binary share their code's layout; variants of different binaries "
    "differ in it as well, by a per cent or more, which is in no interval.",
    "One machine, one PostgreSQL, one load a workload: the figures carry no further than that.",
)


def not_shown(result: LadderResult) -> list[str]:
    """What the figures do not show."""
    return [NOT_SHOWN, *_rare(result), *_ALWAYS]


def _rare(result: LadderResult) -> list[str]:
    """What may befall some blocks though it befell none: a bound by the fewest that count."""
    shown = [w for w in result.workloads if any(c.rounds for c in w.compared)]
    if not shown:
        return []
    fewest = min(shown, key=lambda w: w.rounds_kept)
    bound = 1 - 0.05 ** (1 / max(fewest.rounds_kept, 1))
    return [
        "Intervals and equivalence are of what a variant does in every round alike. A cost that "
        f"strikes now and then may be in none of them: what happened in 0 of "
        f"{counted(fewest.rounds_kept, 'round')} may happen in up to {100 * bound:.0f} % of rounds "
        "(95 %), however equivalent the variants were in these."
    ]


def layout(result: LadderResult) -> str:
    """How the runs were laid out."""
    return f"{how(result.protocol, len(result.variants) + 1, result.floor)}; seed {result.seed}."
