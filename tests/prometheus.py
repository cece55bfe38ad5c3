"""A real Prometheus that scrapes a real agent, and what rules and dashboard ask it."""

from __future__ import annotations

import json
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.started_program import StartedProgram, free_port

DEPLOY = Path(__file__).parents[1] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "pgtare.json"
#: What never falls, but by a restart of what counts it.
COUNTERS = '{__name__=~"pgtare_.+_(total|bucket|count|sum)"}'
_CONFIG = """
global: {{scrape_interval: {scrape}, evaluation_interval: {scrape}}}
scrape_configs:
  - job_name: pgtare
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
rule_files: ["{rules}"]
"""

Labels = dict[str, str]


def require_prometheus() -> None:
    """Skip a test if Prometheus is missing."""
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: apt-get install prometheus)")


def fetch(url: str, seconds: float = 10) -> str:
    """What an address answers."""
    with urllib.request.urlopen(url, timeout=seconds) as answer:  # noqa: S310
        text: bytes = answer.read()
    return text.decode()


class Prometheus(StartedProgram):
    """Scrapes an agent on this machine's port `target`; stopped at the end of `with`."""

    def __init__(self, directory: Path, target: int, scrape: str) -> None:
        self.port = free_port()
        config = directory / "prometheus.yml"
        config.write_text(_CONFIG.format(scrape=scrape, port=target, rules=RULES))
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        ready = f"http://127.0.0.1:{self.port}/-/ready"
        super().__init__(command, directory / "log", lambda: fetch(ready))

    def ask(self, path: str, **parameters: object) -> Any:
        """The data of an answer of its API."""
        query = urllib.parse.urlencode(parameters)
        answer = json.loads(fetch(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def instant(self, query: str) -> list[tuple[Labels, float]]:
        """What a query gives now."""
        found = self.ask("query", query=query)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def values(self, query: str, seconds: float, step_s: float) -> list[tuple[Labels, list[float]]]:
        """What a query gave from some seconds ago until now."""
        now = time.time()
        found = self.ask("query_range", query=query, start=now - seconds, end=now, step=step_s)
        return [
            (one["metric"], [float(value) for _, value in one["values"]]) for one in found["result"]
        ]


def dashboard_queries(rate_interval: str) -> Iterator[tuple[str, str]]:
    """Title and query of all that the dashboard shows, with its variables as they are at first."""
    document = json.loads(DASHBOARD.read_text())
    for panel in document["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], _filled(target["expr"], rate_interval)


def dashboard_annotations(rate_interval: str) -> list[str]:
    """What marks moments in all panels."""
    document = json.loads(DASHBOARD.read_text())
    found = document["annotations"]["list"]
    return [_filled(annotation["expr"], rate_interval) for annotation in found]


def dashboard_variables() -> dict[str, tuple[str, str]]:
    """Of each variable the metric and the label that its values come from."""
    document = json.loads(DASHBOARD.read_text())
    found = {}
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            query = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
            metric, _, label = query.rpartition(",")
            found[variable["name"]] = _filled(metric, ""), label.strip()
    return found


def _filled(query: str, rate_interval: str) -> str:
    for name, value in (
        ("$__rate_interval", rate_interval),
        ("$server", ".*"),
        ("$event", ".*"),
    ):
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def failed_queries(prometheus: Prometheus, rate_interval: str) -> list[str]:
    """Queries of rules and dashboard that fail, or show nothing in the dashboard."""
    failed = []
    for title, query in dashboard_queries(rate_interval):
        if not prometheus.instant(query):
            failed.append(f"{title}: {query}")
    for query in dashboard_annotations(rate_interval):
        prometheus.instant(query)
    for name, (metric, label) in dashboard_variables().items():
        if not prometheus.ask(f"label/{label}/values", **{"match[]": metric}):
            failed.append(f"variable {name}: {metric}")
    (group,) = prometheus.ask("rules")["groups"]
    failed += [rule["name"] for rule in group["rules"] if rule["health"] != "ok"]
    if len(group["rules"]) != 8:
        failed.append(f"{len(group['rules'])} rules")
    return failed


def falls(prometheus: Prometheus, window: str) -> list[Labels]:
    """Series that fell."""
    # the product of __name__ and a function is not unique, so each metric is asked for by itself
    names = prometheus.ask("label/__name__/values", **{"match[]": COUNTERS})
    found = []
    for name in names:
        found += [labels for labels, _ in prometheus.instant(f"resets({name}[{window}]) > 0")]
    return found
