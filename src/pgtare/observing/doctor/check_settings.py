"""Checks what observes: what is on, and the clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pgtare.observing.doctor.model import Clock, Observer
from pgtare.observing.doctor.observed import DoctorFacts
from pgtare.observing.findings.model import Finding, of_setting
from pgtare.observing.findings.remedies import set_at_once
from pgtare.postgres.wait_counters import caveats

#: A reading of the clock that costs more is no vDSO reading (docs/clock.md).
SLOW_CLOCK_NS = 100.0
_USE_TSC = (
    "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"
    "  -- as root on the server's host, where tsc is among available_clocksource"
)

Settings = Mapping[str, str]


@dataclass(frozen=True)
class _Kind:
    """An observer: the arm by which `pgtare weigh` knows it, and the setting's value that is it."""

    arm: str
    setting: str
    value: str = "on"

    def on(self, settings: Settings) -> bool:
        """Whether it observes."""
        if self.arm == "auto_explain" and settings.get(EXPLAINS, "-1") == "-1":
            return False
        return settings.get(self.setting) == self.value


EXPLAINS = "auto_explain.log_min_duration"
AUTO_EXPLAIN = _Kind("auto_explain", "auto_explain.log_analyze")
_KINDS = (
    _Kind("pg_stat_statements", "pg_stat_statements.track", "top"),
    _Kind("pg_stat_statements/all", "pg_stat_statements.track", "all"),
    _Kind("pg_stat_statements/planning", "pg_stat_statements.track_planning"),
    _Kind("compute_query_id", "compute_query_id"),
    _Kind("track_io_timing", "track_io_timing"),
    _Kind("track_wal_io_timing", "track_wal_io_timing"),
    _Kind("track_functions", "track_functions", "pl"),
    _Kind("track_functions/all", "track_functions", "all"),
    AUTO_EXPLAIN,
    _Kind("wait_event_timing", "wait_event_timing.capture", "stats"),
    _Kind("wait_event_timing/trace", "wait_event_timing.capture", "trace"),
    _Kind("log_min_duration_statement", "log_min_duration_statement", "0"),
    _Kind("log_statement", "log_statement", "all"),
    _Kind("log_duration", "log_duration"),
    _Kind("log_lock_waits", "log_lock_waits"),
)
#: What `pgtare weigh` can weigh of them.
ARMS = frozenset(kind.arm for kind in _KINDS)


def observers(facts: DoctorFacts) -> list[Observer]:
    """What observes the server."""
    return [
        Observer(name=kind.arm, value=facts.settings[kind.setting])
        for kind in _KINDS
        if kind.on(facts.settings)
    ]


def clock(found: Clock | None) -> Iterator[Finding]:
    """A clock that is read by system call."""
    if found is None or found.read_ns < SLOW_CLOCK_NS:
        return
    source = f"; the kernel's clock source is {found.source}" if found.source else ""
    yield of_setting(
        "clock",
        level="warning",
        title=f"reading the clock costs the server {found.read_ns:,.0f} ns",
        evidence=[f"{found.read_ns:,.0f} ns for a clock_timestamp(){source}"],
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


def waits_clock(reason: str | None) -> Iterator[Finding]:
    """A clock that the kernel has given up since the server started."""
    if not caveats.of_clock(reason):
        return
    yield of_setting(
        "clock",
        name="waits",
        level="warning",
        title="waits are timed by a clock that the kernel no longer trusts",
        evidence=[f"the clock was {reason}"],
        why="the kernel gives the processor's counter up when processors disagree or it "
        "changes its rate, so times of waits may be wrong",
        remedy=[set_at_once("wait_event_timing.clock", "monotonic")],
        sure="certain",
        because="clock_reason of pg_stat_wait_event_timing_info",
    )
