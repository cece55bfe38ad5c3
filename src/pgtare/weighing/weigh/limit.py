"""Whether instruments stay below a limit: when a trial may stop, what it decided, and a summary."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pgtare.errors import UsageError
from pgtare.estimate.sequential import MIN_BLOCKS, width_reached
from pgtare.estimate.trial.bursts import DISTURBED_SOME
from pgtare.estimate.trial.design import LEAST_BATCHES
from pgtare.estimate.trial.results import Live, LiveArm
from pgtare.estimate.trial.verdict import ALPHA
from pgtare.kit import files, numbers
from pgtare.kit.terminal_text import plain
from pgtare.weighing.instruments.arms import union
from pgtare.weighing.instruments.model import TOGETHER, Chosen, FlagRule
from pgtare.weighing.weigh.report import alarms, wording
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.schema import ArmResult, Limit, WeighResult

State = Literal["below", "above", "undecided"]

#: Exit statuses of a trial that has limits.
BELOW, ABOVE, UNDECIDED = 0, 10, 11
#: No limit is decided on fewer seconds, or blocks.
_LEAST_S, _LEAST_BLOCKS = 5.0, 30


def with_together(chosen: Sequence[Chosen]) -> tuple[Chosen, ...]:
    """The instruments, and one more arm with all of them on: single costs do not add up.

    Raises UsageError if two of them need one setting in two ways.
    """
    if len(chosen) < 2:
        raise UsageError("--budget is for several instruments together: name two or more")
    settings = union(
        ((choice.name, choice.settings) for choice in chosen),
        "{} and {} cannot be on together: the one sets {name} = {}, the other {}",
    )
    base = {name: value for choice in chosen for name, value in choice.base.items()}
    # what must not be seen where one is on alone may well be seen with all of them
    rules = tuple(
        rule
        for choice in chosen
        for rule in choice.rules
        if not (isinstance(rule, FlagRule) and rule.expect == "none")
    )
    return (*chosen, Chosen(TOGETHER, settings, base, rules))


def limits_of(request: Request) -> dict[str, float]:
    """The limits of the instruments, or of all servers but the first, as shares, by name."""
    names = [choice.name for choice in request.chosen]
    names += [server.name for server in request.servers[1:]]
    limits = {name: request.budget if name == TOGETHER else request.at_most for name in names}
    return {name: limit for name, limit in limits.items() if limit is not None}


def reason_to_stop(
    request: Request, now: Live, seconds: float, *, held_up: bool = False
) -> Literal["precision", "decision"] | None:
    """Why a trial may stop before its time, None if it may not.

    held_up: bursts are held up so often that little is decided; it may still become less.
    """
    waiting = [arm.waiting for arm in now.arms if arm.waiting is not None]
    narrow = request.precision is not None and width_reached(
        (arm.half_width_pct for arm in (*now.arms, *waiting)),
        100 * request.precision,
        now.blocks,
        seconds,
        LEAST_BATCHES if request.servers else MIN_BLOCKS,
    )
    if narrow:
        return "precision"
    limits = limits_of(request)
    if not decided(now, limits, seconds, _least(request)):
        return None
    wrong = held_up and (request.servers or "above" in _states(now, limits).values())
    return None if wrong else "decision"


def decided(
    now: Live, limits: dict[str, float], seconds: float, least: int = _LEAST_BLOCKS
) -> bool:
    """Whether a trial may stop: one arm is shown to be above its limit, or all to be below.

    least: the fewest blocks for that.
    """
    if not limits or not _enough(now, seconds, least):
        return False
    states = list(_states(now, limits).values())
    return "above" in states or all(state == "below" for state in states)


def _least(request: Request) -> int:
    return LEAST_BATCHES if request.servers else _LEAST_BLOCKS


def _enough(now: Live, seconds: float, least: int) -> bool:
    return seconds >= _LEAST_S and now.blocks >= least


def _states(now: Live, limits: dict[str, float], off_pct: float = 0.0) -> dict[str, State]:
    """Of each arm with a limit, by intervals that hold at any time.

    That all are below is shown if each is, at 5 %. That one is above needs the error shared out.
    off_pct: by how much the control misses 0.
    """
    arms = {arm.name: arm for arm in now.arms}
    return {name: _state(arms[name], 100 * limit, off_pct) for name, limit in limits.items()}


def _state(arm: LiveArm, limit_pct: float, off_pct: float) -> State:
    if any(each.least_pct - off_pct > limit_pct for each in _loops(arm)):
        return "above"
    return "below" if _most_pct(arm) + off_pct < limit_pct else "undecided"


def _most_pct(arm: LiveArm) -> float:
    return max(max(each.body_pct.hi, each.most_pct) for each in _loops(arm))


def _loops(arm: LiveArm) -> list[LiveArm]:
    return [arm, *([arm.waiting] if arm.waiting is not None else [])]


@dataclass(frozen=True)
class Ended:
    """The look that ended a trial, and one at all of the data but what was still open then.

    What the first shows stands, as its intervals hold at any time. But it did not see transactions
    that were still open: what these add must leave an arm below its limit.
    """

    decided: Live
    closed: Live


def with_limits(
    result: WeighResult, request: Request, last: Live, ended: Ended | None = None
) -> WeighResult:
    """The result with what was decided. last: a look at all of the data."""
    limits, off_pct = limits_of(request), _off_pct(result)
    states = _states(last, limits, off_pct)
    if not _enough(last, result.design.duration_s, _least(request)):
        states = dict.fromkeys(states, "undecided")
    arms = {arm.name: arm for arm in result.arms}
    seen = {arm.name: arm for arm in last.arms}
    if ended is not None:
        states |= _stated_by(ended, seen, limits, off_pct)
    found = []
    for name, limit in limits.items():
        state = states[name] if _stands(arms[name], states[name]) else "undecided"
        bursts = seen[name].waiting is None or seen[name].least_pct - off_pct > 100 * limit
        waiting = state == "above" and not bursts
        needs_waiting = waiting or state == "below"
        if _reads_wrong(state, result) or (
            needs_waiting and not _waiting_stands(arms[name], result)
        ):
            state, waiting = "undecided", False
        found.append(Limit(name=name, at_most_pct=100 * limit, state=state, waiting=waiting))
    return result.model_copy(update={"limits": found})


def _stated_by(
    ended: Ended, seen: Mapping[str, LiveArm], limits: dict[str, float], off_pct: float
) -> dict[str, State]:
    """What the look that ended the trial shows, with what was open added. seen: all of the data."""
    closed = {arm.name: arm for arm in ended.closed.arms}
    decided = {arm.name: arm for arm in ended.decided.arms}
    found = _states(ended.decided, limits, off_pct)
    for name, state in list(found.items()):
        added_pct = max(_most_pct(seen[name]) - _most_pct(closed[name]), 0.0)
        most_pct = _most_pct(decided[name]) + added_pct + off_pct
        if state == "undecided" or (state == "below" and not most_pct < 100 * limits[name]):
            del found[name]
    return found


def _off_pct(result: WeighResult) -> float:
    """By how much the control misses 0, by its answer or total, in percent; 0 if it does not."""
    base_us, off_us = result.baseline.body_mean_us or math.nan, [0.0]
    for arm in wording.of_role(result, "control"):
        if arm.answer and arm.effect:
            tests = ((arm.p_adjusted, arm.answer.us), (arm.p_total_adjusted, arm.effect.total_us))
            off_us += [abs(us.estimate or 0.0) for p, us in tests if p is not None and p < ALPHA]
    return 100 * max(off_us) / base_us


def _stands(arm: ArmResult, state: State) -> bool:
    """Whether a state stands after the whole analysis: proof, control, failures, settling."""
    answer = wording.answer_of(arm)
    if answer is None or wording.withheld(answer):
        return False
    if state == "above":
        return not answer.at_most
    more = answer.at_most if answer.verdict == "gain" else answer.at_least
    return not (more or wording.unsettled(answer))


def _waiting_stands(arm: ArmResult, result: WeighResult) -> bool:
    """Whether that of a session that waits does, from outside."""
    answer = wording.answer_of(arm)
    if result.design.outside is None:
        return True
    return answer is not None and answer.waiting_us is not None and answer.waiting_stands


def _reads_wrong(state: State, result: WeighResult) -> bool:
    """Whether bursts were held up so often that costs read high, and differences of servers wrong.

    What reads high can still be below.
    """
    outside = result.design.outside
    disturbed = outside.disturbed_pct if outside is not None else None
    if disturbed is None or disturbed <= DISTURBED_SOME:
        return False
    return state == "above" or result.compares_servers


def exit_status(result: WeighResult) -> int:
    """0: all are shown to be below; 10: one is shown to be above; 11: undecided."""
    states = [limit.state for limit in result.limits]
    if "above" in states:
        return ABOVE
    return BELOW if states and all(state == "below" for state in states) else UNDECIDED


def write_summary(result: WeighResult, path: Path) -> None:
    """A table in Markdown, for a pull request. Raises MeasurementError if it cannot be written."""
    files.write_text(path, "\n".join(_summary(result)) + "\n")


_MARKS = {"below": "below the limit", "above": "**over the limit**", "undecided": "not decided"}


def _summary(result: WeighResult) -> Iterator[str]:
    headlines = _HEADLINES
    if result.compares_servers:
        headlines = _OF_SERVERS
    elif all(limit.name == TOGETHER for limit in result.limits):
        headlines = _TOGETHER
    yield f"**{headlines[exit_status(result)]}**"
    yield ""
    yield _escaped(wording.subject(result))
    yield ""
    outside = result.design.outside is not None
    waits = ["if it waits, %"] if outside else []
    what = "server" if result.compares_servers else "instrument"
    heads = [what, "µs a transaction", "95 % interval", "%", *waits, "limit", ""]
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    arms = {arm.name: arm for arm in result.arms}
    for limit in result.limits:
        answer = wording.answer_of(arms[limit.name])
        cells = (
            _escaped(limit.name),
            numbers.estimate(answer.us if answer else None),
            numbers.bounds(answer.us if answer else None),
            numbers.estimate(answer.pct if answer else None),
            *([numbers.plus_minus(answer.waiting_pct if answer else None)] if outside else []),
            f"{limit.at_most_pct:g} %",
            _MARKS[limit.state] + (", if it waits" if limit.waiting else ""),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    for note in [*alarms.alarms(result), *wording.notes(result)]:
        yield f"- {_escaped(note)}"


_HEADLINES = {
    BELOW: "Every instrument costs less than its limit.",
    ABOVE: "An instrument costs more than its limit.",
    UNDECIDED: "Whether all instruments stay below their limits is not decided.",
}
_OF_SERVERS = {
    BELOW: "No server is slower than the first by its limit or more.",
    ABOVE: "A server is slower than the first by more than its limit.",
    UNDECIDED: "Whether all servers stay within their limits is not decided.",
}
_TOGETHER = {
    BELOW: "All instruments together cost less than the budget.",
    ABOVE: "All instruments together cost more than the budget.",
    UNDECIDED: "Whether all instruments together stay below the budget is not decided.",
}


def _escaped(text: str) -> str:
    """Without what Markdown, HTML or a terminal would take for their own."""
    marked = re.sub(r"([\\`*_|\[\]])", r"\\\1", plain(text))
    return " ".join(html.escape(marked, quote=False).split())
