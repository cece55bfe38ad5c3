"""Pieces of Plotly descriptions: axes, panels, points with bars, bands, and text made safe."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.kit import numbers
from pgtare.kit.interval import Interval

Json = dict[str, Any]
Floats = npt.NDArray[np.float64]
_BLANK = Interval(estimate=None, lo=None, hi=None)

# Colours are names of the page's CSS variables; its script puts in the values for light or dark.
PALETTE = 8
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")


def frame(height: int) -> Json:
    """A layout of this height in px, quiet and without zoom, so that a phone can scroll past it."""
    axis = {"gridcolor": "grid", "zerolinecolor": "axis", "linecolor": "axis", "fixedrange": True}
    return {
        "height": height,
        "autosize": True,
        "paper_bgcolor": "paper",
        "plot_bgcolor": "paper",
        "font": {"color": "ink", "size": 13, "family": "system-ui, sans-serif"},
        "hoverlabel": {"bgcolor": "paper", "font": {"color": "ink"}},
        "margin": {"l": 52, "r": 14, "t": 14, "b": 48},
        "showlegend": True,
        "dragmode": False,
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }


def axis_title(text: str) -> Json:
    """The title of an axis, close to it."""
    return {"text": text, "font": {"size": 13}, "standoff": 8}


def label(name: str, *, control: bool = False) -> Json:
    """A name in bold at the left edge, with a note if it is the control's.

    The caller puts it at a height.
    """
    note, color = (" (nothing changed)", "muted") if control else ("", "ink")
    return {
        "text": f"<b>{text(name)}</b>{note}",
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "showarrow": False,
        "bgcolor": "paper",
        "borderpad": 1,
        "font": {"color": color, "size": 13},
    }


def dots(intervals: Sequence[Interval], color: str) -> Json:
    """Estimates with the bars of their intervals, along x; the caller puts them at heights.

    One that lacks an end is blank: a point without a bar would look exact.
    """
    known = [i if numbers.bounded(i) else _BLANK for i in intervals]
    up = [gap(i.hi, i.estimate) for i in known]
    down = [gap(i.estimate, i.lo) for i in known]
    bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [interval.estimate for interval in known],
        "error_x": bars | {"color": color, "thickness": 1.6, "width": 4},
    }


def margin_band(margin: float) -> list[Json]:
    """The band from -margin to +margin behind everything."""
    return [
        {
            "type": "rect",
            "xref": "x",
            "x0": -margin,
            "x1": margin,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "fillcolor": "margin",
            "line": {"width": 0},
            "layer": "below",
        }
    ]


def gap(upper: float | None, lower: float | None) -> float:
    """The length of one arm of an error bar; none if an end is unknown."""
    return 0.0 if upper is None or lower is None else max(0.0, upper - lower)


def rounded(values: Floats) -> list[float | None]:
    """Five significant digits, which no screen outdoes; None if not finite."""
    return [None if not math.isfinite(v) else float(f"{v:.5g}") for v in values]


def text(name: str) -> str:
    """A name as text: in labels Plotly reads some HTML, links among it, and TeX between dollars."""
    return html.escape(name, quote=False).replace("$", "&#36;")
