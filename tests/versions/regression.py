"""Run PostgreSQL's own regression and isolation suites with every module loaded and at work.

`python -m tests.versions.regression` (`17 18` for some). Each version's suites come from Debian's
source package; its pg_regress and isolationtester are those of the installation. A test that fails
is run again on a server without the modules: only what passes there counts against them.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pgtare.errors import PgtareError, UsageError
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import SUPERUSER, Cluster
from pgtare.postgres.modules import PRELOAD_ORDER, loadable
from pgtare.postgres.os_account import server_account
from tests.source_package import tarball, version_of
from tests.trials import trial
from tests.versions.servers import MAJORS, number, say, server

#: Everything that the modules can do at once, for every session of the server.
ALL_ON = {
    "wait_event_timing.capture": "trace",
    "sql_trace.level": 12,
    "sql_trace.rowsource_sampling": 16,
    # tests with three hundred sessions would use up the rings' default share
    "max_connections": 60,
    "max_prepared_transactions": 10,
}
SUITES = ("regress", "isolation")
#: Tests name them.
DATABASES = {"regress": "regression", "isolation": "isolation_regression"}
#: Of the libraries that the tests of the suites load.
LIBRARIES = ("src/test/regress/regress.c", "contrib/spi/autoinc.c", "contrib/spi/refint.c")
SUITE_SECONDS = 1800.0
_RESULT = re.compile(
    r"^(?:(?P<bad>not )?ok \d+ +[-+] (?P<tap>\S+)"
    r"|(?:test |     )?(?P<name>\S+) +\.\.\. (?P<outcome>ok|FAILED))"
)


@dataclass
class Outcome:
    """How one suite ended on one version."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    differences: str = ""


@contextlib.contextmanager
def suites(major: int, binaries: Binaries) -> Iterator[Path]:
    """The suites of a version's source, with their libraries, where the server's account can write.

    UsageError if there is no source of the very version.
    """
    archive = tarball(major)
    wanted = number(binaries)
    if version_of(archive).replace("~", "") != wanted:
        raise UsageError(f"the source at hand is of {version_of(archive)}, the server is {wanted}")
    with tempfile.TemporaryDirectory(prefix="pgtare-regression-", dir="/var/tmp") as work:
        root = Path(work)
        with tarfile.open(archive) as packed:
            for member in packed:
                name = member.name.partition("/")[2]
                if name.startswith(("src/test/regress/", "src/test/isolation/", "contrib/spi/")):
                    member.name = name
                    packed.extract(member, root, filter="data")
        for source in LIBRARIES:
            _compile(root / source, root / "lib", binaries)
        account = server_account()
        for path in (root, *root.rglob("*")):
            account.give(path)
        yield root


def _compile(source: Path, into: Path, binaries: Binaries) -> None:
    into.mkdir(exist_ok=True)
    command = [
        "gcc",
        "-O1",
        "-fPIC",
        "-shared",
        "-w",
        "-DREFINT_VERBOSE",
        f"-I{binaries.includedir_server}",
    ]
    command += [f"-I{source.parent}", str(source), "-o", str(into / f"{source.stem}.so")]
    subprocess.run(command, check=True)


def run(suite: str, root: Path, cluster: Cluster, tests: list[str] | None = None) -> Outcome:
    """One suite on a running server, or some tests of it."""
    where = root / "src/test" / suite
    program = "pg_regress" if suite == "regress" else "pg_isolation_regress"
    output = Path(tempfile.mkdtemp(prefix=f"{suite}-", dir=root))
    server_account().give(output)
    command = [
        str(cluster.binaries.pgxs.parents[2] / "src/test" / suite / program),
        f"--inputdir={where}", f"--outputdir={output}",
        f"--bindir={cluster.binaries.bindir}", f"--dlpath={root / 'lib'}",
        f"--host={cluster.socket_directory}", f"--port={cluster.port}", f"--user={SUPERUSER}",
        "--max-concurrent-tests=20", f"--dbname={DATABASES[suite]}",
    ]  # fmt: skip
    if cluster.binaries.major >= 16:  # before, it looks in the input directory anyway
        command.append(f"--expecteddir={where}")
    schedule = "parallel_schedule" if suite == "regress" else "isolation_schedule"
    command += tests if tests else [f"--schedule={where / schedule}"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=output,
        timeout=SUITE_SECONDS, **cluster.run_as,
    )  # fmt: skip
    outcome = Outcome()
    for line in done.stdout.splitlines():
        found = _RESULT.match(line)
        if found:
            name = found["tap"] or found["name"]
            bad = bool(found["bad"]) or found["outcome"] == "FAILED"
            (outcome.failed if bad else outcome.passed).add(name)
    if not outcome.passed and not outcome.failed:
        raise UsageError(f"{program} ran no test: {(done.stderr or done.stdout).strip()[-500:]}")
    differences = output / "regression.diffs"
    if differences.exists():
        outcome.differences = differences.read_text(errors="replace")
    return outcome


