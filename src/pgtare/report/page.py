"""A result as one HTML file that needs nothing else: no network, no server, no second file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from pgtare.observations import Observations
from pgtare.report import evidence, facts, files, rows, traffic, wording
from pgtare.report.charts import charts
from pgtare.report.schema import ArmResult, WeighResult


@dataclass(frozen=True)
class _Settings:
    """An arm in the list of arms: the base with all it sets, others with what they change."""

    name: str
    note: str
    settings: list[str]


def write_page(result: WeighResult, observations: Observations, path: Path) -> None:
    """Write the page at `path`, replacing an older one only once the new one is complete.

    observations: of dtype OBSERVATION; without any, the charts drawn from them are left out.
    Raises MeasurementError where the file cannot be written.
    """
    files.write_text(path, page(result, observations))


def page(result: WeighResult, observations: Observations) -> str:
    """The page as a string."""
    drawn = charts(result, observations)
    plotly, script = get_plotlyjs(), _template("page.js")
    environment = Environment(
        loader=PackageLoader("pgtare.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
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
        warnings=wording.warnings(result),
        threshold=wording.threshold_sentence(result),
        headings=rows.headings(result),
        rows=rows.table(result),
        proofs=_proofs(result),
        facts=facts.facts(result),
        charts=drawn,
        one_session=len(result.by_backend) == 1,
        not_shown=wording.NOT_SHOWN,
        command=shlex.join(result.command),
        arms=_arms(result),
        metadata=_metadata(result),
        version=result.pgtare_version,
        created=result.created,
    )


def breakable(text: str) -> Markup:
    """The text, escaped: names may break between their words, a number not before its unit."""
    # Escaping leaves none of these characters inside an entity.
    broken = re.sub(r"(?<=[A-Za-z0-9])([_/.])(?=[A-Za-z]{2})", r"\1<wbr>", str(escape(text)))
    return Markup(re.sub(r"(?<=\d) (?=%|µs)", "\N{NO-BREAK SPACE}", broken))  # noqa: S704


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
    load = traffic.describe(result.load, speed=False)
    return f"PostgreSQL {_version(result.server)} · {load} · {_when(result.created)}"


def _version(server: Mapping[str, Any]) -> str:
    """The number of the version: 18.6."""
    number = server.get("version_num")
    if isinstance(number, int) and number >= 100_000:
        return f"{number // 10_000}.{number % 10_000}"
    found = re.search(r"\d+\S*", str(server.get("version", "")))
    return found[0] if found else "of unknown version"


def _when(created: str) -> str:
    """The time to the minute, or as it is written where it cannot be read."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{when:%Y-%m-%d %H:%M} {when.tzname() or ''}".strip()


def _proofs(result: WeighResult) -> list[tuple[str, str]]:
    """Each instrument with its state and evidence; none where no arm may be told of."""
    if wording.ended_by_server(result):
        return []
    arms = wording.by_cost(wording.of_role(result, "instrument"))
    return [
        (arm.name, f"{evidence.STATES[evidence.state(arm)]}: {evidence.of(arm)}")
        for arm in arms
        if arm.proof is not None
    ]


def _arms(result: WeighResult) -> list[_Settings]:
    base = result.arms[0].settings if result.arms else {}
    return [_settings(arm, base) for arm in result.arms]


def _settings(arm: ArmResult, base: Mapping[str, str]) -> _Settings:
    if arm.role == "base":
        note = "" if arm.settings else "no settings of its own"
        return _Settings(arm.name, note, _assignments(arm.settings))
    changed = {name: value for name, value in arm.settings.items() if base.get(name) != value}
    note = "" if changed else "the same as the base"
    if arm.inject_ns:
        note = f"{arm.inject_ns / 1000:g} µs added to each transaction"
    return _Settings(arm.name, note, _assignments(changed))


def _assignments(settings: Mapping[str, str]) -> list[str]:
    return [f"{name} = {value or repr(value)}" for name, value in settings.items()]


def _metadata(result: WeighResult) -> dict[str, list[tuple[str, str]]]:
    return {
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
