"""Which instruments of one trial a bill counts, if their settings overlap, and which are on now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pgtare.weighing.bill.document import NowState
from pgtare.weighing.weigh.schema import ArmResult, WeighResult

#: The setting whose value auto means on as soon as a loaded library needs query ids.
_QUERY_ID = "compute_query_id"


def not_counted(arms: Sequence[ArmResult], result: WeighResult) -> dict[str, str]:
    """The arms that are not counted next to the others, and why, by name.

    arms: the dearest first. Of arms that set one thing to different values only one can be on: the
    one that is, or else the dearest. An arm whose settings another one has as well is in the
    other's cost. The other one of each reason is counted, so that no cost gets lost.
    """
    sets = {arm.name: changes(arm, result) for arm in arms}
    position = [arm.name for arm in result.arms].index
    kept: list[str] = []
    for arm in sorted(arms, key=lambda arm: state_now(arm, result) != "on"):
        if not any(_contradict(sets[arm.name], sets[other]) for other in kept):
            kept.append(arm.name)

    def covers(other: str, name: str) -> bool:
        mine, theirs = sets[name], sets[other]
        if not mine or other == name or not mine.items() <= theirs.items():
            return False
        return mine != theirs or position(other) < position(name)

    counted = [name for name in kept if not any(covers(other, name) for other in kept)]
    reasons = {}
    for arm in arms:
        if arm.name in counted:
            continue
        whole = next((other for other in counted if covers(other, arm.name)), None)
        if whole is not None:
            reasons[arm.name] = f"its settings are part of {whole}, which is counted"
        else:
            rival = next(other for other in counted if _contradict(sets[arm.name], sets[other]))
            reasons[arm.name] = f"it and {rival}, which is counted, cannot both be on"
    return reasons


def changes(arm: ArmResult, result: WeighResult) -> dict[str, str]:
    """Settings in which an arm differs from the base."""
    base = result.arms[0].settings if result.arms else {}
    return {name: value for name, value in arm.settings.items() if base.get(name) != value}


def state_now(arm: ArmResult, result: WeighResult) -> NowState:
    """Whether the server's own settings switch an arm on."""
    base = result.arms[0].settings if result.arms else {}
    settings = result.server.get("settings")
    changed = changes(arm, result)
    if not isinstance(settings, Mapping) or not changed:
        return "unknown"
    unmet = {n: value for n, value in changed.items() if not _matches(settings.get(n), value)}
    if not unmet:
        return "on"
    if settings.get(_QUERY_ID) == "auto" and unmet == {_QUERY_ID: "on"} != changed:
        return "on"  # what the other settings switch on has asked the server for query ids
    if any(_matches(settings.get(name), base.get(name)) for name in changed):
        return "off"
    return "unknown"


def _contradict(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether both set one thing, to different values."""
    return any(other.get(name, value) != value for name, value in one.items())


def _matches(found: object, wanted: str | None) -> bool:
    """Whether a setting as the server shows it (`0 ms`) has the wanted value (`0`)."""
    if not isinstance(found, str) or wanted is None:
        return False
    return wanted in (found, found.partition(" ")[0]) or found.replace(" ", "") == wanted
