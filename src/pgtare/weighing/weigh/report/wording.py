"""What a result says in sentences; the terminal and the page print the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pgtare.estimate.trial.answer import WITHHOLD, ReasonKind
from pgtare.estimate.trial.verdict import CONTROL_OFF
from pgtare.kit import numbers
from pgtare.kit.numbers import with_bounds
from pgtare.weighing.instruments import statement_logging
from pgtare.weighing.weigh.outside_schema import OutsideInfo, ServerInfo, WatcherInfo, WindowsInfo
from pgtare.weighing.weigh.report import contention, reason_words, traffic
from pgtare.weighing.weigh.schema import Answer, ArmResult, Baseline, Effect, Limit, WeighResult

_SHARED_LOCKS = (
    "Locks that every arm shares: if an instrument makes others wait, the base arm waits too "
    "(--unit both shows that)."
)
_LONG_EFFECTS = (
    "Effects that need more than 24 transactions to build up; slices show them (--unit slice)."
)
_OUTSIDE_LOCKS = (
    "What many sessions cost each other: one session was weighed (the server module sees all)."
)
_OUTSIDE_CPU = "Work put off until later or done by others, such as the logging process."
_ALWAYS_NOT_SHOWN = (
    "Work put off until after the answer or done by others, such as flushing statistics and the "
    "logging process; CPU per cycle shows the part in the same backend.",
    "Receiving the request and sending the answer, and waiting for a processor before them: to its "
    "client, an instrument that leaves cold caches behind costs some 5 to 30 % more.",
)

_DAY_S = 86_400
#: A control with a smaller p misses 0; one that is off has a p below CONTROL_OFF.
_ALPHA = 0.05
_NAMED = 3  # instruments in one sentence, at most


def not_shown(result: WeighResult) -> tuple[str, ...]:
    """What the figures do not show; slices show what sessions do to each other."""
    if result.design.outside is not None:
        return (_OUTSIDE_LOCKS, _OUTSIDE_CPU)
    if result.design.unit == "run":
        return (_SHARED_LOCKS, _LONG_EFFECTS, *_ALWAYS_NOT_SHOWN)
    return _ALWAYS_NOT_SHOWN


def by_cost(arms: list[ArmResult]) -> list[ArmResult]:
    """The arms in descending order of their costs, those without a figure last."""

    def key(arm: ArmResult) -> tuple[bool, float]:
        answer = answer_of(arm)
        value = answer.us.estimate if answer else None
        return (value is None, -(value or 0.0))

    return sorted(arms, key=key)


def of_role(result: WeighResult, *roles: str) -> list[ArmResult]:
    """The arms of these roles, in the order of the design."""
    return [arm for arm in result.arms if arm.role in roles]


def answer_of(arm: ArmResult) -> Answer | None:
    """The arm's answer, or None if it may not be shown: without proof there is no number."""
    return None if arm.verdict == "not_verified" else arm.answer


def figures(arm: ArmResult) -> Effect | None:
    """What else is known of it, or None likewise."""
    return None if arm.verdict == "not_verified" else arm.effect


PROOF_STATES = {
    "active": "seen at work",
    "idle": "in force, with nothing to do",
    "own": "in force, but no proof is known for arms of your own",
    "unknown": "in force, but no proof is known",
    "unseen": "in force, but nothing shows from outside that it worked",
    "missing": "not seen at work",
}


def proof_state(arm: ArmResult) -> str:
    """A key of PROOF_STATES, where an unproven one is not idle; "" without a proof."""
    if arm.proof is None:
        return ""
    return arm.proof.unproven or arm.proof.state


def ended_by_server(result: WeighResult) -> bool:
    """Whether the server ended the trial, so that nothing may be said of any arm."""
    return result.design.stopped_by == "server"


