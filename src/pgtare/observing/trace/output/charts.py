"""The charts of a trace: sessions over time by class, and lengths of waits over time."""

from __future__ import annotations

import math

import numpy as np

from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.observing.trace.analysis.ledger import CPU, NAMES, QUEUE, UNACCOUNTED
from pgtare.observing.trace.analysis.over_time import OverTime

#: Labels of an axis at most: no more than a phone has room for.
_TICKS = 10
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


def charts(times: OverTime) -> list[Chart]:
    """Every chart that the trace gives something to show for."""
    return [chart for chart in (_active(times), _heat(times)) if chart is not None]


def _span(bucket: int) -> str:
    """The bounds of a bucket in words."""
    return f"{_ns(bucket)} to {_ns(bucket + 1)}"


def _ns(exponent: int) -> str:
    return numbers.duration(2.0**exponent / 1000)


def _active(times: OverTime) -> Chart | None:
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


def _heat(times: OverTime) -> Chart | None:
    heat = times.heat
    used = np.flatnonzero(heat.any(axis=0))
    if not len(used):
        return None
    low, high = int(used[0]), int(used[-1])
    ticks = range(low, high + 1, (high - low) // _TICKS + 1)
    shown = heat[:, low : high + 1].T
    layout = plots.frame(400)
    layout["xaxis"] |= {"title": plots.axis_title("seconds since the trace began")}
    layout["yaxis"] |= {
        "tickvals": list(ticks),
        "ticktext": [_ns(b + 1) for b in ticks],
        "title": plots.axis_title("wait, up to"),
    }
    layout["margin"] |= {"l": 84}
    layout["showlegend"] = False
    middles = (times.edges_s[1:] + times.edges_s[:-1]) / 2
    data = [
        {
            "type": "heatmap",
            "x": plots.rounded(middles),
            "y": list(range(low, high + 1)),
            "z": [[math.log10(n) if n else None for n in row] for row in shown.tolist()],
            "customdata": shown.tolist(),
            "colorscale": [[0, "soft"], [1, "c1"]],
            "showscale": False,
            "hoverongaps": False,
            "hovertemplate": "%{x:.3~g} s: %{customdata} waits<extra></extra>",
        }
    ]
    by_length = heat.sum(axis=0)
    most = int(np.argmax(by_length))
    return Chart(
        id="heat",
        title="Lengths of waits over time",
        label=f"Waits by the time they ended and by their length; most took {_span(most)}",
        caption="Each cell counts the waits that ended then and lasted so long, on a logarithmic "
        "colour scale; waiting for the client is left out.",
        height=400,
        data=data,
        layout=layout,
        table_head=["length", "waits"],
        table_rows=[[_span(b), numbers.count(int(by_length[b]))] for b in range(low, high + 1)],
    )
