"""The shell of every page: one HTML file with its styles, scripts and data, and no network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from pgtare.kit.chart import Chart


def render(
    package: str,
    template: str,
    charts: Sequence[Chart],
    *,
    scripts: Sequence[str] = (),
    **context: Any,
) -> str:
    """A page as a string: `template`, of `package`'s own, extends page_frame.html.j2.

    scripts: programs of pgtare's own to run at the end, after what draws the charts. context: what
    the template needs, `title`, `version` and `created` among it; all of it is escaped.
    """
    draws = bool(charts) or not scripts
    plotly, script = (plotly_script(), chart_script("page.js")) if draws else ("", "")
    # Markup only for what is ours; whatever comes from a server or a user is escaped.
    return (
        templates(package)
        .get_template(template)
        .render(
            policy=_policy(*(text for text in (plotly, script, *scripts) if text)),
            css=Markup(_template("page.css")),  # noqa: S704
            plotly=Markup(plotly),  # noqa: S704
            script=Markup(script),  # noqa: S704
            scripts=[Markup(text) for text in scripts],  # noqa: S704
            data=Markup(embeddable([chart.figure() for chart in charts])),  # noqa: S704
            charts=charts,
            **context,
        )
    )


def templates(package: str) -> Environment:
    """The templates of a package and of the frame. Whatever they are given is escaped."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("pgtare.kit")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment


def plotly_script() -> str:
    """The script of plotly that was packaged with pgtare; in a checkout, the one of its package."""
    folder = resources.files("pgtare") / "_plotly"
    if not folder.is_dir():
        folder = resources.files("plotly") / "package_data"
    return (folder / "plotly.min.js").read_text(encoding="utf-8")


def chart_script(name: str, package: str = "pgtare.kit", folder: str = "templates") -> str:
    """A script that draws charts, with what all of them share before it."""
    own = resources.files(package) / folder / name
    return _template("chart_colors.js") + own.read_text(encoding="utf-8")


def breakable(text: str) -> Markup:
    """The text, escaped: names may break between their words, a number not before its unit."""
    # Escaping leaves none of these characters inside an entity.
    broken = re.sub(r"(?<=[A-Za-z0-9])([_/.])(?=[A-Za-z]{2})", r"\1<wbr>", str(escape(text)))
    return Markup(re.sub(r"(?<=\d) (?=%|µs)", "\N{NO-BREAK SPACE}", broken))  # noqa: S704


def embeddable(value: Any) -> str:
    """JSON that may be inside a script element: no text in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    # ensure_ascii has already escaped U+2028 and U+2029.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(*scripts: str) -> str:
    """A content security policy without network, running these scripts and no other.

    Plotly styles its drawings through style attributes and elements it makes itself.
    """
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _template(name: str) -> str:
    return (resources.files("pgtare.kit") / "templates" / name).read_text(encoding="utf-8")