def subject(result: WeighResult) -> str:
    """What was weighed: server, load, length, transactions."""
    version, design = result.server_version, result.design
    server = f"PostgreSQL {version}" if version else "PostgreSQL"
    if str(result.server.get("kind") or "").startswith("embedded"):
        server = f"embedded {server}"
    seen = sum(arm.n + arm.excluded for arm in result.arms)
    outside = design.outside
    if outside is not None:
        if outside.servers:
            server = " and ".join(
                f"{one.name} (PostgreSQL {one.version})" for one in outside.servers
            )
        return (
            f"{server}, weighed {traffic.short(result.load)}: {numbers.seconds(design.duration_s)},"
            f" {numbers.count(seen)} transactions{_of_loops(result.baseline, outside)}"
        )
    return (
        f"{server}, {traffic.short(result.load)}: "
        f"{numbers.seconds(design.duration_s)}, {numbers.count(seen)} transactions of "
        f"{numbers.duration(result.baseline.body_mean_us)}"
    )


def _of_loops(baseline: Baseline, outside: OutsideInfo) -> str:
    """How long a transaction took in either loop, as far as that is known."""
    loops = ((baseline.body_mean_us, "in bursts"), (outside.waiting_us, "with pauses"))
    known = [f"{numbers.duration(us)} {how}" for us, how in loops if us is not None]
    return f" of {', '.join(known)}" if known else ""


def table_title(result: WeighResult) -> str:
    """What the figures of the table are."""
    if result.windows is not None:
        return "while the whole server has it on, per transaction of a session that never waits"
    if result.compares_servers:
        return f"compared with {result.arms[0].name}, per transaction in a session that never waits"
    if result.design.outside is not None:
        return "when left on, per transaction of a session that never waits"
    return "when left on, per transaction"


def verdict_cell(arm: ArmResult, result: WeighResult) -> str:
    """The answer in two or three words."""
    if arm.role == "control":
        return _control_cell(arm)
    answer = answer_of(arm)
    if answer is None:
        return "not verified"
    servers = result.compares_servers
    if answer.verdict in ("cost", "gain"):
        cost, gain = ("slower", "faster") if servers else ("cost", "saves time")
        word = cost if answer.verdict == "cost" else gain
        if answer.at_least:
            return f"{word}, at least this"
        return f"{word}, at most this" if answer.at_most else word
    if answer.verdict == "equivalent":
        none = "same within" if servers else "none over"
        return f"{none} {result.design.margin_pct:g} %"
    return _at_most(answer, " slower" if servers else "")


def _control_cell(arm: ArmResult) -> str:
    answer = answer_of(arm)
    if answer is None or not numbers.bounded(answer.us):
        return numbers.NONE
    if control_off(arm):
        return "off"
    return "misses 0" if control_misses_0(arm) else "sound"


def _at_most(answer: Answer, than: str) -> str:
    """What an undecided cost is at most; nothing if it has not settled, or could have been moved.

    than: what follows the percentage.
    """
    hi = answer.most_pct
    if answer.pct.hi is None or withheld(answer):
        return "no answer"
    if hi is None or unsettled(answer):
        return "undecided"
    return f"at most {rounded_up(hi)} %{than}" if hi > 0 else "undecided"


def withheld(answer: Answer) -> bool:
    """Whether something else could have moved the figure, so that its bounds say nothing."""
    return any(reason.kind in WITHHOLD for reason in answer.reasons)


def unsettled(answer: Answer) -> bool:
    """Whether it still changes within a run, and is no cost or gain, so that it has no bound."""
    return any(reason.kind is ReasonKind.UNSETTLED for reason in answer.reasons)


def notes(result: WeighResult) -> list[str]:
    """The lines below the table: what must be known, and no more."""
    if ended_by_server(result):
        return warnings(result)
    found = [
        _limits(result),
        _outside(result),
        *map(_watcher, result.windows.watchers if result.windows else ()),
        _proofs(result),
        _logging(result),
        _detectable(result),
        _deciding(result),
        _beginnings(result),
        _contention(result),
        _idle(result),
        _tails(result),
        _population(result),
    ]
    return [line for line in found if line] + warnings(result)


