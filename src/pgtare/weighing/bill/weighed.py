"""The weighings that a bill is made of: fleets, and single results of `pgtare weigh --out`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.weighing.bill.sums import Weighed
from pgtare.weighing.fleet import raw_data
from pgtare.weighing.fleet.documents import FleetLeftOut
from pgtare.weighing.fleet.raw_data import SERVERS
from pgtare.weighing.weigh import store


@dataclass(frozen=True)
class BillInput:
    """Servers with their weighings, and what could not be read."""

    weighed: list[Weighed]
    left_out: list[FleetLeftOut]


def read(places: Sequence[Path]) -> BillInput:
    """The results at these places. Servers of a fleet without sound data are left out.

    Raises UsageError if one of the places holds no result, or two have a server of one name.
    """
    found = BillInput([], [])
    for place in places:
        if (place / SERVERS).is_dir():
            _read_fleet(place, found)
        else:
            store.RESULT.open(place)
            result = store.load_result(place / store.RESULT_FILE)
            found.weighed.append(Weighed(place.absolute().name, result))
    names = [one.server for one in found.weighed]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"two results are of a server called {twice[0]}, which would be counted twice: name "
            "one of them, or rename a directory"
        )
    return found


def _read_fleet(prefix: Path, found: BillInput) -> None:
    listing = raw_data.listing(prefix)
    known = {*listing.servers, *(one.server for one in listing.left_out)}
    found.left_out.extend([*listing.left_out, *raw_data.without_data(listing.records, known)])
    for name in listing.servers:
        try:
            result = store.load_result(prefix / SERVERS / name / store.RESULT_FILE)
        except MeasurementError:
            raise
        except PgtareError as ex:
            found.left_out.append(FleetLeftOut(server=name, reason=str(ex)))
        else:
            found.weighed.append(Weighed(name, result))
