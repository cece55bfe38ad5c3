"""What GitHub reads: it runs what every change must pass, and asks for what a bug report needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def document(path: str) -> Any:
    return yaml.safe_load((ROOT / ".github" / path).read_text())


def test_the_workflow_runs_the_checks_as_root_on_debian_12() -> None:
    workflow = document("workflows/ci.yml")
    (job,) = workflow["jobs"].values()
    assert job["container"]["image"] == "debian:12"
    assert "--user" not in job["container"]["options"]
    # YAML takes the key "on" for true
    assert {"push", "pull_request"} == set(workflow[True])
    used = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
    assert used == ["actions/checkout"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_a_bug_report_has_what_is_needed() -> None:
    form = document("ISSUE_TEMPLATE/bug.yml")
    assert {"name", "description", "body"} <= set(form)
    fields = {field["id"]: field for field in form["body"]}
    assert list(fields) == ["ran", "happened", "expected", "support"]
    for field in fields.values():
        assert field["type"] == "textarea"
        assert field["validations"] == {"required": True}
    assert "`pgtare support --dsn" in fields["support"]["attributes"]["label"]
