"""The charts of a study: effects against the floor, rounds in pairs, percentiles, wait profiles."""

from __future__ import annotations

import math

from pgtare.kit import numbers, plots
from pgtare.kit.chart import Chart
from pgtare.weighing.ladder import wording
from pgtare.weighing.ladder.records import Wait
from pgtare.weighing.ladder.result import Compared, LadderResult, OnWorkload

_ROW_PX = 34
_QUANTILES = ("latency_mean_us", "latency_p50_us", "latency_p95_us", "latency_p99_us")
_BUCKET_0_US = 0.256


def charts(result: LadderResult) -> list[Chart]:
    """Every chart that the result gives something to show for."""
    drawn = [_effects(result)]
    for workload in result.workloads:
        drawn += [
            _rounds(result, workload),
            _quantiles(workload, result.alpha),
            _histogram(workload),
        ]
    return [chart for chart in [*drawn, _waits(result)] if chart is not None]


def _effects(result: LadderResult) -> Chart | None:
    """All comparisons with their intervals, with the floor of each workload."""
    shown = [
        (workload, c, c is workload.floor)
        for workload in result.workloads
        for c in [*workload.compared, *([workload.floor] if workload.floor else [])]
        if c.effect.pct is not None
    ]
    if not shown:
        return None
    height = _ROW_PX * len(shown) + 110
    names = [_label(workload, c, floor) for workload, c, floor in shown]
    layout = plots.frame(height)
    reach = _reach([c for _, c, _ in shown], result.margin_pct)
    layout["xaxis"] |= {
        "title": plots.axis_title("difference from the base, %"),
        "range": [-reach, reach],
        "zeroline": True,
    }
    layout["yaxis"] |= {
        "tickvals": list(range(len(shown))),
        "ticktext": [plots.text(n) for n in names],
        "range": [len(shown) - 0.5, -0.5],
        "zeroline": False,
        "automargin": True,
    }
    layout["legend"] = {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0}
    layout["shapes"] = plots.margin_band(result.margin_pct)
    data = []
    for floor, name, color, symbol in (
        (False, "comparison", "c1", "circle"),
        (True, "floor (same variant again)", "c0", "square"),
    ):
        chosen = [(i, c) for i, (_, c, is_floor) in enumerate(shown) if is_floor is floor]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [c.effect.pct for _, c in chosen],
                "y": [i for i, _ in chosen],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "color": color,
                    "thickness": 1.6,
                    "width": 4,
                    "array": [_arm(c.effect.hi_pct, c.effect.pct, reach) for _, c in chosen],
                    "arrayminus": [_arm(c.effect.pct, c.effect.lo_pct, reach) for _, c in chosen],
                },
                "marker": {"color": color, "symbol": symbol, "size": 8},
                "hovertemplate": "%{x:+.3~g} %<extra></extra>",
            }
        )
    rows = [
        [n, wording.pct(c.effect.pct), wording.interval(c.effect), wording.p_text(c.p)]
        for n, (_, c, _) in zip(names, shown, strict=True)
    ]
    return Chart(
        id="effects",
        title="What each variant costs, with the floor",
        label="Interval plot of every comparison in percent of its base. "
        + " ".join(f"{row[0]}: {row[1]} {row[2]}." for row in rows),
        caption="Points are means of the rounds (by duet, of sets of rounds), bars "
        f"{wording.level_interval(result.alpha)}s; "
        f"the grey band is the margin, ±{result.margin_pct:g} %. Squares are the floor: the same "
        "variant twice a round. Bars that run out of the frame have no end that so few rounds "
        "could give, or one in the table.",
        height=height,
        data=data,
        layout=layout,
        table_head=["comparison", "effect", wording.level_interval(result.alpha), "p"],
        table_rows=rows,
    )