def _limits(result: WeighResult) -> str:
    """What was decided, in one line; empty without limits."""
    if not result.limits:
        return ""
    parts = []
    for state, words in (("above", "over"), ("undecided", "not decided"), ("below", "below")):
        listed = [
            f"{limit.name} ({limit.at_most_pct:g} %{_more_on(limit, result)})"
            for limit in result.limits
            if limit.state == state
        ]
        if listed:
            parts.append(f"{words}: {', '.join(listed)}")
    return (
        f"Limits: {'; '.join(parts)}. All intervals are those that hold at any time, as they were "
        "looked at while it ran."
    )


def _more_on(limit: Limit, result: WeighResult) -> str:
    """What else there is to say of a limit."""
    if limit.waiting:
        return ", if it waits"
    answer = next(answer_of(arm) for arm in result.arms if arm.name == limit.name)
    if limit.state != "undecided" or answer is None or withheld(answer):
        return ""
    open_tail = answer.most_pct is None and answer.waiting_stands
    below = answer.pct.hi is not None and answer.pct.hi < limit.at_most_pct
    return f"; {reason_words.TAIL_OPEN}" if open_tail and below else ""


def _outside(result: WeighResult) -> str:
    """What an answer from outside is an answer to."""
    found = result.design.outside
    if found is None:
        return ""
    if found.windows is not None:
        return _windows(found, found.windows)
    if found.servers:
        return (
            "This is what these statements take in sessions that never wait for their client; "
            f"each lasted {numbers.seconds(_session_s(result))}{_connecting(found)}. "
            f"{_pauses(found, '“If it waits”', '. ')}{_differing(found.servers)}"
        )
    return (
        "This is what these statements pay in one warm session that never waits for its client. "
        "An application’s sessions wait, and their caches cool"
        f"{_pauses(found, ': “if it waits”')}."
    )


def _pauses(outside: OutsideInfo, before: str, after: str = "") -> str:
    """How long the pauses of the other loop were; nothing if it has not run."""
    if outside.pause_us is None:
        return ""
    return f"{before}, in µs, has pauses of {numbers.duration(outside.pause_us)}{after}"


def _windows(outside: OutsideInfo, windows: WindowsInfo) -> str:
    return (
        "This is what these statements pay in one session of pgtare’s own, in windows of "
        f"{numbers.seconds(windows.window_s)}{_pauses(outside, '; “if it waits”')}. What acts less "
        "often than every window is not rightly in it. What a watcher takes itself is not in it:"
    )


def _logging(result: WeighResult) -> str:
    """What a line in the log costs others, on a server that has a logging process."""
    if result.server.get("kind") != "running server":
        return ""
    base = result.arms[0].settings
    names = [
        arm.name
        for arm in of_role(result, "instrument")
        if answer_of(arm) is not None
        and any(arm.settings.get(name) != base.get(name) for name in statement_logging.NAMES)
    ]
    if not names:
        return ""
    return (
        f"Not in the figure of {', '.join(names)}: what the logging process and its disk take, and "
        "what sessions pay that have to wait for them."
    )


_TAKEN_BY = {
    "processor": "of one processor in the server’s processes",
    "active": "of one session’s time active on the server (sampled; its processor time cannot be "
    "seen from here)",
}


