"""Pieces of Plotly descriptions: axes, panels, points with bars, bands, and text made safe."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pgtare.kit.interval import Interval

Json = dict[str, Any]
Floats = npt.NDArray[np.float64]


class Arm(Protocol):
    """What has a panel of its own."""

    @property
    def name(self) -> str:
        """What the panel is called."""

    @property
    def role(self) -> str:
        """`control` for the base measured again."""


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


def annotation(arm: Arm) -> Json:
    """The arm's name at the left edge; the caller puts it at a height."""
    if arm.role == "control":
        return label(arm.name, " (nothing changed)", "muted")
    return label(arm.name)


def label(name: str, note: str = "", color: str = "ink") -> Json:
    """A name, in bold, and a note at the left edge; the caller puts it at a height."""
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
    """Estimates with the bars of their intervals, along x; the caller puts them at heights."""
    up = [gap(i.hi, i.estimate) for i in intervals]
    down = [gap(i.estimate, i.lo) for i in intervals]
    bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [interval.estimate for interval in intervals],
        "error_x": bars | {"color": color, "thickness": 1.6, "width": 4},
    }


def log_ticks(curves: list[Floats]) -> list[float]:
    """Round values within the curves: 1, 2 and 5 a decade, and more if they span less."""
    lo, hi = min(float(c[0]) for c in curves), max(float(c[-1]) for c in curves)
    lo = max(lo, 1e-3)
    steps = (1, 2, 5) if hi / lo > 20 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    decades = range(math.floor(math.log10(lo)), math.ceil(math.log10(max(hi, lo))) + 1)
    values = [round(step * 10.0**decade, 6) for decade in decades for step in steps]
    return [value for value in values if lo <= value <= hi]


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
