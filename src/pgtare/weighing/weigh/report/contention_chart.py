"""The chart of where the cost falls: total, own effect and spillover side by side."""

from __future__ import annotations

from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.kit.interval import Interval
from pgtare.weighing.weigh.report import contention, wording
from pgtare.weighing.weigh.schema import WeighResult

_ROW_PX = 58


def chart(result: WeighResult) -> Chart | None:
    """None if there is no contention, or it may not be shown, or nothing has an interval."""
    found = contention.figures(result)
    if found is None or wording.ended_by_server(result):
        return None
    shown: list[tuple[str, Interval]] = [
        (text, us) for text, us, _ in contention.rows(result, found) if numbers.bounded(us)
    ]
    if not shown:
        return None
    height = _ROW_PX * len(shown) + 60
    layout = plots.frame(height)
    layout["showlegend"] = False
    layout["xaxis"] |= {"title": plots.axis_title("µs a transaction")}
    layout["yaxis"] |= {"visible": False, "range": [len(shown) - 0.35, -0.75]}
    layout["margin"] |= {"l": 14}
    layout["annotations"] = [
        plots.label(text) | {"yref": "y", "y": row - 0.36, "yanchor": "middle"}
        for row, (text, _) in enumerate(shown)
    ]
    intervals = [interval for _, interval in shown]
    points = plots.dots(intervals, "c1")
    rows = [
        [text, numbers.estimate(interval), numbers.bounds(interval)] for text, interval in shown
    ]
    return Chart(
        id="contention",
        title="Where the cost falls",
        label="Interval plot, in microseconds a transaction. "
        + " ".join(f"{text}: {value} {bounds}." for text, value, bounds in rows),
        caption="Points are estimates, bars 95 % intervals. The total is of all sessions with the "
        "instrument, the spillover of a mix in which half of the sessions have it.",
        height=height,
        data=[
            points
            | {
                "y": list(range(len(shown))),
                "marker": {"color": "c1", "size": 7},
                "hovertemplate": "%{x:+.3~g} µs<extra></extra>",
            }
        ],
        layout=layout,
        table_head=["where", "µs", "interval"],
        table_rows=rows,
    )
