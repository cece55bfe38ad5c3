"""A fleet of local servers, weighed, harmed and cut off.

Four shows. 1. pg_stat_statements and track_io_timing on servers of several versions. 2. A cost that
only one server has: it has to be the one outlier. 3. A harmful canary: after how long, and how many
transactions, it is stopped. 4. The command is stopped or killed in the midst of it: how long until
all trials have ended. The exit status is 1 if one of these does not come out.

Servers: the wheel's 18 and one of 15 with two loads each, and what
`python -m tests.versions.servers` has fetched of 16, 17 and 19; what is missing is said. The wheel
of 16 has no pg_stat_statements, so it is in the other shows only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.commands import pgtare, read, start_pgtare
from tests.versions import servers as versions

from bench.harness import say
from pgtare.postgres import own_session
from pgtare.postgres.binaries import Binaries, from_pg_config, from_wheel
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.load import LoadSpec, PgbenchLoad, Script, find_pgbench, initialise
from pgtare.postgres.modules import loadable
from pgtare.weighing.trials import Trials

TAKES = "10 minutes on two processors; other versions by python -m tests.versions.servers"

#: A marker that costs nothing, except where the load looks at it.
MARKER = "marker: lock_timeout=1h"
OUTLIER = "pg18-b"
#: Rows that a marked transaction makes more, only there.
_BURN = 20_000
_LOOK_UP = """
\\set aid random(1, 100000)
SELECT abalance, (SELECT count(*) FROM generate_series(1,
    CASE WHEN current_setting('lock_timeout') = '1h' THEN {burn} ELSE 0 END))
FROM pgbench_accounts WHERE aid = :aid;
"""
_UPDATE = """
\\set aid random(1, 100000)
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid
RETURNING (SELECT count(*) FROM generate_series(1,
    CASE WHEN current_setting('lock_timeout') = '1h' THEN {burn} ELSE 0 END));
