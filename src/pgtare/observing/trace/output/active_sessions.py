"""How many sessions of a trace were active over its time, by class of wait, and the chart of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgtare.kit import plots
from pgtare.kit.chart import Chart
from pgtare.observing.trace.analysis.ledger import (
    CLIENT,
    CPU,
    MISSING,
    NAMES,
    OWN,
    QUEUE,
    UNACCOUNTED,
    Ledger,
    ends_of_work,
)

Floats = npt.NDArray[np.float64]

BINS = 180
#: Classes of waits for something to do.
_IDLE = frozenset({"Activity", "Client"})
# One colour a class wherever it is drawn, the most common ones far apart.
_COLORS = {
    NAMES[CPU]: "c3",
    NAMES[QUEUE]: "c4",
    NAMES[UNACCOUNTED]: "c0",
    "IO": "c1",
    "Lock": "c7",
    "LWLock": "c2",
    "IPC": "c4",
    "Timeout": "c6",
    "BufferPin": "c5",
    "Buffer": "c5",
    "Extension": "c0",
}


@dataclass
class OverTime:
    """edges_s: the bounds of the bins of time, since the trace began.

    active: by class of wait, and for what is no wait, the sessions and workers on average in each
    bin, without those that were idle.
    """

    edges_s: Floats
    active: dict[str, Floats] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Active sessions on average."""
        return float(sum(values.mean() for values in self.active.values()))


def over_time(ledger: Ledger) -> OverTime:
    """Spread the bookings of a trace over its time."""
    begin = min((p.begin for p in ledger.processes), default=0)
    end = max((p.end for p in ledger.processes), default=0)
    found = OverTime(np.linspace(0.0, max((end - begin) / 1e9, 1e-3), BINS + 1))
    worked_until = ends_of_work(ledger.calls)
    for component in np.unique(ledger.entries.component).tolist():
        name = ledger.name(CPU if component == OWN else component)
        kind = name.partition("/")[0]
        if component in (CLIENT, MISSING) or (component >= 0 and kind in _IDLE):
            continue
        e = ledger.entries.of(ledger.entries.component == component)
        start = (e.begin - begin) / 1e9
        length = e.ns / 1e9
        if component < 0 and len(ledger.calls):
            # one booking has the time of all pieces of a call: it is spread over the call's work
            ends = (worked_until[e.call] - begin) / 1e9
            length = np.where(e.call >= 0, np.maximum(length, ends - start), length)
        weight = (e.ns / 1e9) / np.maximum(length, 1e-12)
        some = occupancy(start, start + length, found.edges_s, weight)
        found.active[kind] = found.active.get(kind, np.zeros(BINS)) + some
    return found


def occupancy(start: Floats, end: Floats, edges: Floats, weight: Floats) -> Floats:
    """How many of the intervals [start, end) cover each bin on average, each with its weight.

    All in one unit. The time before t that intervals cover is a difference of two sums of ramps,
    one from the starts and one from the ends, so that sorting is all the work.
    """

    def ramps(at: Floats) -> Floats:
        order = np.argsort(at)
        ordered = at[order]
        n = np.concatenate([[0.0], np.cumsum(weight[order])])
        s = np.concatenate([[0.0], np.cumsum(weight[order] * ordered)])
        k = np.searchsorted(ordered, edges)
        return np.asarray(n[k] * edges - s[k], dtype=np.float64)

    covered = np.diff(ramps(start) - ramps(end))
    return np.asarray(np.maximum(covered, 0.0) / np.diff(edges), dtype=np.float64)


def chart(times: OverTime) -> Chart | None:
    """Sessions active over time, by what they waited for; None: none was."""
    shown = {name: values for name, values in times.active.items() if values.any()}
    if not shown:
        return None
    names = sorted(shown, key=lambda name: (name != NAMES[CPU], -float(shown[name].mean())))
    layout = plots.frame(380)
    layout["xaxis"] |= {"title": plots.axis_title("seconds since the trace began")}
    layout["yaxis"] |= {"title": plots.axis_title("sessions"), "rangemode": "tozero"}
    layout["legend"] = {"orientation": "h", "y": -0.22, "traceorder": "normal"}
    layout["hovermode"] = "x unified"
    middles = (times.edges_s[1:] + times.edges_s[:-1]) / 2
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "active",
            "name": plots.text(name),
            "x": plots.rounded(middles),
            "y": plots.rounded(shown[name]),
            "line": {"color": _COLORS.get(name, "c0"), "width": 1, "shape": "hvh"},
            "fillcolor": _COLORS.get(name, "c0"),
            "hovertemplate": "%{y:.2f}",
        }
        for name in names
    ]
    top = names[int(np.argmax([float(shown[n].mean()) for n in names]))]
    return Chart(
        id="active",
        title="Active sessions over time",
        label=f"Sessions active at each time, stacked by what they waited for; most of it {top}",
        caption="Traced sessions and their parallel workers that worked or waited, by class of "
        "wait; waiting for the client is left out. What is no wait is known by call, and is spread "
        "over it.",
        height=380,
        data=data,
        layout=layout,
        table_head=["class", "on average", "at most"],
        table_rows=[
            [name, f"{float(shown[name].mean()):.3f}", f"{float(shown[name].max()):.2f}"]
            for name in names
        ],
    )