def _watcher(found: WatcherInfo) -> str:
    """What a watcher takes itself, on the server and in processes of its own.

    That is no part of what a transaction pays.
    """
    sessions = f" (sessions: {', '.join(found.sessions[:_NAMED])})" if found.sessions else ""
    if found.by == "unseen":
        server = "what it takes on the server is not seen: the role needs pg_monitor"
    elif found.lingered:
        ended = "let OFF end them" if found.kind == "commands" else "let it end them on SIGTERM"
        server = (
            "what it takes on the server is not known, as its sessions "
            f"({', '.join(found.lingered[:_NAMED])}) went on in windows without it: {ended}"
        )
    elif found.server_pct.estimate is None:
        server = "what it takes on the server is not known from so few windows"
    elif found.acted_in is not None:
        server = (
            f"{numbers.estimate(found.server_pct)} % {_TAKEN_BY[found.by]}{sessions}, all of it in "
            f"{found.acted_in} of its {found.windows} windows: by chance, or because it acts so "
            "seldom; a longer trial shows which"
        )
    elif not numbers.bounded(found.server_pct) and found.server_pct.estimate:
        server = (
            f"{numbers.estimate(found.server_pct)} % {_TAKEN_BY[found.by]}{sessions}, the same in "
            "each of its windows: no interval"
        )
    elif not numbers.bounded(found.server_pct):
        server = "nothing was seen of it on the server"
    else:
        server = f"{with_bounds(found.server_pct, '%')} {_TAKEN_BY[found.by]}{sessions}"
    parts = [server]
    if found.kind == "commands":
        parts.append("its own processes, which pgtare did not start, are not counted")
    if found.processes_pct is not None and numbers.bounded(found.processes_pct):
        parts.append(
            f"{with_bounds(found.processes_pct, '%')} of one processor in its own processes here"
        )
    elif found.processes_pct is not None and found.processes_pct.estimate is not None:
        parts.append(
            f"{numbers.estimate(found.processes_pct)} % of one processor in its own processes "
            "here, most of it in few windows: too few for an interval"
        )
    shared = ""
    if found.shared:
        advice = "; if they are its own, give it a name (application_name) and let them end with it"
        more = found.shared_pct
        share = (
            f" ({with_bounds(more, '%')} more while it was on)"
            if more and numbers.bounded(more)
            else ""
        )
        shared = (
            " Not in it: what these sessions took, which were there without it as well: "
            f"{', '.join(found.shared[:_NAMED])}{share}{advice if found.kind != 'setting' else ''}."
        )
    held = ""
    if found.held_up_pct.lo is not None and found.held_up_pct.lo > 0:
        least = rounded_down(found.held_up_pct.lo)
        held = f" It holds transactions up at least {least} % of the time."
    return f"{found.name} itself: {', and '.join(parts)}.{held}{shared}{_unseen(found)}"


def _unseen(found: WatcherInfo) -> str:
    """That nothing shows that a watcher acted in its windows at all."""
    sees = found.by != "unseen" and found.server_pct.lo is not None and found.acted_in is None
    took = [found.server_pct, *([found.processes_pct] if found.processes_pct else [])]
    if found.kind == "setting" or not sees or found.sessions or found.shared:
        return ""
    if any(one.lo is None or one.lo > 0 for one in took) or (found.held_up_pct.lo or 0) > 0:
        return ""
    return (
        " Nothing shows that it acted in its windows: if it acts less often than that, its cost is "
        "not in these figures; give its --period, or a longer --duration."
    )


def _connecting(found: OutsideInfo) -> str:
    if found.connect_s is None:
        return ""
    return f", and it took {numbers.duration(1e6 * found.connect_s)} to make all of them anew"


def _session_s(result: WeighResult) -> float:
    found = result.design.outside
    return min((found.session_s if found else None) or 0.0, result.design.duration_s)


def _differing(servers: Sequence[ServerInfo]) -> str:
    """Settings in which servers differ, the first few of them."""
    names = list(servers[0].settings)
    if not names:
        return "Their settings are alike."
    named = ", ".join(
        f"{name} ({' / '.join(one.settings.get(name) or numbers.NONE for one in servers)})"
        for name in names[:_NAMED]
    )
    more = f" and {len(names) - _NAMED} more (--json)" if len(names) > _NAMED else ""
    return f"Their settings differ: {named}{more}."


def _contention(result: WeighResult) -> str:
    found = contention.figures(result)
    return contention.sentence(found) if found else ""


