"""What pg_test_timing of PostgreSQL 19 prints, section by section, with two of its faults mended.

A cut-off that is not a number is refused, and a step back is found in ticks, before anything is
converted. The run continues after it, so that the largest step is the one reported.
"""

from __future__ import annotations

import getopt
import platform
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pgtare
from pgtare.errors import PgtareError
from pgtare.observing.clock import counter_frequency as rates
from pgtare.observing.clock import probe
from pgtare.observing.clock.clocks import BY_NAME, Clock
from pgtare.observing.clock.diagnosis import Setup, clocksources, postgres19
from pgtare.observing.clock.distribution import NS, Distribution, log2_histogram
from pgtare.observing.clock.probe import ProbeRun
from pgtare.observing.clock.survey import pick_cpu

NAME = "pg_test_timing"
MOST_SECONDS = 4294967295
#: Longer durations are not listed one by one, but for the largest.
LISTED_NS = 10_000
_DURATION, _CUTOFF = 3, 99.99
_APART = 0.10
_HELP = f'Try "{NAME} --help" for more information.'

Print = Callable[[str], None]


class _Refused(Exception):
    """Bad options: what goes to standard error, line by line."""


@dataclass(frozen=True)
class Options:
    """How long each source is read, and up to which percentage durations are listed."""

    duration: int = _DURATION
    cutoff: float = _CUTOFF


def main(arguments: Sequence[str]) -> int:
    """As the program with these arguments; its exit status."""
    first = arguments[0] if arguments else ""
    if first in ("--help", "-?"):
        print(f"Usage: {NAME} [-c CUTOFF] [-d DURATION]")
        return 0
    if first in ("--version", "-V"):
        print(f"{NAME} (pgtare {pgtare.__version__}, as of PostgreSQL 19)")
        return 0
    try:
        options = parse(arguments)
    except _Refused as ex:
        print(ex, file=sys.stderr)
        return 1
    try:
        return run(options)
    except PgtareError as ex:
        print(f"{NAME}: error: {ex}", file=sys.stderr)
        return 1


def parse(arguments: Sequence[str]) -> Options:
    """The options as pg_test_timing takes them."""
    try:
        pairs, rest = getopt.gnu_getopt(list(arguments), "d:c:", ["duration=", "cutoff="])
    except getopt.GetoptError as ex:
        raise _Refused(f"{NAME}: {_option_message(ex)}\n{_HELP}") from ex
    duration, cutoff = _DURATION, _CUTOFF
    for option, text in pairs:
        if option in ("-d", "--duration"):
            duration = _duration(text)
        else:
            cutoff = _cutoff(text)
    if rest:
        raise _Refused(f'{NAME}: too many command-line arguments (first is "{rest[0]}")\n{_HELP}')
    return Options(duration, cutoff)


def _option_message(ex: getopt.GetoptError) -> str:
    """As getopt_long words it."""
    long = len(ex.opt) > 1
    if "requires argument" in ex.msg:
        return (
            f"option '--{ex.opt}' requires an argument"
            if long
            else f"option requires an argument -- '{ex.opt}'"
        )
    return f"unrecognized option '--{ex.opt}'" if long else f"invalid option -- '{ex.opt}'"


def _duration(text: str) -> int:
    found = re.fullmatch(r"\s*\+?0*([0-9]{1,10})", text)
    if found is None or int(found[1]) > MOST_SECONDS:
        raise _Refused(f"{NAME}: invalid argument for option --duration\n{_HELP}")
    if int(found[1]) == 0:
        raise _Refused(f"{NAME}: --duration must be in range 1..{MOST_SECONDS}")
    return int(found[1])


def _cutoff(text: str) -> float:
    try:
        cutoff = float(text)
        if "_" in text:
            raise ValueError(text)
    except ValueError:
        raise _Refused(f"{NAME}: invalid argument for option --cutoff\n{_HELP}") from None
    if not 0 <= cutoff <= 100:  # nan as well
        raise _Refused(f"{NAME}: --cutoff must be in range 0..100")
    return cutoff


def _print(text: str) -> None:
    print(text, flush=True)


