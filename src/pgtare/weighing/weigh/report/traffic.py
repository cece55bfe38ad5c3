"""The load of a result in words: what drove the server, how fast, and whether it kept its rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pgtare.kit import numbers

#: A load this far off its requested rate did not keep it.
_OFF_RATE = 0.2


def describe(load: Mapping[str, Any], speed: bool = True) -> str:
    """One line: pgbench select-only, 1 client, 500 transactions/s (target 500/s).

    speed: with the target of the rate or that there was none.
    """
    if load.get("kind") == "none":
        application = load.get("application")
        return "the server's own traffic" + (f", application {application}" if application else "")
    if load.get("kind") == "outside":
        return f"from outside, {load.get('script')}"
    parts = [" ".join(part for part in (str(load.get("kind") or ""), _script(load)) if part)]
    if load.get("protocol") not in (None, "simple"):
        parts.append(f"{load['protocol']} protocol")
    clients = load.get("clients")
    if isinstance(clients, int):
        parts.append(f"{numbers.count(clients)} {'client' if clients == 1 else 'clients'}")
    tps = _number(load.get("median_tps"))
    if tps is not None:
        parts.append(f"{numbers.rate(tps)} transactions/s")
    text = ", ".join(part for part in parts if part) or "not recorded"
    if speed and load.get("kind") == "pgbench":
        text += f" ({_asked(load)})"
    failed = load.get("failed")
    return f"{text}; {numbers.count(failed)} failed" if isinstance(failed, int) and failed else text


def short(load: Mapping[str, Any]) -> str:
    """What drove the server, without its speed: pgbench select-only, 1 client."""
    return describe({k: v for k, v in load.items() if k not in ("median_tps", "failed")}, False)


def off_rate(load: Mapping[str, Any], seconds: float) -> str | None:
    """A warning if the load was a fifth or more off its rate, and not by chance.

    seconds: the length of the trial. pgbench draws the times between transactions at random.
    """
    tps, asked = _number(load.get("median_tps")), _number(load.get("rate_tps"))
    if tps is None or asked is None or asked <= 0 or seconds <= 0:
        return None
    chance = 1 + 5 * math.sqrt(asked / seconds)
    if abs(tps - asked) <= max(_OFF_RATE * asked, chance):
        return None
    return (
        f"The load did not keep its rate: {numbers.rate(tps)} transactions/s instead of "
        f"{numbers.rate(asked)}/s."
    )


def _asked(load: Mapping[str, Any]) -> str:
    asked = _number(load.get("rate_tps"))
    if asked is None:
        return "full speed"
    text = f"target {numbers.rate(asked)}/s"
    headroom = load.get("headroom")
    if not isinstance(headroom, Mapping):
        return text
    share, saturation = _number(headroom.get("share")), _number(headroom.get("saturation_tps"))
    if share is None or saturation is None:
        return text
    part = "half" if share == 0.5 else numbers.percent(100 * share)
    return f"{text}; {part} of {numbers.rate(saturation)}/s at saturation"


def _script(load: Mapping[str, Any]) -> str:
    """The built-in script's name, or the names of files with their weights if those differ."""
    given = load.get("script")
    if not isinstance(given, list):
        return str(given or "")
    pairs = [(path or weight, weight) for path, _, weight in (s.rpartition("@") for s in given)]
    equal = len({weight for _, weight in pairs}) == 1
    return " + ".join(
        PurePath(path).name + ("" if equal else f" (weight {weight})") for path, weight in pairs
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
