"""When messages arrived, to the ns: by the waits for the client that they ended."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pgtare.observing.trace.file.reader import Integers, Trace, Waits
from pgtare.observing.trace.file.records import ESTIMATED

#: The server tells of arrivals in whole µs, cut off: ns.
_STEP = 1000


def ends_of_waits_for_clients(trace: Trace, waits: Waits) -> Integers:
    """When waits for the client ended, in order, ns."""
    of = [number for number, event in trace.events.items() if event.type == "Client"]
    ends: Integers = (waits.start + waits.length)[np.isin(waits.event, of)]
    return np.sort(ends)


def sharpened(arrivals: Integers, ends: Integers) -> Integers:
    """Arrivals (ns, true to the µs) as the ends of the waits that they ended, if there are any.

    A message that was there already ended no wait.
    """
    if not len(ends):
        return arrivals
    following = ends[np.minimum(np.searchsorted(ends, arrivals, "left"), len(ends) - 1)]
    late = following - arrivals
    return np.asarray(np.where((late > 0) & (late < _STEP), following, arrivals))


def sharpen_calls(calls: npt.NDArray[np.void], ends: Integers) -> None:
    """The same for calls that begin with a message, whose arrival the server only estimates."""
    of = calls["flags"] & ESTIMATED != 0
    start = sharpened(calls["start"][of], ends)
    calls["start"][of] = np.minimum(start, calls["end"][of])
