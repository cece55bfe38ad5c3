"""Finds how fast a load can go, so that it can be driven at a stated share of that."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgtare.errors import MeasurementError
from pgtare.postgres.load import pgbench as runner
from pgtare.postgres.load.spec import LoadSpec

PROBES = 3
PROBE_S = 2


@dataclass(frozen=True)
class Saturation:
    """Full-speed probes of a load, in transactions a second over all clients."""

    probes_tps: tuple[float, ...]
    probe_s: int

    @property
    def tps(self) -> float:
        """The median probe: a cold first one does not move it."""
        return statistics.median(self.probes_tps)

    def rate(self, headroom: float) -> float:
        """The rate for this share of saturation (0 < headroom < 1), transactions a second."""
        return headroom * self.tps

    def describe(self) -> dict[str, Any]:
        """For the record of a trial."""
        return {
            "saturation_tps": self.tps,
            "probes_tps": list(self.probes_tps),
            "probe_s": self.probe_s,
        }


def find_saturation(pgbench: Path, dsn: str, spec: LoadSpec) -> Saturation:
    """Run the load at full speed, PROBES times for PROBE_S s each.

    Any rate in `spec` is left out. Run it before the trial, with every instrument as it is.

    Raises UsageError and MeasurementError as pgbench's runs do, and MeasurementError if a probe
    did nothing.
    """
    full_speed = dataclasses.replace(spec, rate=None)
    rates = tuple(runner.run(pgbench, dsn, full_speed, PROBE_S).tps for _ in range(PROBES))
    if min(rates) <= 0:
        raise MeasurementError(
            f"the load did no transaction in a probe of {PROBE_S} s: its saturation rate is"
            " unknown; give --rate as a number"
        )
    return Saturation(rates, PROBE_S)
