"""Checks logging: how many statements, plans and names the settings write to the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pgtare.kit import numbers
from pgtare.observing.doctor.check_settings import (
    ARMS,
    AUTO_EXPLAIN,
    EXPLAINS,
    Settings,
)
from pgtare.observing.doctor.observed import DoctorFacts
from pgtare.observing.findings.model import Finding, of_setting
from pgtare.observing.findings.remedies import set_at_once

#: Lines a second from which on the log itself is a load.
_MANY_LINES_S = 1000.0
#: Lines a second that make no difference worth telling: the doctor's own queries are 20 and more.
_FEW_LINES_S = 50.0
#: A remedy's sample writes about so many lines a second.
_SAMPLED_LINES_S = 20.0
#: A smaller share of statements whose plans are timed is not worth telling.
_LEAST_TIMED = 0.05
#: Levels of messages as log_min_messages orders them, the least severe first.
_LEVELS = ("debug", "info", "notice", "warning", "error", "log", "fatal", "panic")
_SAMPLE = (
    "ALTER SYSTEM SET log_min_duration_sample = '100ms'; "
    + set_at_once("log_statement_sample_rate", "0.01")
    + "  -- a sample, if wanted"
)


@dataclass(frozen=True)
class _Source:
    """A setting that writes statements to the log.

    better: what to set instead. what: what it writes. sampled: the same of a share of them.
    rate: the setting that is this share. some: it writes statements of one kind, and how many these
    are is not known. level: of its messages. more: a further remedy.
    unless: when to leave it as it is.
    """

    name: str
    better: str
    what: str = "every statement"
    sampled: str = "{} of the statements"
    rate: str = ""
    some: bool = False
    level: str = "log"
    more: tuple[str, ...] = ()
    unless: str = ""


def check(facts: DoctorFacts, per_s: float) -> list[Finding]:
    """Logging of many statements, plans or nodes, and what writes more than anybody reads.

    per_s: statements or transactions a second, whichever are more.
    """
    settings = facts.settings
    found = [
        *(
            _statements(source, settings, per_s)
            for source in _sources(settings)
            if _is_written(source.level, settings)
        ),
        _plans(settings),
        _debugging(settings),
        _names(settings),
    ]
    return list(filter(None, found))


def _is_written(level: str, settings: Settings) -> bool:
    """Whether the log takes messages of this level: LOG is above ERROR and below FATAL."""
    least = _least_level(settings)
    if least == "log":
        return level == "log"
    return _LEVELS.index(level.rstrip("12345")) >= _LEVELS.index(least)


def _least_level(settings: Settings) -> str:
    """log_min_messages of client sessions; from 19 on a kind of process may have a level."""
    levels = {"": "warning"}
    for part in settings.get("log_min_messages", "warning").lower().split(","):
        kind, _, level = part.strip().rpartition(":")
        levels[kind] = level.strip().rstrip("12345")
    return levels.get("backend", levels[""])


def _sources(settings: Settings) -> Iterator[_Source]:
    """What writes statements however short they are; a threshold above 0 leaves most of them out.

    log_statement_sample_rate is of log_min_duration_sample, not of log_min_duration_statement.
    """
    if settings.get("log_min_duration_statement") == "0":
        yield _Source("log_min_duration_statement", "'1s'", more=(_SAMPLE,))
    if settings.get("log_min_duration_sample") == "0":
        yield _Source("log_min_duration_sample", "'100ms'", rate="log_statement_sample_rate")
    if settings.get("log_transaction_sample_rate", "0") != "0":
        name = "log_transaction_sample_rate"
        yield _Source(name, "0", sampled="the statements of {} of the transactions", rate=name)
    if settings.get("log_statement") == "all":
        yield _Source("log_statement", "'ddl'")
    if settings.get("log_statement") == "mod":
        yield _Source("log_statement", "'ddl'", "every change of rows", some=True)
    if settings.get("log_duration") == "on":
        yield _Source("log_duration", "off", "the duration of every statement")
    if settings.get(EXPLAINS) == "0":
        yield _Source(
            EXPLAINS,
            "'1s'",
            "the plan of every statement",
            "the plans of {} of the statements",
            rate="auto_explain.sample_rate",
            level=settings.get("auto_explain.log_level", "log"),
        )
    audited = _audited(settings.get("pgaudit.log", "none"))
    if audited:
        to_client = settings.get("pgaudit.log_client") == "on"
        yield _Source(
            "pgaudit.log",
            "'ddl, role'",
            "every statement" if len(audited) > 1 else f"every {audited.pop()} of rows",
            some=len(audited) < 2,
            level=settings.get("pgaudit.log_level", "log") if to_client else "log",
            unless="  -- unless all of it must be audited: ask who set it",
        )


def _audited(value: str) -> set[str]:
    """What pgaudit.log writes of the common statements; a class with a minus is taken away."""
    found: set[str] = set()
    for part in value.lower().split(","):
        name = part.strip()
        named = {"all": {"read", "change"}, "read": {"read"}, "write": {"change"}}
        if name.startswith("-"):
            found -= named.get(name[1:], set())
        else:
            found |= named.get(name, set())
    return found


def _statements(source: _Source, settings: Settings, per_s: float) -> Finding | None:
    """A finding of what one setting writes; None if that is little."""
    share = float(settings.get(source.rate, "1")) if source.rate else 1.0
    lines = share * per_s
    fewest = _MANY_LINES_S if source.some else _FEW_LINES_S if share < 1 else 0.0
    if not share or lines < fewest:
        return None
    what = source.what if share == 1 else source.sampled.format(numbers.percent(100 * share))
    named = [name for name in dict.fromkeys((source.name, source.rate)) if name in settings]
    remedy = [set_at_once(source.name, source.better, source.unless), *source.more]
    if source.rate and per_s * share > _SAMPLED_LINES_S:
        rate = f"{_SAMPLED_LINES_S / per_s:.1g}"
        remedy.append(set_at_once(source.rate, rate, "  -- or a smaller sample"))
    because = "the setting was read"
    if source.some:
        because += "; how many statements are of this kind was not counted"
    arm = source.name.partition(".")[0]
    if arm in ARMS:
        because += f"; `pgtare weigh {arm}` tells its cost"
    values = "" if source.name == "log_duration" else "; the log also holds the statements' values"
    return of_setting(
        "logging",
        name=source.name,
        level="critical" if lines >= _MANY_LINES_S and not source.some else "warning",
        title=f"{source.name} = {settings[source.name]} writes {what} to the log",
        evidence=[
            ", ".join(f"{name} = {settings[name]}" for name in named),
            f"about {per_s:,.0f} statements or transactions a second",
        ],
        why="each statement's session formats and writes its line itself, through one pipe or file "
        f"that all sessions share{values}",
        remedy=remedy,
        sure="possible" if source.some else "certain" if lines >= _FEW_LINES_S else "likely",
        because=because,
        figures={"lines_per_s": lines},
    )


def _plans(settings: Settings) -> Finding | None:
    """Plans that are timed, which costs the same whether or not they are logged."""
    share = float(settings.get("auto_explain.sample_rate", "1"))
    timed = settings.get("auto_explain.log_timing", "on") == "on"
    if not AUTO_EXPLAIN.on(settings) or not timed or share < _LEAST_TIMED:
        return None
    which = "every statement" if share == 1 else f"{numbers.percent(100 * share)} of the statements"
    return of_setting(
        "plans",
        level="warning",
        title=f"auto_explain times every plan node of {which}",
        evidence=[f"auto_explain.log_analyze = on, log_timing = on, sample_rate = {share:g}"],
        why="the clock is read twice for each row of each node, whether or not a plan is "
        "logged in the end: queries over many rows may take twice as long",
        remedy=[
            set_at_once("auto_explain.log_timing", "off"),
            set_at_once("auto_explain.sample_rate", "0.01", "  -- or a sample"),
        ],
        sure="likely",
        because="the settings were read; `pgtare weigh auto_explain` tells its cost here",
        figures={"sample_rate": share},
    )


def _debugging(settings: Settings) -> Finding | None:
    found = [
        name
        for name in (
            "debug_print_parse",
            "debug_print_rewritten",
            "debug_print_plan",
            "log_parser_stats",
            "log_planner_stats",
            "log_executor_stats",
            "log_statement_stats",
        )
        if settings.get(name) == "on" and _is_written("log", settings)
    ]
    if _least_level(settings) == "debug":
        found.append("log_min_messages")
    if not found:
        return None
    return of_setting(
        "logging",
        name="debugging",
        level="critical",
        title=f"output for debugging is on: {', '.join(found)}",
        evidence=[f"{name} = {settings[name]}" for name in found],
        why="it writes many lines for each statement",
        remedy=[
            set_at_once(name, "warning" if name == "log_min_messages" else "off") for name in found
        ],
        sure="certain",
        because="the settings were read",
    )


def _names(settings: Settings) -> Finding | None:
    if settings.get("log_hostname") != "on":
        return None
    return of_setting(
        "logging",
        name="log_hostname",
        level="warning",
        title="every connection looks up a host name",
        evidence=["log_hostname = on"],
        why="a slow name server holds up every login",
        remedy=[set_at_once("log_hostname", "off")],
        sure="possible",
        because="the settings were read; how fast names are found was not",
    )