def _proofs(result: WeighResult) -> str:
    arms = of_role(result, "instrument")
    missing = [arm for arm in arms if arm.verdict == "not_verified"]
    lines = [f"{arm.name} is not verified: {reason_words.because(arm)}." for arm in missing]
    if result.compares_servers:
        return " ".join(lines)
    seen = [arm for arm in arms if proof_state(arm) == "active"]
    if seen and len(seen) == len(arms):
        lines.insert(0, "It was seen working." if len(arms) == 1 else "All were seen working.")
    elif seen:
        lines.insert(0, f"Seen working: {', '.join(arm.name for arm in seen)}.")
    unseen = [arm for arm in arms if proof_state(arm) == "unseen"]
    if unseen:
        lines.append(f"In force, but from outside nothing shows that it worked: {_names(unseen)}.")
    return " ".join(lines)


def _detectable(result: WeighResult) -> str:
    us = result.design.mde_us
    if us is None or not math.isfinite(us):
        return ""
    share = "" if result.design.mde_pct is None else f" ({numbers.percent(result.design.mde_pct)})"
    return (
        f"A cost under {numbers.plain(us, numbers.decimals(us))} µs{share} could be missed in "
        f"{numbers.seconds(result.design.duration_s)}."
    )


def _deciding(result: WeighResult) -> str:
    """What would decide the instruments that have no answer yet."""
    if result.limits:
        return ""
    by_time: list[ArmResult] = []
    others: dict[str, list[ArmResult]] = {}
    needed_s = 0.0
    for arm in by_cost(of_role(result, "instrument")):
        if not arm.answer or arm.verdict != "inconclusive" or withheld(arm.answer):
            continue
        if arm.answer.needed_s:
            by_time.append(arm)
            needed_s = max(needed_s, arm.answer.needed_s)
        else:
            others.setdefault(reason_words.because(arm), []).append(arm)
    found = [f"{_names(arms)} ({why})" for why, arms in others.items()]
    if by_time:
        several = needed_s <= _DAY_S and len(of_role(result, "instrument")) > 2
        fewer = ", or fewer instruments at a time" if several else ""
        found.insert(0, f"{_names(by_time)}; {_may_decide(needed_s)}{fewer}")
    return " ".join(f"Undecided: {text}." for text in found)


def _may_decide(seconds: float) -> str:
    """How much longer it may take, to two significant digits, rounded up."""
    if seconds > _DAY_S:
        return "it may take more than a day to decide"
    unit = 10 ** max(math.floor(math.log10(max(seconds, 1.0))) - 1, 0)
    about = numbers.seconds(max(1, math.ceil(seconds / unit)) * unit)
    return f"about {about} more may decide it"


def _names(arms: list[ArmResult]) -> str:
    names = [arm.name for arm in arms[:_NAMED]]
    more = len(arms) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _beginnings(result: WeighResult) -> str:
    """Instruments whose first transactions cost something else than the answer says."""
    found = []
    for arm in by_cost(of_role(result, "instrument")):
        answer, effect = answer_of(arm), figures(arm)
        if answer is None or effect is None or effect.switched_on_us is None:
            continue
        first, us, half = effect.switched_on_us, answer.us.estimate, numbers.half_width(answer.us)
        if first.estimate is None or first.lo is None or first.hi is None:
            continue
        if us is None or half is None or first.lo <= us <= first.hi:
            continue
        if abs(first.estimate - us) > half:
            found.append(f"{arm.name} {numbers.estimate(first)} µs")
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        f"In the first transactions after it was switched on: {', '.join(found[:_NAMED])}{more} "
        "(cold caches)."
    )


def _idle(result: WeighResult) -> str:
    idle = [arm for arm in of_role(result, "instrument") if proof_state(arm) == "idle"]
    if not idle:
        return ""
    return f"This load gave nothing to do to {_names(idle)}: the figure is of its settings alone."


