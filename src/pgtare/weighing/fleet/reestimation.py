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


def report(
    prefix: Path,
    margin: float | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> FleetWeighing:
    """A fleet's result from its raw data. A server whose data are damaged is left out, by name.

    progress: called with the number of servers that are done. Raises UsageError if there is no
    fleet weighing at the prefix, and MeasurementError if no server is left.
    """
    listing = raw_data.listing(prefix)
    figures, left_out = list[ServerFigures](), list(listing.left_out)
    for done, server in enumerate(listing.servers):
        progress(done)
        directory = prefix / SERVERS / server
        try:
            figures.append(estimate_server(server, directory, margin))
        except MeasurementError:  # it has nothing to do with the data
            raise
        except PgtareError as ex:
            left_out.append(FleetLeftOut(server=server, reason=str(ex)))
        except MemoryError as ex:
            raise MeasurementError(
                f"{directory} needs more memory than there is: take a machine with more"
            ) from ex
    progress(len(listing.servers))
    return combine_servers(figures, left_out, listing.records, margin)