def _rounds(result: LadderResult, workload: OnWorkload) -> Chart | None:
    """Every round's runs in percent of the floor variant's first run of that round."""
    if not workload.by_round:
        return None
    base = result.floor
    names = [name for name in workload.by_round[0] if name != base]
    noun = wording.block(workload)
    order = [r.variant for r in workload.rungs if r.variant in names]
    layout = plots.frame(340)
    layout["xaxis"] |= {
        "tickvals": list(range(len(order))),
        "ticktext": [plots.text(n) for n in order],
        "range": [-0.5, len(order) - 0.5],
        "zeroline": False,
    }
    layout["yaxis"] |= {
        "title": plots.axis_title(
            f"{wording.SHORT[workload.metric]} against {plots.text(base)}, %"
        ),
        "zeroline": True,
    }
    layout["showlegend"] = False
    relative = [
        [100 * math.log(values[name] / values[base]) for name in order]
        for values in workload.by_round
    ]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": list(range(len(order))),
            "y": [round(v, 4) for v in row],
            "name": f"{noun} {i}",
            "line": {"color": "band", "width": 1},
            "marker": {"color": "c1", "size": 7},
            "hovertemplate": f"{noun} {i}: %{{y:+.3~g}} %<extra></extra>",
        }
        for i, row in enumerate(relative, start=1)
    ]
    return Chart(
        id=f"rounds-{workload.name}",
        title=f"{workload.name}: {noun} by {noun}",
        label=f"Dot plot of {len(relative)} {noun}s of {workload.name}: each variant in "
        f"percent of {base} in the same {noun}, a line joining the variants of a {noun}.",
        caption=f"A dot a variant, a line a {noun}, in percent of {base} in the same {noun} (log "
        f"scale); the scatter of {base} again is the floor.",
        height=340,
        data=data,
        layout=layout,
        table_head=[noun, *order],
        table_rows=[
            [str(i), *(wording.pct(v) for v in row)] for i, row in enumerate(relative, start=1)
        ],
    )


def _quantiles(workload: OnWorkload, alpha: float) -> Chart | None:
    """Shifts of the percentiles of latency, a line a comparison."""
    found: list[tuple[Compared, list[tuple[str, float, float | None, float | None]]]] = []
    for c in workload.compared:
        points = [
            (b.metric, b.effect.pct, b.effect.lo_pct, b.effect.hi_pct)
            for b in c.other_metrics
            if b.metric in _QUANTILES and b.effect.pct is not None
        ]
        if c.metric in _QUANTILES and c.effect.pct is not None:
            points.append((c.metric, c.effect.pct, c.effect.lo_pct, c.effect.hi_pct))
        if len(points) > 1:
            found.append((c, sorted(points, key=lambda p: _QUANTILES.index(p[0]))))
    if not found:
        return None
    layout = plots.frame(340)
    labels = [wording.METRICS[m].removesuffix(" of latency") for m in _QUANTILES]
    layout["xaxis"] |= {
        "tickvals": list(range(len(labels))),
        "ticktext": labels,
        "range": [-0.5, len(labels) - 0.5],
        "zeroline": False,
    }
    layout["yaxis"] |= {"title": plots.axis_title("difference from the base, %")}
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    spread = 0.5 / len(found)
    data = []
    for i, (c, points) in enumerate(found):
        color, offset = f"c{i % plots.PALETTE}", spread * (i - (len(found) - 1) / 2)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plots.text(f"{c.arm} − {c.base}"),
                "x": [_QUANTILES.index(metric) + offset for metric, *_ in points],
                "y": [value for _, value, _, _ in points],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "color": color,
                    "thickness": 1.4,
                    "array": [plots.gap(hi, value) for _, value, _, hi in points],
                    "arrayminus": [plots.gap(value, lo) for _, value, lo, _ in points],
                },
                "marker": {"color": color, "size": 8},
                "hovertemplate": "%{y:+.3~g} %<extra></extra>",
            }
        )
    return Chart(
        id=f"quantiles-{workload.name}",
        title=f"{workload.name}: percentiles of latency",
        label=f"Shift of mean, median, 95th and 99th percentile of latency in {workload.name}.",
        caption="Percentiles of each run, compared within rounds (by duet, sets of rounds), with "
        f"{wording.level_interval(alpha)}s; an absent bar means that so few rounds give no end.",
        height=340,
        data=data,
        layout=layout,
        table_head=["comparison", *labels],
        table_rows=[[f"{c.arm} against {c.base}", *_cells(points)] for c, points in found],
    )


def _cells(points: list[tuple[str, float, float | None, float | None]]) -> list[str]:
    by_metric = {metric: value for metric, value, _, _ in points}
    return [wording.pct(by_metric.get(metric)) for metric in _QUANTILES]


