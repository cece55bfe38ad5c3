"""Checks what observes and logs: what is on, what it costs, and logging that hurts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pgtare.kit import numbers
from pgtare.seeing.doctor.model import Clock, Finding, Observer, Unseen
from pgtare.seeing.doctor.observed import DoctorFacts

#: A cost that weighing found, as a share of a transaction, from which on it is reported.
WARNING_COST_PCT, CRITICAL_COST_PCT = 5.0, 25.0
#: A reading of the clock that costs more is no vDSO reading (docs/clock.md).
SLOW_CLOCK_NS = 100.0
#: Lines a second that make no difference worth telling: the doctor's own queries are 20 and more.
_FEW_LINES_S = 50.0
_USE_TSC = (
    "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"
    "  -- as root on the server's host, where tsc is among available_clocksource"
)
_RELOAD = "SELECT pg_reload_conf();"


@dataclass(frozen=True)
class Weight:
    """What an instrument was found to cost a transaction by `pgtare weigh`, and the file that has
    it.

    low_pct: the lower end of the 95 % interval of cost_pct. costs: the verdict is "cost".
    """

    cost_us: float
    cost_pct: float
    low_pct: float
    costs: bool
    source: str


@dataclass(frozen=True)
class Traffic:
    """What the server does a second; statements None if nobody counts them."""

    transactions_per_s: float | None
    statements_per_s: float | None
    blocks_read_s: float | None


Settings = Mapping[str, str]


@dataclass(frozen=True)
class _Kind:
    """An observer: the arm by which `pgtare weigh` knows it, and whether it is on."""

    arm: str
    setting: str
    on: Callable[[Settings], bool]


def _is(name: str, *values: str) -> Callable[[Settings], bool]:
    return lambda settings: settings.get(name) in values


def _explains(settings: Settings) -> bool:
    return settings.get("auto_explain.log_min_duration", "-1") != "-1"


def _analyses(settings: Settings) -> bool:
    return _explains(settings) and settings.get("auto_explain.log_analyze") == "on"


_KINDS = (
    _Kind("pg_stat_statements", "pg_stat_statements.track", _is("pg_stat_statements.track", "top")),
    _Kind(
        "pg_stat_statements/all", "pg_stat_statements.track", _is("pg_stat_statements.track", "all")
    ),
    _Kind(
        "pg_stat_statements/planning",
        "pg_stat_statements.track_planning",
        _is("pg_stat_statements.track_planning", "on"),
    ),
    _Kind("compute_query_id", "compute_query_id", _is("compute_query_id", "on")),
    _Kind("track_io_timing", "track_io_timing", _is("track_io_timing", "on")),
    _Kind("track_wal_io_timing", "track_wal_io_timing", _is("track_wal_io_timing", "on")),
    _Kind("track_functions", "track_functions", _is("track_functions", "pl")),
    _Kind("track_functions/all", "track_functions", _is("track_functions", "all")),
    _Kind("auto_explain", "auto_explain.log_analyze", _analyses),
    _Kind(
        "wait_event_timing", "wait_event_timing.capture", _is("wait_event_timing.capture", "stats")
    ),
    _Kind(
        "wait_event_timing/trace",
        "wait_event_timing.capture",
        _is("wait_event_timing.capture", "trace"),
    ),
    _Kind(
        "log_min_duration_statement",
        "log_min_duration_statement",
        _is("log_min_duration_statement", "0"),
    ),
    _Kind("log_statement", "log_statement", _is("log_statement", "all")),
    _Kind("log_duration", "log_duration", _is("log_duration", "on")),
    _Kind("log_lock_waits", "log_lock_waits", _is("log_lock_waits", "on")),
)


def observers(
    facts: DoctorFacts, weights: Mapping[str, Weight], traffic: Traffic
) -> tuple[list[Observer], list[Finding]]:
    """What observes the server, and findings for what was found to cost much."""
    listed, findings = [], []
    for kind in _KINDS:
        if not kind.on(facts.settings):
            continue
        weight = weights.get(kind.arm)
        value = facts.settings[kind.setting]
        if weight is not None:
            listed.append(
                Observer(
                    name=kind.arm,
                    value=value,
                    cost_us=weight.cost_us,
                    cost_pct=weight.cost_pct,
                    source=weight.source,
                )
            )
            if weight.costs and weight.cost_pct >= WARNING_COST_PCT:
                findings.append(_costly(kind, value, weight))
            continue
        computed = _computed(kind, facts, traffic)
        listed.append(computed or Observer(name=kind.arm, value=value, source=_weigh(kind.arm)))
    return listed, findings


def _weigh(arm: str) -> str:
    return f"not known: `pgtare weigh {arm} --dsn … --out w`, then `pgtare doctor --weighed w`"


def _computed(kind: _Kind, facts: DoctorFacts, traffic: Traffic) -> Observer | None:
    """track_io_timing reads the clock twice for each block that is read."""
    per_s, transactions = traffic.blocks_read_s, traffic.transactions_per_s
    if kind.arm != "track_io_timing" or facts.clock is None or per_s is None or not transactions:
        return None
    us = 2 * facts.clock.read_ns / 1000 * per_s / transactions
    return Observer(
        name=kind.arm,
        value="on",
        cost_us=us,
        source=f"two clock readings of {facts.clock.read_ns:.0f} ns for each of {per_s:,.0f} "
        "blocks read a second",
    )


def _costly(kind: _Kind, value: str, weight: Weight) -> Finding:
    severe = weight.cost_pct >= CRITICAL_COST_PCT
    least = CRITICAL_COST_PCT if severe else WARNING_COST_PCT
    off = {
        "pg_stat_statements.track": "'none'",
        "wait_event_timing.capture": "'off'",
        "log_min_duration_statement": "'1s'",
        "log_statement": "'ddl'",
        "track_functions": "'none'",
        "pg_stat_statements.track_planning": "off",
    }
    cost = numbers.signed(weight.cost_us, 2)
    return Finding(
        check="observer",
        level="critical" if severe else "warning",
        title=f"{kind.arm} costs {weight.cost_pct:.2g} % of a transaction",
        seen=[f"{kind.setting} = {value}; weighed: {cost} µs a transaction"],
        why="that is what leaving it on costs, by the weighing that was given",
        remedy=[f"ALTER SYSTEM SET {kind.setting} = {off.get(kind.setting, 'off')}; {_RELOAD}"],
        sure="certain" if weight.low_pct >= least else "likely",
        because=weight.source,
        figures={"cost_us": weight.cost_us, "cost_pct": weight.cost_pct},
    )


def logging(facts: DoctorFacts, traffic: Traffic) -> list[Finding]:
    """Logging of every statement, plan or node, and what writes more than anybody reads."""
    settings = facts.settings
    lines = max(traffic.statements_per_s or 0.0, traffic.transactions_per_s or 0.0)
    costly = []
    every = [
        (name, value)
        for name, bad, value in (
            ("log_min_duration_statement", "0", "'1s'"),
            ("log_statement", "all", "'ddl'"),
            ("log_duration", "on", "off"),
            ("auto_explain.log_min_duration", "0", "'1s'"),
        )
        if settings.get(name) == bad
    ]
    for name, better in every:
        costly.append(
            Finding(
                check="logging",
                level="critical" if lines >= 1000 else "warning",
                title=f"{name} = {settings[name]} writes every statement to the log",
                seen=[
                    f"{name} = {settings[name]}",
                    f"about {lines:,.0f} statements or transactions a second",
                ],
                why="each statement's session formats and writes its line itself, through one pipe "
                "or file that all sessions share; the log also holds the statements' values",
                remedy=[
                    f"ALTER SYSTEM SET {name} = {better}; {_RELOAD}",
                    *(
                        [
                            "ALTER SYSTEM SET log_min_duration_sample = '100ms'; ALTER SYSTEM SET "
                            f"log_statement_sample_rate = 0.01; {_RELOAD}  -- a sample, if wanted"
                        ]
                        if name == "log_min_duration_statement"
                        else []
                    ),
                ],
                sure="certain" if lines >= _FEW_LINES_S else "likely",
                because=f"the setting was read; `pgtare weigh {name.split('.')[0]}` tells its cost",
                figures={"lines_per_s": lines},
            )
        )
    return [*costly, *_plans(settings), *_debugging(settings), *_names(settings)]


def _plans(settings: Settings) -> list[Finding]:
    timed = settings.get("auto_explain.log_timing", "on") == "on"
    sampled = float(settings.get("auto_explain.sample_rate", "1")) < 1
    if not _analyses(settings) or not timed or sampled:
        return []
    return [
        Finding(
            check="logging",
            level="warning",
            title="auto_explain times every plan node of every statement",
            seen=["auto_explain.log_analyze = on, log_timing = on, sample_rate = 1"],
            why="the clock is read twice for each row of each node, whether or not a plan is "
            "logged in the end: queries over many rows may take twice as long",
            remedy=[
                f"ALTER SYSTEM SET auto_explain.log_timing = off; {_RELOAD}",
                f"ALTER SYSTEM SET auto_explain.sample_rate = 0.01; {_RELOAD}  -- or a sample",
            ],
            sure="likely",
            because="the settings were read; `pgtare weigh auto_explain` tells its cost here",
        )
    ]


def _debugging(settings: Settings) -> list[Finding]:
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
        if settings.get(name) == "on"
    ]
    if settings.get("log_min_messages", "").startswith("debug"):
        found.append("log_min_messages")
    if not found:
        return []
    resets = " ".join(f"ALTER SYSTEM RESET {name};" for name in found)
    return [
        Finding(
            check="logging",
            level="critical",
            title=f"output for debugging is on: {', '.join(found)}",
            seen=[f"{name} = {settings[name]}" for name in found],
            why="it writes many lines for each statement",
            remedy=[f"{resets} {_RELOAD}"],
            sure="certain",
            because="the settings were read",
        )
    ]


def _names(settings: Settings) -> list[Finding]:
    silent = settings.get("log_connections", "off") in ("off", "")
    if settings.get("log_hostname") != "on" or silent:
        return []
    return [
        Finding(
            check="logging",
            level="warning",
            title="every connection looks up a host name",
            seen=[f"log_hostname = on, log_connections = {settings.get('log_connections')}"],
            why="a slow name server holds up every login",
            remedy=[f"ALTER SYSTEM SET log_hostname = off; {_RELOAD}"],
            sure="possible",
            because="the settings were read; how fast names are found was not",
        )
    ]


def clock(found: Clock | None) -> list[Finding]:
    """A clock that is read by system call."""
    if found is None or found.read_ns < SLOW_CLOCK_NS:
        return []
    source = f"; the kernel's clock source is {found.source}" if found.source else ""
    return [
        Finding(
            check="clock",
            level="warning",
            title=f"reading the clock costs the server {found.read_ns:,.0f} ns",
            seen=[f"{found.read_ns:,.0f} ns for a clock_timestamp(){source}"],
            why="EXPLAIN ANALYZE, track_io_timing and every transaction's start read the clock; "
            "a reading by vDSO costs 20 to 50 ns",
            remedy=[
                "pgtare clock  -- on the server's host: it names what is wrong and the remedy",
                *([_USE_TSC] if found.source not in (None, "tsc") else []),
            ],
            sure="likely",
            because="measured on the server by SQL, the fastest of many; a busy processor makes it "
            "longer",
            figures={"read_ns": found.read_ns},
        )
    ]


def unweighed(weights: Iterable[str], facts: DoctorFacts) -> list[Unseen]:
    """Weights that were given for what is not on here."""
    on = {kind.arm for kind in _KINDS if kind.on(facts.settings)}
    return [
        Unseen(what=f"weight of {name}", why="it is not on in this server", remedy="")
        for name in weights
        if name not in on
    ]