def run(options: Options, out: Print = _print) -> int:
    """Read every source in turn and print what it showed."""
    seconds = f"{options.duration} second{'' if options.duration == 1 else 's'}"
    out(f"Testing timing overhead for {seconds}.\n")
    if not _section(
        f"System clock source: {BY_NAME['monotonic'].title}", BY_NAME["monotonic"], NS, options, out
    ):
        return 1
    out("")
    leaves = probe.leaves()
    counter = probe.counter_usable()
    current, available = clocksources()
    setup = Setup(current, available, leaves, counter, platform.machine(), probe.counter_trust())
    first = probe.pair() if counter else None
    rough = round(statistics.median(rates.repeat(5))) if counter else None
    choice = postgres19(setup, rough)
    if not choice.usable or choice.frequency_hz is None or first is None:
        out(
            "TSC clock source is not usable. Likely unable to determine TSC frequency. Are you "
            "running in an unsupported virtualized environment?"
        )
        return 0
    for title, name in (("Clock source", "tscp"), ("Fast clock source", "tsc")):
        clock = BY_NAME[name]
        if not _section(f"{title}: {clock.title}", clock, choice.frequency_hz, options, out):
            return 1
        out("")
    calibrated = round(rates.between(first, probe.pair()))
    in_use = postgres19(setup, calibrated).frequency_hz or calibrated
    for line in ending(choice.frequency_source, in_use, calibrated, choice.clock):
        out(line)
    warning = apart(in_use, calibrated)
    if warning is not None:
        print(warning, file=sys.stderr)
    return 0


def _section(title: str, clock: Clock, hz: int, options: Options, out: Print) -> bool:
    """Read a clock and print its section; false if it stepped back."""
    out(title)
    recording = probe.record(clock, options.duration, pick_cpu(None), hz / NS)
    if recording.interrupted:
        raise KeyboardInterrupt
    seen = Distribution.of(recording, hz if clock.counter else NS)
    if recording.backward:
        for line in backwards(recording, seen):
            print(line, file=sys.stderr)
        return False
    mean_ns = recording.elapsed_ns / recording.differences
    out("\n".join(section(mean_ns, seen.by_ns(), options.cutoff)))
    return True


def backwards(recording: ProbeRun, seen: Distribution) -> list[str]:
    """What is said of a clock that ran backwards."""
    warp = seen.whole_ns(recording.backward_largest)
    return ["Detected clock going backwards in time.", f"Time warp: {warp} ns"]


def section(mean_ns: float, by_ns: dict[int, int], cutoff: float) -> list[str]:
    """A section below its title: average, histogram, observed durations."""
    total = sum(by_ns.values())
    lines = [
        f"Average loop time including overhead: {mean_ns:.2f} ns",
        "Histogram of timing durations:",
        _row("<= ns", "% of total", "running %", "count"),
    ]
    running = 0.0
    for up_to, count in log2_histogram(by_ns):
        share = count * 100 / total
        running += share
        lines.append(_figures(up_to, share, running, count))
    lines += [
        "",
        f"Observed timing durations up to {cutoff:.4f}%:",
        _row("ns", "% of total", "running %", "count"),
    ]
    largest = max(by_ns)
    running, stopped = 0.0, False
    for ns, count in sorted(by_ns.items()):
        if ns >= LISTED_NS:
            break
        share = count * 100 / total
        running += share
        if ns == largest and stopped:
            lines.append("...")
        if ns == largest or not stopped:
            lines.append(_figures(ns, share, running, count))
        stopped = stopped or running >= cutoff
    if largest >= LISTED_NS:
        count = by_ns[largest]
        lines += ["...", _figures(largest, count * 100 / total, 100.0, count)]
    return lines


def ending(source: str, in_use_hz: int, calibrated_hz: int, chosen: str) -> list[str]:
    """What follows the sections: frequencies and the default."""
    default = (
        "TSC clock source will be used by default, unless timing_clock_source is set to 'system'."
        if chosen == "tsc"
        else "TSC clock source will not be used by default, unless timing_clock_source is set to "
        "'tsc'."
    )
    return [
        f"TSC frequency source: {source}",
        f"TSC frequency in use: {round(in_use_hz / 1000)} kHz",
        f"TSC frequency from calibration: {round(calibrated_hz / 1000)} kHz",
        "",
        default,
    ]


def apart(in_use_hz: int, calibrated_hz: int) -> str | None:
    """The warning if frequency in use and calibration are more than 10 % apart."""
    if abs(in_use_hz - calibrated_hz) <= _APART * calibrated_hz:
        return None
    return (
        f"{NAME}: warning: TSC frequency in use and from calibration differ by more than "
        f"{_APART:.0%}"
    )


def _row(first: str, second: str, third: str, fourth: str) -> str:
    return f"{first:>19}{second:>13}{third:>11}{fourth:>11}"


def _figures(ns: int, share: float, running: float, count: int) -> str:
    return _row(str(ns), f"{share:.4f}", f"{running:.4f}", str(count))
