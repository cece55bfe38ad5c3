"""Two reports against each other: what became worse beyond the noise that both state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pgtare.errors import UsageError
from pgtare.seeing.clock.counter_frequency import USUAL_SLEW_PPM
from pgtare.seeing.clock.schema import ClockReport, ClockResult, CoreOffset

#: Two runs on one machine differ by as much without a reason: other guests, frequency, layout.
FLOOR_PCT = 10.0
#: Ranges of a few repetitions are smaller than those of many.
NOISE_FACTOR = 2.0
#: A reading dearer by more than this is reported, however noisy the runs: noise has its limits.
MOST_PCT = 50.0


@dataclass(frozen=True)
class ComparisonLine:
    """One thing compared: `worse` if beyond the noise, which `limit` states."""

    what: str
    before: str
    after: str
    limit: str
    worse: bool


def load(path: Path) -> ClockReport:
    """The report that `pgtare clock --json` wrote. Raises UsageError."""
    try:
        return ClockReport.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as ex:
        raise UsageError(f"{path} cannot be read: {ex.strerror}") from ex
    except (ValidationError, UnicodeDecodeError) as ex:
        raise UsageError(f"{path} is no report of `pgtare clock --json`") from ex


def compare(before: ClockReport, after: ClockReport) -> list[ComparisonLine]:
    """Every clock that was read before or now, then what must not change."""
    found = []
    for new in after.clocks:
        old = before.clock(new.name)
        if old is not None:
            found.append(_cost(old, new))
            if new.backward or old.backward:
                found.append(_backward(old, new))
    for old in before.clocks:
        if after.clock(old.name) is None:
            found.append(
                ComparisonLine(
                    f"{old.name}, a reading", f"{old.read_ns:.1f} ns", "not read", "reported", False
                )
            )
    found += _setup(before, after)
    found += _frequency(before, after)
    found += _offsets(before, after)
    return found


def noise_pct(old: ClockResult, new: ClockResult) -> float:
    """How much dearer a reading may be and still be the same."""
    noise = NOISE_FACTOR * (old.read_noise_pct + new.read_noise_pct)
    return min(MOST_PCT, max(FLOOR_PCT, noise))


def _cost(old: ClockResult, new: ClockResult) -> ComparisonLine:
    limit = noise_pct(old, new)
    return ComparisonLine(
        f"{new.name}, a reading",
        f"{old.read_ns:.1f} ns",
        f"{new.read_ns:.1f} ns",
        f"+{limit:.0f} %",
        new.read_ns > old.read_ns * (1 + limit / 100),
    )


def _backward(old: ClockResult, new: ClockResult) -> ComparisonLine:
    """A single step back is one too many, however long the run."""
    return ComparisonLine(
        f"{new.name}, steps back",
        f"{old.backward:,}",
        f"{new.backward:,}",
        "none",
        new.backward > 0 and old.backward == 0,
    )


def _setup(before: ClockReport, after: ClockReport) -> Iterator[ComparisonLine]:
    old, new = before.diagnosis, after.diagnosis
    rank = {"good": 0, "slow": 1, "faulty": 2}
    yield ComparisonLine(
        "verdict", old.verdict, new.verdict, "none", rank[new.verdict] > rank[old.verdict]
    )
    if old.clocksource != new.clocksource:
        # a change by itself is reported; that it is worse shows in the cost or the verdict
        yield ComparisonLine(
            "clock source", str(old.clocksource), str(new.clocksource), "reported", False
        )
    if old.vdso is not None and new.vdso is not None:
        yield ComparisonLine(
            "vDSO", _yes(old.vdso), _yes(new.vdso), "none", old.vdso and not new.vdso
        )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _frequency(before: ClockReport, after: ClockReport) -> Iterator[ComparisonLine]:
    old, new = before.frequency, after.frequency
    if old is None or new is None:
        return
    # both calibrations' bounds, and what the kernel's clock was slewed
    limit = USUAL_SLEW_PPM + old.error_ppm + new.error_ppm
    off = 1e6 * (new.hz / old.hz - 1)
    yield ComparisonLine(
        "counter",
        f"{old.hz / 1e6:.4f} MHz",
        f"{new.hz / 1e6:.4f} MHz",
        f"±{limit:.0f} ppm",
        abs(off) > limit,
    )


def _offsets(before: ClockReport, after: ClockReport) -> Iterator[ComparisonLine]:
    """Pair by pair: apart now and not before, or further than before for certain."""
    if before.cores is None or after.cores is None:
        return
    old = {(pair.first, pair.second): pair for pair in before.cores.pairs}
    apart = [pair for pair in after.cores.pairs if _least_ns(pair) > 0]
    worse = [
        pair
        for pair in apart
        if (known := old.get((pair.first, pair.second))) is None
        or _least_ns(known) == 0
        or _least_ns(pair) > max(abs(known.lo_ns), abs(known.hi_ns))
    ]
    if old or apart:
        yield ComparisonLine(
            "pairs of processors apart",
            _pairs([pair for pair in old.values() if _least_ns(pair) > 0]),
            _pairs(apart),
            "none",
            bool(worse),
        )


def _least_ns(pair: CoreOffset) -> float:
    """How far two processors' clocks are apart at least: 0 if they may agree."""
    return max(pair.lo_ns, -pair.hi_ns, 0.0)


def _pairs(pairs: list[CoreOffset]) -> str:
    """How many, and the furthest of them."""
    if not pairs:
        return "0"
    furthest = max(pairs, key=_least_ns)
    return (
        f"{len(pairs)} (processors {furthest.first} and {furthest.second}"
        f" by {_least_ns(furthest):,.0f} ns)"
    )
