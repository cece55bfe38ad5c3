"""Is the scale calibrated here and now? Control-only recordings, and delays that are known."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console

from pgtare.errors import MeasurementError
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.estimate.trial.pseudo_trials import STALL_UNITS, Calibration, Rate, calibrate
from pgtare.kit import numbers
from pgtare.kit.interval import Interval
from pgtare.postgres import own_session
from pgtare.postgres.load import PgbenchLoad, find_pgbench
from pgtare.weighing.trials import Population, Trials
from pgtare.weighing.weigh import recording
from pgtare.weighing.weigh.progress import Display, Stages
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.run import WARM_UP_S
from pgtare.weighing.weigh.target import WeighTarget, open_target

#: Delays put into every transaction of an arm, in ns.
DELAYS_NS = (2_000, 20_000)
#: Pseudo-trials; a test of 5 % then has false positives in 3.6 to 6.4 % of them. On a busy machine
#: a few transactions that had to wait for the processor make up most of a short trial's variance,
#: and intervals of Student's t are too wide, which is no fault of the scale: so it may have fewer.
PSEUDO_TRIALS = 4_000
FALSE_POSITIVES = (0.01, 0.064)
#: A correct 95 % interval covers at least this often in 1,000 trials, but for one time in 2,000; at
#: most, as above.
COVERAGE = (0.927, 0.995)
#: A test of counts is conservative if failures are few.
FALSE_FAILURES = (0.0, 0.064)
FAILURES_FOUND = (0.8, 1.0)
#: Coverage of 250 trials, if rare stalls decide: such an interval may cover somewhat too seldom,
#: as few of them fall into a trial, and does cover too often if the recording has worse ones.
TAIL_COVERAGE = (0.9, 1.0)
#: Half-width of a 99.9 % interval in units of that of a 95 % one, for normal estimates.
_WIDER = 3.2905 / 1.9600
_UNITS = 12_000


@dataclass(frozen=True)
class Check:
    """One figure of the self-test and whether it is as it should be."""

    name: str
    measured: str
    wanted: str
    passed: bool


@dataclass(frozen=True)
class Selftest:
    """All checks, and what they were made with."""

    checks: tuple[Check, ...]
    transactions: int
    seed: int

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def run(request: Request, console: Console) -> Selftest:
    """Record two short trials and check the estimators on them.

    request: server, load, duration (of each trial) and seed. Raises UsageError and
    MeasurementError as a weighing does.
    """
    stages = Stages(console)
    with open_target(request, stages.say, lambda question: False) as target:
        still = _record(target, request, [], console, stages)
        delayed = _record(target, request, list(DELAYS_NS), console, stages)
    stages.say(f"re-randomising {len(still[1]):,} transactions into {PSEUDO_TRIALS:,} A/A trials")
    try:
        figures = calibrate(still[1], trials=PSEUDO_TRIALS, units=_UNITS, seed=request.seed)
    except ValueError as ex:
        raise MeasurementError(f"the recording is too short: {ex}; raise --duration") from ex
    checks = [
        *_estimator_checks(figures),
        *_effect_checks(still),
        *_effect_checks(delayed),
        _arrival_check(still[1]),
    ]
    return Selftest(tuple(checks), len(still[1]) + len(delayed[1]), request.seed)


def _record(
    target: WeighTarget, request: Request, delays: list[int], console: Console, stages: Stages
) -> tuple[Design, Observations]:
    arms = [Arm("base", "base"), Arm("control", "control")]
    arms += [Arm(f"{ns / 1000:g} µs", "injected", inject_ns=ns) for ns in delays]
    design = Design(tuple(arms), block_layout(len(arms)), request.seed)
    assert request.load is not None
    with (
        own_session.connect(target.dsn) as conn,
        PgbenchLoad(find_pgbench(target.binaries), target.dsn, request.load) as load,
        Display(console, request.duration_s) as display,
    ):
        module = Trials(conn)
        module.require_module()
        stages.say(f"recording with {'known delays' if delays else 'control arms only'}")
        load.wait_ready()
        time.sleep(WARM_UP_S)
        got = recording.record(
            module,
            design,
            Population(
                conn.info.dbname,
                application=load.application_name,
                sessions=request.load.clients + 4,
            ),
            request.duration_s,
            cpu=False,
            load=load,
            look=None,
            tick=display.count,
        )
    if got.stopped_by == "interrupt":
        raise KeyboardInterrupt
    if got.trouble or not len(got.observations):
        raise MeasurementError(f"nothing was recorded: {got.trouble or 'no transactions'}")
    return design, got.observations


def _estimator_checks(figures: Calibration) -> list[Check]:
    spells = "failures alike in all arms, found to differ at 5 %"
    rates = [
        ("A/A false positives at 5 %", figures.false_positives, FALSE_POSITIVES),
        (spells, figures.false_failures, FALSE_FAILURES),
        ("one transaction in twenty fails, found", figures.failures_found, FAILURES_FOUND),
    ]
    for kind, rate in figures.body_coverage.items():
        if kind not in figures.raw_coverage:
            rates.append((f"95 % interval covers an injected {kind}", rate, COVERAGE))
    for kind, rate in figures.percent_coverage.items():
        rates.append((f"the same in percent, {kind}", rate, COVERAGE))
    for kind, rate in figures.raw_coverage.items():
        what = f"95 % interval of body + tail covers an injected {kind}"
        rates.append((what, rate, TAIL_COVERAGE))
    return [_rate_check(*rate) for rate in rates]


def _rate_check(name: str, rate: Rate, wanted: tuple[float, float]) -> Check:
    """A recording that is too short to judge the tail says nothing against the scale."""
    if not rate.trials:
        return Check(name, "not judged", f"{STALL_UNITS[0]:,} transactions in a recording", True)
    lo, hi = wanted
    return Check(
        name,
        f"{100 * rate.rate:.1f} % of {rate.trials:,}",
        f"{100 * lo:.1f} % to {100 * hi:.1f} %",
        lo <= rate.rate <= hi,
    )


def _effect_checks(recorded: tuple[Design, Observations]) -> list[Check]:
    """99.9 % intervals of effects against the truth: a correct one misses once in 1,000."""
    design, data = recorded
    estimate = analyse(data, design)
    checks = []
    for arm, found in zip(design.arms[1:], estimate.arms[1:], strict=True):
        if found.answer is None:
            raise MeasurementError("the recording holds no whole block; raise --duration")
        truth = arm.inject_ns / 1000
        effect = found.answer.us
        half = effect.half_width * _WIDER
        lo, hi = effect.estimate - half, effect.estimate + half
        # a busy-wait ends with the clock reading that finds it over, and leaves colder caches
        slack = 0.1 + 0.01 * truth if truth else 0.0
        checks.append(
            Check(
                f"delay of {arm.name}" if truth else f"control against base ({len(data):,})",
                numbers.with_bounds(Interval(estimate=effect.estimate, lo=lo, hi=hi), "µs"),
                f"{truth:g} µs" + (f" to {truth + slack:g} µs" if slack else ""),
                lo <= truth + slack and truth <= hi,
            )
        )
    return checks


def _arrival_check(data: Observations) -> Check:
    share = float(((data["flags"] & UnitFlag.NO_ARRIVAL) != 0).mean())
    return Check(
        "requests whose arrival was seen",
        f"{100 * (1 - share):.2f} %",
        "99 % or more",
        share <= 0.01,
    )
