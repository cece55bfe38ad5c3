"""One load under both: the witness watches, the module is asked before and after."""

from __future__ import annotations

import time

from bench.truth.calibrate import Calibration
from bench.truth.compare import NeverCalm, Row, Snapshot, compare, name_events, snapshot
from bench.truth.loads import Load, Stage
from bench.truth.stray import StrayTrap, stray_traps_reported
from bench.truth.witness import Witness
from pgtare.errors import MeasurementError
from pgtare.postgres.binaries import Binaries

LOOKS = 12  # at the module, as a process may be busy during some
PAUSE_SECONDS = 0.03
ATTEMPTS = 4


def held_against_witness(
    load: Load, binaries: Binaries, calibration: Calibration, length: float = 1.0
) -> list[Row]:
    """A row for each event. Raises MeasurementError if the witness did not hear everything.

    If a stray trap ends the server, or the witness saw no calm, everything is repeated.
    """
    for _ in range(ATTEMPTS):
        try:
            with load.stage(binaries) as stage, stray_traps_reported(stage.logs):
                return _rows(load, stage, calibration, length)
        except (StrayTrap, NeverCalm) as ex:
            why = ex
    raise MeasurementError(f"{load.name}: failed {ATTEMPTS} times, the last time as {why}")


def _rows(load: Load, stage: Stage, calibration: Calibration, length: float) -> list[Row]:
    numbers = range(len(stage.observers))
    mine = {n: [one for one, server in stage.watched if server == n] for n in numbers}

    def looks() -> dict[int, list[Snapshot]]:
        # the wait that each is in now must have begun before the witness's eyes
        for observer in stage.observers:
            observer.execute("SELECT pg_reload_conf()")
        time.sleep(0.1)
        for session in stage.sessions:
            session.execute("SELECT 1")
        found: dict[int, list[Snapshot]] = {n: [] for n in numbers}
        for _ in range(LOOKS):
            time.sleep(PAUSE_SECONDS)
            for n in numbers:
                found[n].append(snapshot(stage.observers[n], mine[n]))
        return found

    with Witness([one.as_word for one, _ in stage.watched]) as witness:
        before = looks()
        stage.run(length)
        after = looks()
    log = witness.log
    if log.lost:
        raise MeasurementError(f"{load.name}: the witness lost {log.lost} lines")
    seen = {a.event for a in log.announcements} | {event for event, _ in log.open.values()}
    return [
        row
        for n in numbers
        for row in compare(
            log,
            mine[n],
            before[n],
            after[n],
            name_events(stage.observers[n], stage.spare[n], seen),
            calibration,
        )
    ]
