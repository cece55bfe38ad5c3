"""From the user's request to the arms of a trial: ad hoc arms, and combining all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pgtare.errors import UsageError
from pgtare.estimate.trial.design import Arm
from pgtare.weighing.instruments.catalogue import Catalogue
from pgtare.weighing.instruments.model import (
    NAME,
    REPORTED_SETTINGS,
    RESERVED_NAMES,
    Chosen,
    setting_name,
)

_ASSIGNMENT = re.compile(
    r"\s*(?P<name>[^\s=,']+)\s*=\s*(?:'(?P<quoted>(?:[^']|'')*)'|(?P<bare>[^,']*?))\s*(?P<end>,|$)"
)
_QUOTED = re.compile(r"'(?:[^']|'')*'")
#: No setting has such a name.
_OF_CONNECTIONS = re.compile(
    r"postgres(?:ql)?://|(?<![\w.])(?:host|hostaddr|dbname|user|service|passfile|(?:ssl)?password)\s*=",
    re.IGNORECASE,
)
_TRUE, _FALSE = {"on", "true", "yes"}, {"off", "false", "no"}


def parse_arm(spec: str) -> Chosen:
    """An ad hoc arm from `name: setting=value, setting='a value'` ('' is a quote inside quotes).

    Raises UsageError if the name, a setting's name or the form is not right, if a setting
    is given twice, or if nothing is set.
    """
    name, colon, body = spec.partition(":")
    name = name.strip()
    if not colon:
        raise UsageError(f"--arm {spec!r}: write 'name: setting=value, setting=value'")
    if not NAME.fullmatch(name):
        raise UsageError(f"--arm {spec!r}: the name may hold only a-z, 0-9 and _")
    if name in RESERVED_NAMES:
        raise UsageError(f"--arm {spec!r}: the name {name!r} is taken by the trial itself")
    if not body.strip():
        raise UsageError(f"--arm {name}: it sets nothing; write '{name}: setting=value'")
    settings: dict[str, str] = {}
    at = 0
    while True:
        found = _ASSIGNMENT.match(body, at)
        if found is None:
            raise UsageError(f"--arm {name}: cannot read {body[at:].strip()!r} as setting=value")
        try:
            setting = setting_name(found["name"], reported=True)
        except ValueError as ex:
            raise UsageError(f"--arm {name}: {ex}") from ex
        if setting in settings:
            raise UsageError(f"--arm {name}: {setting} is given twice")
        if found["quoted"] is None and not found["bare"]:
            raise UsageError(f"--arm {name}: {setting} has no value; write '' for an empty one")
        quoted = found["quoted"]
        settings[setting] = found["bare"] if quoted is None else quoted.replace("''", "'")
        at = found.end()
        if not found["end"]:
            return Chosen(name, settings)


def choose(
    catalogue: Catalogue, instruments: Sequence[str], adhoc: Sequence[str] = ()
) -> list[Chosen]:
    """The arms requested by name (`instrument`, `instrument/variant`) and by `--arm`, in order.

    Raises UsageError for unknown names, bad ad hoc arms and names used twice. What is wrong is
    repeated, but not a connection string: it may hold a password.
    """
    for option, specs in (("--arm", adhoc), ("an instrument", instruments)):
        if any(_OF_CONNECTIONS.search(_QUOTED.sub("", spec)) for spec in specs):
            raise UsageError(
                f"{option} looks like a connection string: give it with --dsn, as in --dsn "
                "'host=db dbname=app'"
            )
    chosen = [catalogue.choose(spec) for spec in instruments] + [parse_arm(a) for a in adhoc]
    names = [c.name for c in chosen]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"there would be two arms called {name!r}: choose it once")
    return chosen


def refuse_reported(chosen: Iterable[Chosen]) -> None:
    """Raise UsageError for a setting whose change the clients of an application's sessions see."""
    for choice in chosen:
        for setting in sorted(REPORTED_SETTINGS & choice.settings.keys()):
            raise UsageError(
                f"--arm {choice.name}: clients of an application see each change of {setting}: "
                "weigh it in a session of pgtare's own, with pgtare weigh --outside"
            )


def combine(chosen: Sequence[Chosen], inject_ns: Sequence[int] = ()) -> list[Arm]:
    """The arms of a trial: base, control, one for each choice, and one for each injected delay.

    The base arm sets the union of all base settings, so that every chosen instrument is truly
    off; each instrument's arm is that union with its own settings over it. inject_ns: busy-waits
    to add, in ns (> 0).

    Raises UsageError if two base arms disagree, an arm would equal the base, or nothing is
    chosen.
    """
    if not chosen and not inject_ns:
        raise UsageError("there is nothing to weigh: name an instrument or give an --arm")
    base = union(
        ((choice.name, choice.base) for choice in chosen),
        "{} and {} cannot share a trial: the base arm of the one needs {name} = {}, that of the "
        "other {name} = {}",
    )
    arms = [Arm("base", "base", dict(base)), Arm("control", "control", dict(base))]
    for choice in chosen:
        settings = {**base, **choice.settings}
        if _same_settings(settings, base):
            raise UsageError(
                f"arm {choice.name} would be the same as the base arm: another instrument's base"
                " already sets all of it, and the control arm does that"
            )
        arms.append(Arm(choice.name, "instrument", settings))
    for delay in inject_ns:
        if delay <= 0:
            raise UsageError(f"an injected delay must be over 0 ns, not {delay}")
        name = "injected" if len(inject_ns) == 1 else f"injected_{delay}ns"
        if any(arm.name == name for arm in arms):
            raise UsageError(f"there would be two arms called {name!r}: inject each delay once")
        arms.append(Arm(name, "injected", dict(base), inject_ns=delay))
    return arms


def union(parts: Iterable[tuple[str, Mapping[str, str]]], clash: str) -> dict[str, str]:
    """The settings of all parts, which are named.

    Raises UsageError if two parts set one setting in two ways; clash: the sentence, with places for
    both names, {name} of the setting, and both values.
    """
    found: dict[str, str] = {}
    owner: dict[str, str] = {}
    for part, settings in parts:
        for name, value in settings.items():
            if name in found and not same_value(found[name], value):
                raise UsageError(clash.format(owner[name], part, found[name], value, name=name))
            if name not in found:
                found[name], owner[name] = value, part
    return found


def _same_settings(a: dict[str, str], b: dict[str, str]) -> bool:
    return a.keys() == b.keys() and all(same_value(a[name], b[name]) for name in a)


def same_value(a: str, b: str) -> bool:
    """Whether two values read the same: case and the spellings of on and off do not count."""
    a, b = a.strip().lower(), b.strip().lower()
    return a == b or {a, b} <= _TRUE or {a, b} <= _FALSE
