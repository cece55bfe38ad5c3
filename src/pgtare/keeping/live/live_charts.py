"""Charts of the views: stacked bars over time, a heat map of latencies, and lines."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgtare.keeping.live import time_window
from pgtare.keeping.live.page_parts import LiveChart
from pgtare.keeping.live.time_window import DAY_US, US, TimeWindow
from pgtare.kit import plots
from pgtare.kit.plots import Json

#: Colours of wait classes, as everywhere else on the page; others take what a chart has left.
_CLASS_COLORS = {
    "CPU": "c3",
    "IO": "c1",
    "LWLock": "c2",
    "Lock": "c7",
    "IPC": "c4",
    "Timeout": "c5",
    "BufferPin": "c6",
    "Buffer": "c6",
    "Client": "c0",
}
_COLORS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c0")
OTHERS = "(others)"
_MOST_MEMBERS = 7
_HEIGHT = 340
_LONGEST_NAME = 44
#: Upper ends of the classes of a histogram, ns; the last has none.
BOUNDS_NS = [1 << (number + 8) for number in range(31)]


@dataclass(frozen=True)
class ChartShade:
    """A span of time to mark, µs since 1970, and what it was."""

    from_us: int
    to_us: int
    color: str
    words: str


def activity_chart(
    id_: str,
    rows: Sequence[Mapping[str, Any]],
    window: TimeWindow,
    step_us: int,
    processors: float | None,
    by_class: bool,
    shades: Sequence[ChartShade] = (),
) -> LiveChart:
    """Average active sessions over time as stacked bars, the largest members below."""
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row["member"]] += row["aas"]
    kept = sorted(sums, key=lambda one: (-sums[one], one))
    kept = kept if by_class else kept[:_MOST_MEMBERS]
    cells: dict[str, dict[int, float]] = {one: defaultdict(float) for one in kept}
    for row in rows:
        member = row["member"] if row["member"] in cells else OTHERS
        cells.setdefault(member, defaultdict(float))[row["bucket_us"]] += row["aas"]
    own = {member: _CLASS_COLORS.get(member) if by_class else None for member in cells}
    free = itertools.cycle([one for one in _COLORS if one not in own.values()] or _COLORS)
    hover = f"%{{x|{_hover_time(window)}}}: %{{y:.3~g}}<extra>%{{fullData.name}}</extra>"
    data: list[Json] = []
    for member, values in cells.items():
        color = own[member] or ("c0" if member == OTHERS else next(free))
        times = sorted(values)
        data.append(
            {
                "type": "bar",
                "name": plots.text(_short(member)),
                "x": [time_window.iso(us) for us in times],
                "y": [float(f"{values[us]:.5g}") for us in times],
                "width": [step_us // 1000] * len(times),
                "offset": 0,
                "marker": {"color": color, "line": {"width": 0}},
                "hovertemplate": hover,
            }
        )
    if processors:
        ends = [time_window.iso(window.after_us), time_window.iso(window.to_us)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"processors ({processors:g})",
                "x": ends,
                "y": [processors, processors],
                "line": {"color": "ink", "width": 1.5, "dash": "dash"},
                "hoverinfo": "skip",
            }
        )
    layout = _frame(window, "active sessions") | {"barmode": "stack", "bargap": 0}
    layout["shapes"] = [_shape(shade, window) for shade in shades]
    label = (
        f"Average active sessions, {window.words()}, as stacked bars: "
        f"mostly {', '.join(kept[:4])}. "
        "The table below has the figures."
    )
    if shades:
        label += " Shaded: " + "; ".join(shade.words for shade in shades) + "."
    return LiveChart(id_, label, _HEIGHT, data, layout, brush=True)


def _shape(shade: ChartShade, window: TimeWindow) -> Json:
    ends = max(shade.from_us, window.after_us), min(shade.to_us, window.to_us)
    return {
        "type": "rect",
        "layer": "below",
        "xref": "x",
        "yref": "paper",
        "x0": time_window.iso(ends[0]),
        "x1": time_window.iso(ends[1]),
        "y0": 0,
        "y1": 1,
        "fillcolor": shade.color,
        "opacity": 0.16,
        "line": {"width": 0},
    }


def heat_chart(rows: Sequence[Mapping[str, Any]], window: TimeWindow, step_us: int) -> LiveChart:
    """How many waits ended in each class of duration, over time.

    Counts outside of statements are differences: where one is negative, nothing is drawn.
    """
    counts = {
        row["bucket_us"]: [max(0, row[f"in_h{i:02d}"] or 0) for i in range(32)] for row in rows
    }
    used = [i for i in range(32) if any(values[i] for values in counts.values())]
    low, high = (min(used), max(used) + 1) if used else (0, 1)
    times = list(range(window.after_us // step_us * step_us, window.to_us, step_us))
    z = [[counts.get(us, [0] * 32)[i] or None for us in times] for i in range(low, high)]
    data: list[Json] = [
        {
            "type": "heatmap",
            "x": [time_window.iso(us + step_us // 2) for us in times],
            "y": [class_words(i) for i in range(low, high)],
            "z": [[n and float(f"{math.log10(n):.4g}") for n in line] for line in z],
            "customdata": z,
            "colorscale": [[0, "heat0"], [0.5, "heat1"], [1, "heat2"]],
            "colorbar": {
                "title": {"text": "waits", "side": "right"},
                "thickness": 10,
                "tickvals": list(range(10)),
                "ticktext": [f"10<sup>{n}</sup>" for n in range(10)],
            },
            "hovertemplate": f"%{{x|{_hover_time(window)}}}, %{{y}}: %{{customdata:,}} waits"
            "<extra></extra>",
        }
    ]
    layout = _frame(window, "")
    layout["yaxis"] |= {"type": "category", "automargin": True}
    layout["showlegend"] = False
    label = "Heat map: how many waits of each duration ended, over time. The table has percentiles."
    return LiveChart("latency", label, _HEIGHT, data, layout, brush=True)


def line_chart(
    id_: str,
    lines: Mapping[str, Sequence[tuple[int, float]]],
    window: TimeWindow,
    title: str,
    label: str,
) -> LiveChart:
    """Lines over time: by name, times in µs with values."""
    data: list[Json] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plots.text(name),
            "x": [time_window.iso(us) for us, _ in points],
            "y": [float(f"{value:.5g}") for _, value in points],
            "line": {"color": color, "width": 2, "shape": "hv"},
        }
        for (name, points), color in zip(lines.items(), _COLORS, strict=False)
    ]
    return LiveChart(id_, label, 260, data, _frame(window, title), brush=True)


def bar_chart(names: Sequence[str], values: Sequence[float], title: str, label: str) -> LiveChart:
    """Horizontal bars of what grew and what shrank."""
    labels = [plots.text(_short(name)) for name in names][::-1]
    data: list[Json] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": list(range(len(names))),
            "text": labels,
            "textposition": "none",
            "x": [float(f"{value:.5g}") for value in values][::-1],
            "marker": {"color": ["c7" if value > 0 else "c3" for value in values][::-1]},
            "hovertemplate": "%{text}: %{x:+.3~g}<extra></extra>",
        }
    ]
    layout = plots.frame(110 + 26 * len(names))
    layout["xaxis"] |= {"title": plots.axis_title(title), "zeroline": True}
    layout["yaxis"] |= {
        "automargin": True,
        "tickvals": list(range(len(names))),
        "ticktext": labels,
    }
    layout["showlegend"] = False
    return LiveChart("change", label, 110 + 26 * len(names), data, layout)


def class_words(number: int) -> str:
    """The upper end of a class of durations, in words."""
    if number >= len(BOUNDS_NS):
        return "longer"
    ns = float(BOUNDS_NS[number])
    for unit, scale in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)):
        if ns < 1000 * scale or unit == "s":
            return f"< {ns / scale:.3g} {unit}"
    raise AssertionError("unreachable")


def _short(name: str) -> str:
    """A name, cut to what a chart has room for, before anything is escaped."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _frame(window: TimeWindow, title: str) -> Json:
    layout = plots.frame(_HEIGHT)
    layout["xaxis"] |= {
        "type": "date",
        "range": [time_window.iso(window.after_us), time_window.iso(window.to_us)],
        "showgrid": False,
    }
    layout["yaxis"] |= {"title": plots.axis_title(title), "rangemode": "tozero"}
    layout["legend"] = {"orientation": "h", "y": -0.16, "yanchor": "top", "traceorder": "normal"}
    layout["hovermode"] = "closest"
    return layout


def _hover_time(window: TimeWindow) -> str:
    """How a bar names its time: with the day, if there is more than one."""
    return "%H:%M:%S" if window.seconds < DAY_US / US else "%Y-%m-%d %H:%M"