def _waits(result: LadderResult) -> Chart | None:
    """Where the sessions of each workload spent their time."""
    shown = [w for w in result.workloads if w.waits]
    if not shown:
        return None
    events: dict[str, float] = {}
    for workload in shown:
        for wait in workload.waits:
            events[wait.event] = max(events.get(wait.event, 0.0), wait.of_sessions)
    names = sorted(events, key=lambda e: -events[e])[: plots.PALETTE - 1]
    height = _ROW_PX * len(shown) + 130
    layout = plots.frame(height)
    layout["barmode"] = "stack"
    layout["xaxis"] |= {"title": plots.axis_title("share of the sessions' time, %")}
    layout["xaxis"]["range"] = [0, 100]
    layout["yaxis"] |= {"autorange": "reversed", "automargin": True}
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    data = []
    for i, event in enumerate(names):
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plots.text(event),
                "y": [plots.text(w.name) for w in shown],
                "x": [round(100 * _share(w.waits, event), 2) for w in shown],
                "marker": {"color": f"c{(i + 1) % plots.PALETTE}"},
                "hovertemplate": "%{x:.2f} %<extra>%{fullData.name}</extra>",
            }
        )
    return Chart(
        id="waits",
        title="The waits that each workload showed",
        label="Stacked bars of the share of the sessions' time in each wait event, a bar a "
        "workload: " + "; ".join(f"{w.name} mostly {w.waits[0].event}" for w in shown),
        caption="From the run that proves a workload's profile, before its numbers count; the rest "
        "of the bar is CPU, or waiting for a processor.",
        height=height,
        data=data,
        layout=layout,
        table_head=["workload", *names],
        table_rows=[
            [w.name, *(numbers.percent(100 * _share(w.waits, e)) for e in names)] for w in shown
        ],
    )


def _histogram(workload: OnWorkload) -> Chart | None:
    """Lengths of a workload's longest wait, as each capturing variant counted them in its runs."""
    drawn = []
    rows: dict[int, list[str]] = {}
    columns = []
    event = next((w.event for w in workload.waits if not w.idle), None)
    for i, (variant, waits) in enumerate(workload.waits_by_variant.items()):
        wait = next((w for w in waits if w.event == event and w.histogram), None)
        if wait is None:
            continue
        used = [b for b, n in enumerate(wait.histogram) if n]
        columns.append(variant)
        for b in used:
            rows.setdefault(b, [""] * len(workload.waits_by_variant))[len(columns) - 1] = (
                numbers.count(wait.histogram[b])
            )
        drawn.append(
            {
                "type": "bar",
                "name": plots.text(variant),
                "x": [_bucket(b) for b in used],
                "y": [wait.histogram[b] for b in used],
                "marker": {"color": f"c{(i + 1) % plots.PALETTE}"},
                "hovertemplate": "%{x}: %{y:,}<extra>%{fullData.name}</extra>",
            }
        )
    if not drawn or event is None:
        return None
    layout = plots.frame(300)
    layout["barmode"] = "group"
    layout["xaxis"] |= {
        "title": plots.axis_title("wait, up to"),
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [_bucket(b) for b in sorted(rows)],
    }
    layout["yaxis"] |= {"type": "log", "title": plots.axis_title("waits")}
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    return Chart(
        id=f"histogram-{workload.name}",
        title=f"{workload.name}: lengths of {event}",
        label=f"Histogram of {event} by powers of two, in {', '.join(columns)}.",
        caption="As the views of wait_event_timing counted it in the last round kept: the evidence "
        "that the instrument ran.",
        height=300,
        data=drawn,
        layout=layout,
        table_head=["up to", *columns],
        table_rows=[[_bucket(b), *rows[b][: len(columns)]] for b in sorted(rows)],
    )


def _bucket(b: int) -> str:
    return numbers.duration(_BUCKET_0_US * 2.0**b)


def _share(waits: tuple[Wait, ...], event: str) -> float:
    return sum(w.of_sessions for w in waits if w.event == event)


def _label(workload: OnWorkload, c: Compared, floor: bool) -> str:
    by = "" if workload.words.usual else f" ({workload.protocol})"
    return f"{workload.name} {'floor' if floor else f'{c.arm} − {c.base}'}{by}"


def _arm(upper: float | None, lower: float | None, reach: float) -> float:
    """The length of a bar; one without an end runs out of the frame."""
    if upper is None or lower is None or lower <= -100:
        return 4 * reach
    return max(0.0, upper - lower)


def _reach(shown: list[Compared], margin: float) -> float:
    ends = [abs(c.effect.pct or 0.0) for c in shown]
    ends += [
        abs(end)
        for c in shown
        for end in (c.effect.lo_pct, c.effect.hi_pct)
        if end is not None and end > -100
    ]
    return 1.1 * max([*ends, 1.5 * margin])
