"""How long a wait seems to the witness, against a program that times its waits itself."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.truth.witness import Log, Witness, Word
from pgtare.errors import MeasurementError

ATTEMPTS = 4
SOURCE = Path(__file__).with_name("calibrate.c")


@dataclass(frozen=True)
class Calibration:
    """The witness's own errors, as medians of a wait."""

    waits: int
    trap_ns: float  # by which the time from store to store is longer
    entry_ns: float  # by which the system call is shorter

    def describe(self) -> str:
        """In one line."""
        return (
            f"of {self.waits} waits timed by a program itself, the stores show "
            f"{self.trap_ns / 1000:.1f} µs more each, the system calls {self.entry_ns:.0f} ns less"
        )


def run(waits: int) -> tuple[Log, list[int]]:
    """What the witness saw of a number of reads, and how long each was for the program itself."""
    with tempfile.TemporaryDirectory(prefix="pgtare-calibrate-") as directory:
        program = Path(directory) / "calibrate"
        try:
            subprocess.run(["cc", "-O2", "-o", program, SOURCE], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as ex:
            raise MeasurementError(f"calibration needs a C compiler: {ex}") from ex
        with subprocess.Popen(
            [program, str(waits)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            word = Word(int(running.stdout.readline(), 16), running.pid)
            with Witness([word]) as witness:
                output, _ = running.communicate("\n")
    return witness.log, [int(line) for line in output.split()]


def calibrate(waits: int = 5000) -> Calibration:
    """Raises MeasurementError if the witness did not see every wait."""
    for _ in range(ATTEMPTS):
        log, own = run(waits)
        seen = log.announcements
        if len(own) == waits:  # a stray trap can end the program: see run.py
            break
    if [wait.event for wait in seen] != list(range(1, waits + 1)) or log.lost:
        raise MeasurementError(
            f"the witness saw {len(seen)} of {waits} waits and lost {log.lost} lines: "
            "is the machine overloaded?"
        )
    return Calibration(
        waits,
        statistics.median(wait.ns - ns for wait, ns in zip(seen, own, strict=True)),
        statistics.median(ns - wait.call_ns for wait, ns in zip(seen, own, strict=True)),
    )