@contextlib.contextmanager
def watched(binaries: Binaries) -> Iterator[Cluster]:
    """A server on which every session is traced, timed and part of a trial."""
    modules = [loadable(binaries, name) for name in PRELOAD_ORDER]
    settings = {**ALL_ON, "pgtare.ring_memory": "64MB"}
    with Cluster(binaries, settings, [module.library for module in modules]) as cluster:
        with cluster.connect() as connection:
            connection.execute(modules[0].create_sql.encode())
        arms: list[dict[str, str]] = [{}, {}]
        with trial(
            cluster, arms, inject_ns=[0, 1000], seconds=SUITE_SECONDS, database=None, sessions=60
        ):
            yield cluster


def check(major: int, wanted: list[str]) -> Iterator[list[str]]:
    """Rows of the table of one version."""
    try:
        binaries = server(major)
        with suites(major, binaries) as root:
            version = number(binaries)
            for suite in wanted:
                say(f"{version}: {suite}")
                started = time.monotonic()
                with watched(binaries) as cluster:
                    outcome = run(suite, root, cluster)
                    assert cluster.running
                    log = cluster.log_path.read_text(errors="replace")
                crashes = len(re.findall(r"was terminated by signal", log))
                blamed = set()
                if outcome.failed:
                    say(f"{version}: {len(outcome.failed)} failed; without the modules now")
                    with Cluster(binaries, {"max_connections": 60}) as plain:
                        alone = run(suite, root, plain)
                    blamed = outcome.failed - alone.failed
                    print(excerpt(outcome.differences, blamed))
                took = time.monotonic() - started
                why = [f"fails without modules too: {name}" for name in outcome.failed - blamed]
                why += [f"FAILED {name}" for name in blamed]
                why += [f"{crashes} crashes"] if crashes else []
                say(f"{version}: {suite} took {took:.0f} s")
                yield [
                    version, suite, str(len(outcome.passed)), str(len(outcome.failed - blamed)),
                    str(len(blamed) + crashes), "\n".join(sorted(why)),
                ]  # fmt: skip
    except PgtareError as ex:
        yield [str(major), "both", "0", "0", "0", f"not run: {ex}"]


def excerpt(differences: str, names: set[str]) -> str:
    """What differs in some tests, as pg_regress wrote it, shortened."""
    parts = re.split(r"(?m)^(?=diff )", differences)
    chosen = [part[:3000] for part in parts if any(f"/{name}.out" in part for name in names)]
    return "\n".join(chosen)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.versions.regression")
    parser.description = __doc__
    parser.add_argument("majors", type=int, nargs="*", metavar="MAJOR")
    parser.add_argument("--suite", choices=SUITES, action="append", help="both if none")
    args = parser.parse_args()
    shown = Table(title="PostgreSQL's own suites, all modules loaded and on", show_lines=True)
    for name in ("version", "suite", "passed", "failed without modules too", "failed", "which"):
        shown.add_column(name, justify="left" if name[0] in "vsw" else "right")
    bad, ran = False, False
    with contextlib.suppress(KeyboardInterrupt):
        for major in args.majors or MAJORS:
            for row in check(major, args.suite or list(SUITES)):
                shown.add_row(*row)
                bad = bad or row[4] != "0"
                ran = ran or row[2] != "0"
    Console().print(shown)
    return int(bad or not ran)


if __name__ == "__main__":
    sys.exit(main())
