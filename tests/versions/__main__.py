"""Build and test pgtare on every version of PostgreSQL that it works with: `make test-versions`.

For each version: the modules compile without a warning; the tests of the modules, of weighing, of
traces and of the doctor pass. One table at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pgtare.errors import PgtareError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached
from pgtare.postgres.os_account import environment
from tests.lint_c import ALONE, MODULES, compile_for
from tests.versions.servers import MAJORS, number, say, server

#: About the commands that install and update; they change copies of the two usual servers.
INSTALLING = ("test_module_upgrade.py", "test_module_package.py")

ROOT = Path(__file__).parents[2]
SELECTION = "server and not slow and not source and not browser and not debian"

#: What looks at the server itself; the rest of tests/server is about commands and files.
TESTS = (
    "test_module_*.py", "test_ring_memory.py",
    "test_waits_*.py", "test_sql_trace_*.py", "test_row_sources*.py",
    "test_trace_shapes.py", "test_trace_kept*.py", "test_trace_init_plans.py",
    "test_trace_by_node.py", "test_trace_faults.py", "test_trace_grab.py",
    "test_trace_short_sessions.py", "test_trace_status.py",
    "test_load_pgbench.py", "test_doctor_churn.py",
    "test_weigh_embedded.py", "test_weigh_trace.py", "test_weigh_clock_source.py",
    "test_doctor.py", "test_pooler.py",
    "test_agent.py", "test_agent_faults.py",
)  # fmt: skip


@dataclass
class Result:
    """What one version gave."""

    major: int
    version: str = ""
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)


def check(major: int, tests: list[str], reports: Path) -> Result:
    """Build and test one version."""
    result = Result(major)
    try:
        binaries = server(major)
    except PgtareError as ex:
        result.skipped += 1
        result.reasons[str(ex)] += 1
        return result
    result.version = number(binaries)
    for name in MODULES:
        if compile_for(binaries.pg_config, binaries.version, name):
            result.passed += 1
        else:
            result.failed.append(f"building {name}")
    if not result.failed:
        _build(binaries)  # now, since a test has less time than a compiler
        _run_tests(binaries, tests, reports / f"{major}.xml", result)
    return result


def _build(binaries: Binaries) -> None:
    for name, source in MODULES.items():
        if name not in ALONE:  # those are of a benchmark
            say(f"{binaries.major}: building {name}")
            build_cached(binaries, name, source)


def _run_tests(binaries: Binaries, tests: list[str], report: Path, result: Result) -> None:
    files = sorted(
        {str(path) for name in tests for path in (ROOT / "tests/server").glob(name)}
        - {str(ROOT / "tests/server" / name) for name in INSTALLING}
    )
    say(f"{binaries.major}: testing, {len(files)} files")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m", SELECTION]
    command += [f"--junitxml={report}", *files]
    env = {**environment(), "PGTARE_TEST_PG_CONFIG": str(binaries.pg_config)}
    for name in ("PGTARE_DIR", "HOME"):
        if name in os.environ:
            env[name] = os.environ[name]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, check=False)
    say(f"{binaries.major}: tests took {time.monotonic() - started:.0f} s")
    if not report.exists():
        result.failed.append(f"pytest gave no report (status {done.returncode})")
        return
    count(report, result)


def count(report: Path, result: Result) -> None:
    """Add what pytest reported, with a reason for each skipped test."""
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - written by our pytest
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed.append(name)
        elif skipped is not None:
            result.skipped += 1
            result.reasons[skipped.get("message") or "no reason given"] += 1
        else:
            result.passed += 1


def table(results: Iterable[Result]) -> Table:
    """One row for each version."""
    shown = Table(title="pgtare on versions of PostgreSQL", show_lines=True)
    for name in ("version", "passed", "skipped", "failed", "why skipped, or what failed"):
        shown.add_column(name, justify="left" if name[0] in "vw" else "right")
    for result in results:
        why = [
            f"{n} × {re.sub(r'/[^ ]*/', '', reason)}" for reason, n in result.reasons.most_common()
        ]
        why += [f"FAILED {name}" for name in result.failed]
        counts = (result.passed, result.skipped, len(result.failed))
        shown.add_row(result.version or str(result.major), *map(str, counts), "\n".join(why))
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument(
        "majors", type=int, nargs="*", metavar="MAJOR", help="all that pgtare takes if none"
    )
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="files of tests/server")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as reports, contextlib.suppress(KeyboardInterrupt):
        for major in args.majors or MAJORS:
            results.append(check(major, args.tests, Path(reports)))
            console = Console(stderr=True)
            console.print(table(results[-1:]))
    Console().print(table(results))
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
