"""The charts of a report: what readings cost, their exact distributions, gaps, processors."""

from __future__ import annotations

from collections.abc import Sequence

from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.observing.clock import show
from pgtare.observing.clock.schema import ClockReport, ClockResult

#: The exact durations of a clock are drawn as far as this share of them, in percent.
_SHOWN_PCT = 99.9
_COLORS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c0")


def charts(report: ClockReport) -> list[Chart]:
    """Every chart that the report gives something to show for."""
    drawn = [
        _costs(report.clocks),
        _distributions(report.clocks),
        *(_exact(i, clock) for i, clock in enumerate(report.clocks)),
        _cores(report),
    ]
    return [chart for chart in drawn if chart is not None]


def _costs(clocks: Sequence[ClockResult]) -> Chart:
    layout = plots.frame(60 + 34 * len(clocks))
    layout["xaxis"] |= {"title": plots.axis_title("ns a reading")}
    layout["yaxis"] |= {"autorange": "reversed", "automargin": True}
    layout["barmode"] = "stack"
    layout["legend"] = {"orientation": "h", "y": 1.12, "traceorder": "normal"}
    names = [plots.text(clock.name) for clock in clocks]
    parts = (
        ("the reading", "c1", [c.read_ns for c in clocks]),
        ("the recording loop", "c2", [c.loop_ns for c in clocks]),
    )
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [round(value, 2) for value in values],
            "marker": {"color": color},
            "hovertemplate": "%{y}: %{x:.1f} ns<extra></extra>",
        }
        for name, color, values in parts
    ]
    cheapest = min(clocks, key=lambda clock: clock.read_ns)
    return Chart(
        id="costs",
        title="What a reading costs",
        label=f"ns a reading by clock; the cheapest is {cheapest.name}",
        caption="Medians; the recording loop's own share is apart and belongs to the measurement.",
        height=60 + 34 * len(clocks),
        data=data,
        layout=layout,
        table_head=["clock", "a reading, ns", "loop, ns"],
        table_rows=[[c.name, f"{c.read_ns:.2f}", f"{c.loop_ns:.2f}"] for c in clocks],
    )


def _distributions(clocks: Sequence[ClockResult]) -> Chart:
    """How many differences were longer, on logarithmic axes: where the gaps are."""
    layout = plots.frame(400)
    layout["xaxis"] |= {"type": "log", "title": plots.axis_title("longer than, ns")}
    layout["yaxis"] |= {
        "type": "log",
        "title": plots.axis_title("share of readings, %"),
        "exponentformat": "power",
    }
    layout["legend"] = {"orientation": "h", "y": -0.25}
    data, rows = [], []
    for i, clock in enumerate(clocks):
        total = sum(bucket.count for bucket in clock.histogram) or 1
        left, x, y = total, [], []
        for bucket in clock.histogram:
            left -= bucket.count
            if left and bucket.up_to_ns:
                x.append(bucket.up_to_ns)
                y.append(float(f"{100 * left / total:.5g}"))
            if bucket.count:
                rows.append(
                    [clock.name, numbers.count(bucket.up_to_ns), numbers.count(bucket.count)]
                )
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plots.text(clock.name),
                "x": x,
                "y": y,
                "line": {
                    "color": _COLORS[i % len(_COLORS)],
                    "width": 2,
                    "dash": plots.DASHES[i // len(_COLORS) % len(plots.DASHES)],
                },
                "hovertemplate": "%{y:.3~g} % over %{x} ns<extra></extra>",
            }
        )
    return Chart(
        id="distributions",
        title="How many readings took longer",
        label="Share of readings that took longer than each duration, by clock",
        caption="The fall on the left is the reading itself; what remains to the right of it are "
        "gaps: interrupts, other processes, the hypervisor.",
        height=400,
        data=data,
        layout=layout,
        table_head=["clock", "up to, ns", "readings"],
        table_rows=rows,
    )


def _exact(index: int, clock: ClockResult) -> Chart | None:
    """The durations seen, each with its own bar, as far as nearly all of them."""
    total = sum(one.count for one in clock.exact)
    shown, running = [], 0
    for one in clock.exact:
        if 100 * running >= _SHOWN_PCT * total:
            break
        running += one.count
        shown.append(one)
    if not shown:
        return None
    layout = plots.frame(240)
    layout["showlegend"] = False
    layout["xaxis"] |= {"title": plots.axis_title("ns between two readings")}
    layout["yaxis"] |= {"title": plots.axis_title("share, %")}
    data = [
        {
            "type": "bar",
            "x": [one.duration_ns for one in shown],
            "y": [float(f"{100 * one.count / total:.5g}") for one in shown],
            "marker": {"color": _COLORS[index % len(_COLORS)]},
            "hovertemplate": "%{x} ns: %{y:.3~g} %<extra></extra>",
        }
    ]
    return Chart(
        id=f"exact-{index}",
        title=f"{clock.name}: {clock.title}",
        label=f"Exact durations between readings of {clock.name}, median {show.ns(clock.p50_ns)}",
        caption=f"{numbers.count(clock.differences)} readings; drawn are the shortest "
        f"{_SHOWN_PCT:g} %, the longest took {show.ns(clock.max_ns)}.",
        height=240,
        data=data,
        layout=layout,
        table_head=["ticks", "ns", "readings"],
        table_rows=[
            [numbers.count(o.ticks), f"{o.duration_ns:,.2f}", numbers.count(o.count)] for o in shown
        ],
    )


def _cores(report: ClockReport) -> Chart | None:
    pairs = report.cores.pairs if report.cores else []
    if not pairs:
        return None
    height = 90 + 26 * len(pairs)
    layout = plots.frame(height)
    layout["showlegend"] = False
    layout["xaxis"] |= {"title": plots.axis_title("ns, bounds of the difference"), "zeroline": True}
    names = [f"{pair.second} minus {pair.first}" for pair in pairs]
    layout["yaxis"] |= {"automargin": True, "type": "category"}
    middles = [(pair.lo_ns + pair.hi_ns) / 2 for pair in pairs]
    halves = [(pair.hi_ns - pair.lo_ns) / 2 for pair in pairs]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "y": names,
            "x": [round(middle, 1) for middle in middles],
            "error_x": {
                "type": "data",
                "array": [round(half, 1) for half in halves],
                "color": "c1",
                "thickness": 1.6,
                "width": 4,
            },
            "marker": {"color": "c1", "size": 7},
            "hovertemplate": "%{y}: %{x} ns<extra></extra>",
        }
    ]
    return Chart(
        id="cores",
        title="Clocks of different processors",
        label=f"Bounds of the difference of the clocks of {len(pairs)} pairs of processors",
        caption="The true difference lies within each bar; a bar that misses 0 is a fault.",
        height=height,
        data=data,
        layout=layout,
        table_head=["processors", "from, ns", "to, ns"],
        table_rows=[
            [name, numbers.signed(pair.lo_ns, 0), numbers.signed(pair.hi_ns, 0)]
            for name, pair in zip(names, pairs, strict=True)
        ],
    )
