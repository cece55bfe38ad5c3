"""Weighings by windows as tests need them: shorter than the command allows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgtare.weighing.switches import Switch
from tests import forked

WINDOW_S, SETTLE_S = 0.5, 0.1


def start(
    dsn: str,
    switches: Sequence[Switch],
    place: Path,
    *,
    seconds: float = 60,
    sql: str = "",
    patience_s: float = 30,
    lease_s: float = 60,
    after_off_s: float = SETTLE_S,
    gone_s: float = 30,
    seed: int = 7,
) -> subprocess.Popen[str]:
    """Start a weighing. place: pgtare's own directory; a directory w is written next to it."""
    asked = {
        "dsn": dsn,
        "switches": [switch.as_json() for switch in switches],
        "seconds": seconds,
        "sql": sql,
        "patience_s": patience_s,
        "lease_s": lease_s,
        "after_off_s": after_off_s,
        "gone_s": gone_s,
        "seed": seed,
        "out": str(place / "w"),
    }
    words = [sys.executable, "-m", "tests.windows", json.dumps(asked)]
    environment = {**os.environ, "PGTARE_DIR": str(place / "own")}
    return forked.popen(words, environment, new_session=True)


def _weigh(asked: dict[str, Any]) -> int:
    from rich.console import Console

    from pgtare.errors import PgtareError
    from pgtare.weighing.weigh import store
    from pgtare.weighing.weigh.report.terminal import render
    from pgtare.weighing.weigh.request import Request
    from pgtare.weighing.whole_server import guardian_client, run, schedule

    schedule.SETTLE_S, schedule.AFTER_OFF_S = SETTLE_S, asked["after_off_s"]
    schedule.GONE_S = asked["gone_s"]
    guardian_client.PATIENCE_S, guardian_client.LEASE_S = asked["patience_s"], asked["lease_s"]
    switches = tuple(Switch(**one) for one in asked["switches"])
    request = Request(
        (),
        dsn=asked["dsn"],
        outside=True,
        duration_s=asked["seconds"],
        window_s=WINDOW_S,
        switches=switches,
        allow=frozenset(switch.setting for switch in switches),
        sql=asked["sql"] or None,
        seed=asked["seed"],
    )
    try:
        done = run.weigh(request, ["pgtare"], Console(stderr=True))
    except PgtareError as ex:
        print(f"pgtare: {ex}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as ex:
        print(f"pgtare: {ex}", file=sys.stderr)
        return 130
    render(done.result, Console(width=100))
    store.save(Path(asked["out"]), done.design, done.observations, done.result)
    return 1 if done.result.design.partial else 0


if __name__ == "__main__":
    sys.exit(_weigh(json.loads(sys.argv[1])))
