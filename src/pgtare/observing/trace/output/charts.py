"""The chart of a trace: active sessions over time, by class of wait."""

from __future__ import annotations

import numpy as np

from pgtare.kit import plots
from pgtare.kit.chart import Chart
from pgtare.observing.trace.analysis.ledger import CPU, NAMES, QUEUE, UNACCOUNTED
from pgtare.observing.trace.analysis.over_time import OverTime

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


def active_sessions(times: OverTime) -> Chart | None:
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