def _tails(result: WeighResult) -> str:
    found = []
    for arm in by_cost(of_role(result, "instrument")):
        answer, effect = answer_of(arm), figures(arm)
        if answer is None or effect is None or not numbers.bounded(effect.excess_us):
            continue
        shown = any(reason.kind is ReasonKind.TOTAL_DIFFERS for reason in answer.reasons)
        if shown or not numbers.covers_zero(effect.excess_us):
            found.append(f"{arm.name} {numbers.estimate(effect.excess_us)} µs")
    if not found:
        return ""
    return f"Slow transactions change the average: {', '.join(found[:_NAMED])}."


def _population(result: WeighResult) -> str:
    """Of whose transactions the answers are, on the server's own traffic."""
    design = result.design
    if result.load.get("kind") != "none":
        return ""
    parts = [f"{numbers.counted(design.sessions, 'session')} took part"]
    if design.transactions_took_part_pct is not None:
        share = numbers.percent(design.transactions_took_part_pct)
        parts.append(f"with {share} of the database's transactions")
    if design.first_share_pct:
        first = numbers.percent(design.first_share_pct)
        parts.append(f"{first} of them the first of new sessions")
    return f"{', '.join(parts)}."


def left_out(result: WeighResult) -> list[str]:
    """Instruments that were wanted and could not be weighed."""
    return list(result.design.outside.left_out) if result.design.outside is not None else []


def answers(result: WeighResult) -> list[tuple[ArmResult, str]]:
    """One sentence an instrument, the dearest first: the answer, and why."""
    arms = by_cost(of_role(result, "instrument"))
    if ended_by_server(result):
        return [(arm, f"{arm.name}: no figure, as the trial ended early.") for arm in arms]
    return [(arm, _sentence(arm, result)) for arm in arms]


def _sentence(arm: ArmResult, result: WeighResult) -> str:
    answer, why = answer_of(arm), reason_words.because(arm)
    if answer is None:
        return f"{arm.name}: not verified, so no figure; {why}."
    cell = verdict_cell(arm, result)
    more = ""
    if answer.verdict == "inconclusive" and answer.needed_s is not None:
        more = f"; {_may_decide(answer.needed_s)}"
    return (
        f"{arm.name}: {with_bounds(answer.us, 'µs')}, {numbers.estimate(answer.pct)} %: {cell} "
        f"({why}{more})."
    )


def control_misses_0(arm: ArmResult) -> bool:
    """Whether the control misses 0 by its body and total together, as the verdicts take it."""
    p = control_p(arm)
    return p is not None and p < _ALPHA


def control_off(arm: ArmResult) -> bool:
    """Whether the control is so far off by them that no arm gets a verdict."""
    p = control_p(arm)
    return p is not None and p < CONTROL_OFF


def control_p(arm: ArmResult) -> float | None:
    """The p of a control's body and total together."""
    return min((p for p in (arm.p_adjusted, arm.p_total_adjusted) if p is not None), default=None)


def warnings(result: WeighResult) -> list[str]:
    """The result's warnings, without what the alarms say, and whether the load kept its rate."""
    off_rate = traffic.off_rate(result.load, result.design.duration_s)
    return [*result.warnings, off_rate] if off_rate else list(result.warnings)


def rounded_up(value: float) -> str:
    """Two significant digits, rounded up: a bound must not look smaller than it is."""
    return _rounded(value, math.ceil, -1e-9)


def rounded_down(value: float) -> str:
    """The same of a bound that must not look larger than it is."""
    return _rounded(value, math.floor, 1e-9)


def _rounded(value: float, whole: Callable[[float], int], slack: float) -> str:
    if not value > 0:
        return numbers.plain(value, 0)
    places = 1 - math.floor(math.log10(value))
    scaled = whole(value * 10.0**places + slack) / 10.0**places
    return f"{scaled:,.{max(places, 0)}f}"
