"""A made-up spool for the tour of docs/live.md, and its page.

Rows are of some two days (UTC), up to the last whole hour. Yesterday at 14:00 there was a queue for
a lock, and at 14:30 a deployment. With `--spool DIR` it
only writes the spool.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.unit.live_rows import Story, make_spool

from bench.harness import say

TAKES = "until Ctrl-C"


def story(now: datetime) -> Story:
    """From noon of the day before yesterday to the last whole hour."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    noon = (hour - timedelta(days=1)).replace(hour=12)
    hours = (hour - noon) // timedelta(hours=1)
    # looks are close to each other from 13:30 to 15:00, where the stories are
    sampled = ((0, 5400, 20), (5400, 10_800, 2), (10_800, hours * 3600, 20))
    texts = {-6003: "SELECT * FROM basket WHERE owner = $1"}
    return Story(noon, hours, sampled, hours_before=24, texts=texts)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spool", type=Path, help="write the spool here, and do not serve a page")
    parser.add_argument("--listen", default="127.0.0.1:8765", help="where to serve the page")


def main(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="pgtare-tour-") as name:
        directory = given.spool or Path(name) / "spool"
        began = time.monotonic()
        told = story(datetime.now(UTC))
        make_spool(directory, told)
        say(
            f"rows from {told.start:%Y-%m-%d %H:%M} to {told.end:%Y-%m-%d %H:%M} UTC, made in "
            f"{time.monotonic() - began:.0f} s"
        )
        if given.spool is not None:
            say(f"pgtare live --spool {directory}")
            return
        command = [sys.executable, "-m", "pgtare", "live", "--spool", str(directory)]
        with contextlib.suppress(KeyboardInterrupt):  # the page has it as well, and ends
            subprocess.run([*command, "--listen", given.listen], check=False)
