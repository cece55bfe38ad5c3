"""What estimating a fleet again takes: by servers, by processes, and in memory.

Simulated servers, of 4 sessions with `--units` transactions each. A fleet, and one with ten times
the servers (the same data under other names), are reported in one process and in four. The
documents must be the same to the last digit. Each report is a process of its own; memory is the
peak of one process, as the system has it.
`python -m bench.fleet_report [--servers 8] [--units 12000]`
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.fleet_data import MadeServer, write_server

from pgtare.kit.numbers import volume

TIMES = 10


def make(prefix: Path, servers: int, units: int) -> None:
    """A fleet, and its ten times larger sibling prefix-10."""
    (prefix / "servers").mkdir(parents=True)
    for i in range(servers):
        write_server(MadeServer(f"db-{i:03}", units=units), prefix / "servers" / f"db-{i:03}")
    larger = prefix.with_name(f"{prefix.name}-{TIMES}") / "servers"
    for copy in range(TIMES):
        for i in range(servers):
            shutil.copytree(
                prefix / "servers" / f"db-{i:03}",
                larger / f"db-{copy}-{i:03}",
            )


def size(prefix: Path) -> int:
    """Bytes of all its files."""
    return sum(path.stat().st_size for path in prefix.rglob("*") if path.is_file())


@contextmanager
def peak_memory(pid: int) -> Iterator[dict[str, int]]:
    """The largest resident size of this process and of its children."""
    found = {"bytes": 0}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            try:
                process = psutil.Process(pid)
                family = [process, *process.children(recursive=True)]
                sizes = [one.memory_info().rss for one in family]
            except psutil.Error:
                continue
            found["bytes"] = max(found["bytes"], *sizes)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()


def report(prefix: Path, *options: str) -> dict[str, object]:
    """Seconds, processor time, peak memory of one process, and a hash of the document."""
    command = [sys.executable, "-m", "pgtare", "fleet", "report", str(prefix), "--json", *options]
    began = time.monotonic()
    before = os.times()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with peak_memory(process.pid) as memory:
        printed, _ = process.communicate()
    assert process.returncode == 0
    after = os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    return {
        "seconds": round(time.monotonic() - began, 1),
        "cpu_s": round(used, 1),
        "peak_bytes": memory["bytes"],
        "sha256": hashlib.sha256(printed).hexdigest(),
    }


def main() -> None:
    """Print a table, and the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--units", type=int, default=12_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgtare-bench-") as temporary:
        small = Path(temporary) / "fleet"
        large = small.with_name(f"{small.name}-{TIMES}")
        make(small, asked.servers, asked.units)
        rows = []
        for prefix, count in ((small, asked.servers), (large, TIMES * asked.servers)):
            ways: list[tuple[str, dict[str, object]]] = [
                ("1 process", report(prefix)),
                ("4 processes", report(prefix, "--processes", "4")),
            ]
            for way, figures in ways:
                row = {"servers": count, "bytes": size(prefix), "way": way, **figures}
                rows.append(row)
                print(
                    f"{count:5} servers  {volume(size(prefix)):>9}  {way:16}"
                    f"{figures['seconds']:>8} s  {figures['cpu_s']:>8} s CPU  "
                    f"{volume(float(str(figures['peak_bytes']))):>9} a process at most",
                    flush=True,
                )
        for count in {row["servers"] for row in rows}:
            different = {row["sha256"] for row in rows if row["servers"] == count}
            print(f"{count} servers: {'the same document' if len(different) == 1 else 'DIFFERENT'}")
            if len(different) > 1:
                raise SystemExit(1)
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
