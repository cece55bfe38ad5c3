"""A result as one HTML file that needs nothing else: no network, no server, no second file."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from pgtare.observations import Observations
from pgtare.report import files, rows, wording
from pgtare.report.charts import charts
from pgtare.report.schema import WeighResult


def write_page(result: WeighResult, observations: Observations, path: Path) -> None:
    """Write the page at `path`, replacing an older one only once the new one is complete.

    observations: of dtype OBSERVATION; without any, the charts drawn from them are left out.
    Raises MeasurementError where the file cannot be written.
    """
    files.write_text(path, page(result, observations))


def page(result: WeighResult, observations: Observations) -> str:
    """The page as a string."""
    table = rows.table(result)
    drawn = charts(result, observations)
    plotly, script = get_plotlyjs(), _template("page.js")
    environment = Environment(
        loader=PackageLoader("pgtare.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Markup only for what is ours; whatever comes from a server or a user is escaped.
    return environment.get_template("page.html.j2").render(
        title=_title(result),
        subtitle=_subtitle(result),
        policy=_policy(plotly, script),
        css=Markup(_template("page.css")),  # noqa: S704
        plotly=Markup(plotly),  # noqa: S704
        script=Markup(script),  # noqa: S704
        data=Markup(embeddable([chart.figure() for chart in drawn])),  # noqa: S704
        alarms=wording.alarms(result),
        answers=wording.answers(result),
        warnings=result.warnings,
        threshold=wording.threshold_sentence(result),
        headings=rows.headings(result),
        rows=table,
        proofs=[row for row in table if row.evidence],
        facts=wording.facts(result),
        charts=drawn,
        one_session=len(result.by_backend) == 1,
        not_shown=wording.NOT_SHOWN,
        command=shlex.join(result.command),
        metadata=_metadata(result),
        version=result.pgtare_version,
        created=result.created,
    )


def embeddable(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element."""
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
    return (resources.files("pgtare.report") / "templates" / name).read_text(encoding="utf-8")


def _title(result: WeighResult) -> str:
    names = [arm.name for arm in wording.of_role(result, "instrument")]
    if not names:
        return "The floor of this measurement"
    if len(names) == 1:
        return f"What {names[0]} costs"
    return f"What {len(names)} instruments cost"


def _subtitle(result: WeighResult) -> str:
    load = ", ".join(f"{key} {_text(value)}" for key, value in result.load.items())
    version = _text(result.server.get("version", "of unknown version"))
    return f"PostgreSQL {version}; load: {load or 'not recorded'}; {result.created}"


def _metadata(result: WeighResult) -> dict[str, list[tuple[str, str]]]:
    arms = [
        (
            f"{arm.name} ({arm.role})",
            ", ".join(f"{name} = {value}" for name, value in arm.settings.items())
            or (
                f"{arm.inject_ns / 1000:g} µs added" if arm.inject_ns else "no settings of its own"
            ),
        )
        for arm in result.arms
    ]
    return {
        "arms": arms,
        "design": _flat(result.design.model_dump()),
        "load": _flat(result.load),
        "server": _flat(result.server),
        "machine": _flat(result.machine),
    }


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", _text(value)))
    return pairs


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
