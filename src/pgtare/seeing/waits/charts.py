"""The charts of a recording: sessions over time by class, a heat map, histograms by event."""

from __future__ import annotations

import math

import numpy as np

from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.seeing.waits.summary import BUCKETS, CPU, Sum, Summary, is_idle

HISTOGRAMS = 6
# One colour a class wherever it is drawn, the most common ones far apart.
_COLORS = {
    CPU: "c3",
    "IO": "c1",
    "Lock": "c7",
    "LWLock": "c2",
    "IPC": "c4",
    "Timeout": "c6",
    "BufferPin": "c5",
    "Buffer": "c5",
    "Extension": "c0",
}


def charts(summary: Summary) -> list[Chart]:
    """Every chart that the recording gives something to show for."""
    drawn = [_active(summary), _heat(summary)]
    events = sorted(
        ((event, s) for event, s in summary.events.items() if s.waits and not is_idle(event)),
        key=lambda pair: -pair[1].total_ns,
    )[:HISTOGRAMS]
    drawn += [_histogram(i, summary.label(event), s) for i, (event, s) in enumerate(events)]
    return [chart for chart in drawn if chart is not None]


def bounds(bucket: int) -> tuple[float, float]:
    """The bounds of a bucket in µs; the first begins at 0, the last has no end."""
    low = 0.0 if bucket == 0 else 2.0 ** (bucket + 7) / 1000
    return low, math.inf if bucket == BUCKETS - 1 else 2.0 ** (bucket + 8) / 1000


def span(bucket: int) -> str:
    """The bounds of a bucket in words."""
    low, high = bounds(bucket)
    if bucket == 0:
        return f"under {numbers.duration(high)}"
    if math.isinf(high):
        return f"{numbers.duration(low)} and more"
    return f"{numbers.duration(low)} to {numbers.duration(high)}"


def _active(summary: Summary) -> Chart | None:
    shown = {
        name: values
        for name, values in summary.active.items()
        if name not in ("Activity", "Client") and values.any()
    }
    if not shown:
        return None
    names = sorted(shown, key=lambda name: (name != CPU, -float(shown[name].mean())))
    layout = plots.frame(380)
    layout["xaxis"] |= {"title": plots.axis_title("seconds since the recording began")}
    layout["yaxis"] |= {"title": plots.axis_title("sessions"), "rangemode": "tozero"}
    layout["legend"] = {"orientation": "h", "y": -0.22, "traceorder": "normal"}
    layout["hovermode"] = "x unified"
    middles = (summary.edges_s[1:] + summary.edges_s[:-1]) / 2
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
        caption="Traced sessions that worked or waited, by class of wait; waiting for the client "
        "is left out. CPU time is known at the end of each statement and spread over it; what the "
        "kernel works while a session waits is in both.",
        height=380,
        data=data,
        layout=layout,
        table_head=["class", "on average", "at most"],
        table_rows=[
            [name, f"{float(shown[name].mean()):.3f}", f"{float(shown[name].max()):.2f}"]
            for name in names
        ],
    )


def _heat(summary: Summary) -> Chart | None:
    heat = summary.heat
    used = np.flatnonzero(heat.any(axis=0))
    if not len(used):
        return None
    low, high = int(used[0]), int(used[-1])
    shown = heat[:, low : high + 1].T
    layout = plots.frame(400)
    layout["xaxis"] |= {"title": plots.axis_title("seconds since the recording began")}
    layout["yaxis"] |= {
        **_ticks(low, high, 10),
        "title": plots.axis_title("wait, up to"),
    }
    layout["margin"] |= {"l": 84}
    layout["showlegend"] = False
    middles = (summary.edges_s[1:] + summary.edges_s[:-1]) / 2
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
        label=f"Waits by the time they ended and by their length; most took {span(most)}",
        caption="Each cell counts the waits that ended then and lasted so long, on a logarithmic "
        "colour scale; waiting for the client is left out.",
        height=400,
        data=data,
        layout=layout,
        table_head=["length", "waits"],
        table_rows=[[span(b), numbers.count(int(by_length[b]))] for b in range(low, high + 1)],
    )


def _ticks(low: int, high: int, most: int) -> plots.Json:
    """Labels for an axis of buckets, at their upper bounds; no more than a phone has room for."""
    ticks = list(range(low, high + 1, (high - low) // most + 1))
    last = BUCKETS - 1
    return {
        "tickvals": ticks,
        "ticktext": [numbers.duration(bounds(b)[1]) if b < last else "more" for b in ticks],
    }


def _histogram(index: int, label: str, counted: Sum) -> Chart:
    used = np.flatnonzero(counted.histogram)
    buckets = range(int(used[0]), int(used[-1]) + 1)
    layout = plots.frame(240)
    layout["showlegend"] = False
    layout["xaxis"] |= {
        **_ticks(buckets[0], buckets[-1], 6),
        "title": plots.axis_title("length of the wait, up to"),
        "tickangle": 0,
    }
    layout["yaxis"] |= {"title": plots.axis_title("waits")}
    layout["bargap"] = 0.08
    data = [
        {
            "type": "bar",
            "x": list(buckets),
            "y": [int(counted.histogram[b]) for b in buckets],
            "text": [span(b) for b in buckets],
            "textposition": "none",
            "marker": {"color": _COLORS.get(label.partition("/")[0], "c0")},
            "hovertemplate": "%{text}: %{y} waits<extra></extra>",
        }
    ]
    mean_us = counted.lengths_ns / counted.waits / 1000
    return Chart(
        id=f"histogram-{index}",
        title=label,
        label=f"Histogram of {counted.waits} waits for {label}, {numbers.duration(mean_us)} on "
        "average",
        caption=f"{numbers.count(counted.waits)} waits, "
        f"{numbers.duration(counted.lengths_ns / 1000)} in all, {numbers.duration(mean_us)} on "
        f"average, {numbers.duration(counted.max_ns / 1000)} at most.",
        height=240,
        data=data,
        layout=layout,
        table_head=["length", "waits"],
        table_rows=[[span(b), numbers.count(int(counted.histogram[b]))] for b in buckets],
    )
