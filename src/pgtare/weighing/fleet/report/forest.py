"""The forest plot of an arm: each server with its interval, then the mean, then the next server."""

from __future__ import annotations

from collections.abc import Sequence

from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.weighing.fleet.documents import FleetArm, FleetWeighing, ServerArm

_ROW_PX, _EDGE_PX = 24, 110
#: With more servers rows are thinner, and have no names.
_MOST_NAMED = 80
_THIN_PX, _LEAST_PX = 1_600, 3.0
#: Names are cut to this in the plot; its table has them in full.
_LONGEST_NAME = 20


def chart(arm: FleetArm, result: FleetWeighing, number: int) -> Chart | None:
    """The plot in percent; None without a server. number: of the arm on its page."""
    servers = sorted(
        (one for one in arm.servers if not one.left_out and numbers.bounded(one.pct)),
        key=lambda one: (-(one.pct.estimate or 0.0), one.server),
    )
    if not servers:
        return None
    rows = len(servers) + (2 if arm.k > 1 else 0)
    named = len(servers) <= _MOST_NAMED
    row_px = _ROW_PX if named else max(_THIN_PX / rows, _LEAST_PX)
    height = round(rows * row_px) + _EDGE_PX
    layout = plots.frame(height)
    layout["showlegend"] = False
    lo, hi = _range(servers, arm, result.margin_pct)
    layout["xaxis"] |= {
        "title": plots.axis_title("cost, % of the base's body"),
        "range": [lo, hi],
        "zeroline": True,
    }
    layout["yaxis"] |= {
        "range": [rows - 0.4, -0.6],
        "zeroline": False,
        "showgrid": False,
        "automargin": True,
        "tickvals": [row for row, _ in _names(servers, arm, named)],
        "ticktext": [plots.text(_short(name)) for _, name in _names(servers, arm, named)],
    }
    layout["shapes"] = plots.margin_band(result.margin_pct)
    return Chart(
        id=f"forest-{number}",
        title=f"{arm.name} on each server",
        label=_label(arm, servers),
        caption="Points are estimates, bars 95 % intervals; a square is a server unlike the rest. "
        "Below them are the mean of the fleet and what to expect on the next server. The grey band "
        f"is ±{result.margin_pct:g} %, the margin. An interval that runs out of the frame is in "
        "the table in full.",
        height=height,
        data=[_servers(arm, servers), *_fleet(arm, len(servers))],
        layout=layout,
        table_head=["server", "cost %", "interval", "cost µs", "interval", "verdict"],
        table_rows=[_row(one) for one in servers],
    )


def _names(servers: Sequence[ServerArm], arm: FleetArm, named: bool) -> list[tuple[int, str]]:
    found = [(row, one.server) for row, one in enumerate(servers)] if named else []
    if arm.k > 1:
        found += [(len(servers), "mean"), (len(servers) + 1, "next server")]
    return found


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _label(arm: FleetArm, servers: Sequence[ServerArm]) -> str:
    text = (
        f"Forest plot: effect of {arm.name} in percent on "
        f"{numbers.counted(len(servers), 'server')}. "
        f"Mean {numbers.with_bounds(arm.cost_pct.mean, '%')}."
    )
    if arm.cost_pct.prediction is not None:
        text += f" Next server {numbers.bounds(arm.cost_pct.prediction)} %."
    return text


def _servers(arm: FleetArm, servers: Sequence[ServerArm]) -> plots.Json:
    unlike = {one.server for one in arm.cost_pct.outliers}
    intervals = [one.pct for one in servers]
    points = plots.dots(intervals, "c1")
    return points | {
        "y": list(range(len(servers))),
        "marker": {
            "color": ["c2" if one.server in unlike else "c1" for one in servers],
            "symbol": ["square" if one.server in unlike else "circle" for one in servers],
            "size": 11,
        },
        "text": [plots.text(one.server) for one in servers],
        "hovertemplate": "%{text}: %{x:+.3~g} %<extra></extra>",
    }


def _fleet(arm: FleetArm, row: int) -> list[plots.Json]:
    """The mean, and the prediction."""
    if arm.k < 2:
        return []
    shown = [("mean", arm.cost_pct.mean, "c3", "diamond", 13)]
    if arm.cost_pct.prediction is not None:
        shown.append(("next server", arm.cost_pct.prediction, "c4", "line-ns-open", 12))
    return [
        plots.dots([interval], color)
        | {
            "y": [row + i],
            "marker": {"color": color, "symbol": symbol, "size": size},
            "hovertemplate": f"{name} %{{x:+.3~g}} %<extra></extra>",
        }
        for i, (name, interval, color, symbol, size) in enumerate(shown)
    ]


def _range(servers: Sequence[ServerArm], arm: FleetArm, margin_pct: float) -> tuple[float, float]:
    """A frame that holds all estimates, the mean and the prediction, and most of the bars."""
    fleet = [arm.cost_pct.mean, *([arm.cost_pct.prediction] if arm.cost_pct.prediction else [])]
    core = [one.pct.estimate or 0.0 for one in servers] + [0.0, margin_pct, -margin_pct]
    core += [x for interval in fleet for x in (interval.lo, interval.hi) if x is not None]
    lo, hi = min(core), max(core)
    span = (hi - lo) or 1.0
    ends = [x for one in servers for x in (one.pct.lo, one.pct.hi) if x is not None]
    lo = max(min([lo, *ends]), lo - span)
    hi = min(max([hi, *ends]), hi + span)
    pad = 0.05 * (hi - lo)
    return lo - pad, hi + pad


def _row(one: ServerArm) -> list[str]:
    return [
        one.server,
        numbers.estimate(one.pct),
        numbers.bounds(one.pct),
        numbers.estimate(one.us),
        numbers.bounds(one.us),
        (one.verdict or "").replace("_", " "),
    ]
