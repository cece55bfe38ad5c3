"""A fleet's weighing estimated again from its raw data: `pgtare fleet report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pgtare.errors import MeasurementError, PgtareError
from pgtare.weighing.fleet import raw_data
from pgtare.weighing.fleet.combination import combine_servers
from pgtare.weighing.fleet.documents import FleetLeftOut, FleetWeighing
from pgtare.weighing.fleet.raw_data import SERVERS
from pgtare.weighing.fleet.server_estimate import ServerFigures, estimate_server


class Reestimation:
    """The servers of a prefix, which are listed at once, and estimated by `run`.

    Raises UsageError if there is no fleet weighing at the prefix.
    """

    def __init__(self, prefix: Path, margin: float | None = None) -> None:
        self.prefix, self.margin = prefix, margin
        self.records = raw_data.read_records(prefix)
        self.listing = raw_data.listing(prefix)

    def run(self, progress: Callable[[int], None] = lambda done: None) -> FleetWeighing:
        """The fleet's result. A server whose data are damaged is left out of it, by name.

        progress: called with the number of servers that are done. Raises MeasurementError if no
        server is left.
        """
        figures, left_out = list[ServerFigures](), list(self.listing.left_out)
        for done, server in enumerate(self.listing.servers):
            progress(done)
            directory = self.prefix / SERVERS / server
            try:
                figures.append(estimate_server(server, directory, self.margin))
            except MeasurementError:  # it has nothing to do with the data
                raise
            except PgtareError as ex:
                left_out.append(FleetLeftOut(server=server, reason=str(ex)))
            except MemoryError as ex:
                raise MeasurementError(
                    f"{directory} needs more memory than there is: take a machine with more"
                ) from ex
        progress(len(self.listing.servers))
        return combine_servers(figures, left_out, self.records, self.margin)


def report(prefix: Path, margin: float | None = None) -> FleetWeighing:
    """A fleet's result from its raw data."""
    return Reestimation(prefix, margin).run()