"""


@dataclass(frozen=True)
class FleetMember:
    """A server of the fleet: its name, its database, and whether it has pg_stat_statements."""

    name: str
    dsn: str
    counts: bool


def installed() -> dict[str, Binaries]:
    """The servers of this bench by name; says what is missing."""
    found = {"pg18-a": from_wheel(), "pg18-b": from_wheel()}
    there = versions.cached()
    if 15 not in there and versions.DEBIAN15.exists():
        there[15] = versions.DEBIAN15
    for major in (15, 16, 17, 19):
        if major not in there:
            say(f"PostgreSQL {major} is not here (python -m tests.versions.servers fetches it)")
            continue
        found[f"pg{major}"] = from_pg_config(there[major])
        if major == 15:
            found["pg15-b"] = found["pg15"]
    return dict(sorted(found.items()))


@contextlib.contextmanager
def member(name: str, binaries: Binaries, scripts: Path, rate: float) -> Iterator[FleetMember]:
    """A server with its load: at this many transactions a second, by four clients."""
    module = loadable(binaries)
    burn = _BURN if name == OUTLIER else 0
    script = scripts / f"{name}.sql"
    script.write_text((_UPDATE if name.endswith("-b") else _LOOK_UP).format(burn=burn))
    counts = (binaries.pkglibdir / "pg_stat_statements.so").exists()
    libraries = [module.library, *(["pg_stat_statements"] if counts else [])]
    with Cluster(binaries, {"fsync": False}, libraries) as cluster:
        database = initialise(binaries, cluster.dsn(), 1)
        with own_session.connect(database.dsn) as conn:
            conn.execute(module.create_sql.encode())
            if counts:
                conn.execute("CREATE EXTENSION pg_stat_statements")
        spec = LoadSpec(scripts=(Script(script),), clients=4, rate=rate)
        with PgbenchLoad(find_pgbench(binaries), database.dsn, spec) as load:
            load.wait_ready()
            yield FleetMember(name, database.dsn, counts)


def inventory(path: Path, members: list[FleetMember]) -> Path:
    path.write_text(
        "".join(
            f'[servers.{each.name}]\ndsn = "{each.dsn}"\n'
            f'labels = {{ load = "this machine", major = "{each.name[2:4]}" }}\n'
            for each in members
        )
    )
    return path


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=100.0, help="of the last stage")
    parser.add_argument("--rate", type=float, default=200.0, help="transactions a second, each")
    parser.add_argument("--shows", default="1234", help="which of the four")


def main(given: argparse.Namespace) -> int:
    """Give these shows; 1 if one fails."""
    wrong: list[str] = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-fleet-")))
        members = [
            stack.enter_context(member(name, binaries, directory, given.rate))
            for name, binaries in installed().items()
        ]
        names = ", ".join(each.name for each in members)
        say(f"{len(members)} servers: {names}, {given.rate:g}/s each")
        path = inventory(directory / "fleet.toml", members)
        counting = inventory(directory / "counting.toml", [each for each in members if each.counts])
        if "1" in given.shows:
            wrong += show_weights(counting, directory / "weights", given.seconds)
        if "2" in given.shows:
            wrong += show_outlier(path, directory / "outlier", given.seconds)
        if "3" in given.shows:
            wrong += show_harm(path, directory / "harm")
        for how in (signal.SIGKILL, signal.SIGSTOP) if "4" in given.shows else ():
            wrong += show_cut_off(path, directory / f"cut-{how.name}", members, how)
    for each in wrong:
        say(f"WRONG: {each}")
    return int(bool(wrong))


def show_weights(path: Path, out: Path, seconds: float) -> list[str]:
    began = time.monotonic()
    done = pgtare(
        "fleet weigh pg_stat_statements track_io_timing --inventory {} --out {} --duration {} "
        "--yes",
        path,
        out,
        f"{seconds:g}",
        timeout=1800,
    )
    say(f"1. weighed in {time.monotonic() - began:.0f} s, exit status {done.returncode}")
    say(done.stderr + done.stdout)
    return [] if done.returncode == 0 else ["the fleet could not be weighed"]


def show_outlier(path: Path, out: Path, seconds: float) -> list[str]:
    done = pgtare(
        "fleet weigh --inventory {} --out {} --duration {} --harm 50000% --yes --arm",
        path,
        out,
        f"{seconds:g}",
        MARKER,
        timeout=1800,
    )
    if done.returncode != 0:
        return [f"the marker could not be weighed: {done.stderr.splitlines()[-1]}"]
    say(done.stdout)
    (arm,) = [arm for arm in read(out / "result.json")["arms"] if arm["role"] == "instrument"]
    found = [each["server"] for each in arm["cost_pct"]["outliers"]]
    say(f"2. outliers: {', '.join(found) or 'none'}; the cost was put into {OUTLIER}")
    return [] if found == [OUTLIER] else [f"outliers are {found}"]


def show_harm(path: Path, out: Path) -> list[str]:
    done = pgtare(
        "fleet weigh --inject-ns 3000000 --inventory {} --out {} --duration 60 --yes",
        path,
        out,
        timeout=600,
    )
    breach = read(out / "fleet.json")["breach"] if (out / "fleet.json").exists() else None
    if breach is None:
        return [f"a canary of 3 ms was not stopped: {done.stderr.splitlines()[-1]}"]
    say(
        f"3. a canary of 3 ms a transaction was stopped in stage {breach['stage']} on "
        f"{breach['server']}: after {breach['after_s']:.2f} s and {breach['transactions']:,} "
        f"transactions with the delay; the last trial had ended {breach['stopped_s']:.2f} s later"
    )
    return [] if breach["stopped_s"] < 1 else ["trials ran for more than a second after the breach"]


def show_cut_off(
    path: Path, out: Path, members: list[FleetMember], how: signal.Signals
) -> list[str]:
    running = start_pgtare(
        "fleet weigh track_io_timing --inventory {} --out {} --duration 120 --canary 5s --yes",
        path,
        out,
    )
    try:
        deadline = time.monotonic() + 120
        while state(out).get("stage") != "all":
            if time.monotonic() > deadline or running.poll() is not None:
                return [f"{how.name}: the last stage never began"]
            time.sleep(0.2)
        time.sleep(5)
        running.send_signal(how)
        began = time.monotonic()
        ends = {each.name: ended(each, began) for each in members}
    finally:
        running.kill()
        running.communicate()
    last = max(seconds for seconds, _ in ends.values())
    reasons = sorted({reason for _, reason in ends.values()})
    say(f"4. {how.name}: all trials had ended after {last:.1f} s ({', '.join(reasons)})")
    return [] if last <= 16 else [f"{how.name}: a trial ran for {last:.1f} s"]


def state(out: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        found: dict[str, Any] = json.loads((out / "fleet.json").read_text())
        return found
    return {}


def ended(each: FleetMember, began: float) -> tuple[float, str]:
    """When the trial on a server had ended, by the server's own account, and why."""
    with own_session.connect(each.dsn) as conn:
        trials = Trials(conn)
        while (found := trials.status()).running and time.monotonic() - began < 60:
            time.sleep(0.1)
        if found.ended is None:
            return time.monotonic() - began, "it runs still"
        ((age,),) = conn.execute(
            "SELECT extract(epoch FROM clock_timestamp() - %s)::float8", (found.ended,)
        ).fetchall()
        return max(0.0, time.monotonic() - began - age), found.end_reason or ""
