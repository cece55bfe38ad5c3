"""Asks pgtare what is wrong with a server: the doctor, and an agent by its spool."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pgtare.errors import MeasurementError

_PGTARE = (sys.executable, "-W", "ignore", "-m", "pgtare")
_PATIENCE_S = 60.0
_STOP_S = 20.0
#: How far the beginning of a finding may lie before that of the incident: the clock of a sample.
_EARLY_S = 2.0
#: Active time that a finding must have gained to be one of the incident, if it is older.
_GAINED_S = 3.0


@dataclass(frozen=True)
class Answer:
    """findings: in their order; error: why there are none."""

    findings: list[dict[str, Any]]
    took_s: float = 0.0
    error: str = ""


def ask_doctor(dsn: str) -> Answer:
    """What the doctor finds, with its usual interval."""
    return _ask("doctor", "--dsn", dsn, "--json")


def can_ask_agent() -> bool:
    """Whether this pgtare has a command for what agents found."""
    return _run("findings", "--help")[0] == 0


@dataclass
class Agent:
    """An agent that runs."""

    spool: Path
    process: subprocess.Popen[bytes]

    def ask(self, since: datetime) -> Answer:
        """What it found since then."""
        if self.process.poll() is not None:
            return Answer([], error=f"the agent ended with {self.process.returncode}")
        stamp = since.astimezone(UTC).isoformat()
        return _ask("findings", "--spool", str(self.spool), "--from", stamp, "--json")


@contextlib.contextmanager
def agent(dsn: str, work: Path) -> Iterator[Agent]:
    """An agent with its usual intervals and a spool of its own."""
    spool = work / "spool"
    with open(work / "agent.log", "ab") as log:
        process = subprocess.Popen(
            [*_PGTARE, "agent", "--dsn", dsn, "--spool", str(spool)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield Agent(spool, process)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def of_incident(
    findings: list[dict[str, Any]], before: list[dict[str, Any]], began: datetime
) -> list[dict[str, Any]]:
    """Findings that an incident may have brought: new ones, and older ones that have grown since.

    before: what was found when it began.
    """
    old: dict[str, Mapping[str, Any]] = {str(one.get("key")): one for one in before}
    kept = []
    for one in findings:
        known = old.get(str(one.get("key")))
        gained = _active_s(one) - _active_s(known or {})
        if known is None or _is_new(one, began) or gained > _GAINED_S:
            kept.append(one)
    return kept


def _is_new(finding: Mapping[str, Any], began: datetime) -> bool:
    try:
        since = datetime.fromisoformat(str(finding.get("since")))
    except ValueError:
        return False
    if since.tzinfo is None:
        since = since.replace(tzinfo=UTC)
    return (began - since).total_seconds() <= _EARLY_S


def _active_s(finding: Mapping[str, Any]) -> float:
    return float(finding.get("active_s") or 0.0)


def _ask(*words: str) -> Answer:
    began = time.monotonic()
    status, out, err = _run(*words)
    took = time.monotonic() - began
    try:
        document = json.loads(out)
        return Answer(list(document["findings"]), took)
    except (ValueError, KeyError, TypeError):
        return Answer([], took, (err or out).strip()[-200:] or f"status {status} and no document")


def _run(*words: str) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            [*_PGTARE, *words],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            env=os.environ | {"NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"pgtare {words[0]} did not end within {_PATIENCE_S:.0f} s"
    if done.returncode in (130, 143, -2, -15):
        raise KeyboardInterrupt
    if done.returncode == 127:
        raise MeasurementError(f"pgtare {words[0]} cannot be started")
    return done.returncode, done.stdout, done.stderr
