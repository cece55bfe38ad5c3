"""Does it pay to fold waits into the tables later, away from sessions that wait for an LWLock?

A copy of the module, built with -DFOLD_AT_ONCE, can be switched between folding each wait where it
ends and folding later, as every other build does; so one server has both, and code layout drops
out. All sessions follow one arm for a slice of time: what a waiter does between its wake-up and its
lock delays everybody. Loads: commits of one row (the log's lock, held while the disk writes), and
a sequence that all sessions draw from (a page's lock, held while the processor works).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from bench import client_side, harness
from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.design import Arm, Design, Slices, block_layout
from pgtare.load import LoadSpec, Script, initialise
from pgtare.server import own_session
from pgtare.server.binaries import Binaries, from_wheel
from pgtare.server.build import build_cached, source_dir, sql_without_extension
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable

MODULE = "wait_event_timing"
CAPTURE, AT_ONCE = f"{MODULE}.capture", f"{MODULE}.fold_at_once"
SLICES_US = (60_000, 180_000)
COUNTED = """
SELECT coalesce(sum(waits) FILTER (WHERE wait_event_type = 'LWLock'), 0)
  FROM {schema}.pg_stat_wait_event_timing_system WHERE backend_type = 'client backend'
"""


@dataclass(frozen=True)
class Load:
    """A load whose sessions queue for an LWLock."""

    title: str
    script: str
    settings: dict[str, str] = field(default_factory=dict)


LOADS = {
    "commits": Load(
        "one-row commits", "INSERT INTO pgbench_history (tid, bid, aid) VALUES (1, 1, 1);\n"
    ),
    "sequence": Load(
        "one sequence, 50 values a transaction",
        "SELECT max(nextval('storm')) FROM generate_series(1, 50);\n",
        {"synchronous_commit": "off"},
    ),
}


def module_with_switch(found: Binaries, work: Path) -> tuple[str, str]:
    """The library and the SQL of a build that has the switch."""
    copy = work / "server"
    shutil.copytree(source_dir(), copy)
    makefile = copy / MODULE / "Makefile"
    makefile.write_text("PG_CPPFLAGS = -DFOLD_AT_ONCE\n" + makefile.read_text())
    built = build_cached(found, MODULE, copy)
    return built.library, sql_without_extension(built, MODULE)


def arms(levels: tuple[str, ...]) -> tuple[Arm, ...]:
    """Off, off again, and each level folded later and at once."""
    made = [
        Arm("off", "base", {CAPTURE: "off", AT_ONCE: "off"}),
        Arm("off again", "control", {CAPTURE: "off", AT_ONCE: "off"}),
    ]
    for level in levels:
        made.append(Arm(f"{level}, later", "instrument", {CAPTURE: level, AT_ONCE: "off"}))
        made.append(Arm(f"{level}, at once", "instrument", {CAPTURE: level, AT_ONCE: "on"}))
    return tuple(made)


def storm(load: Load, args: argparse.Namespace) -> None:
    """One load's table."""
    found = from_wheel()
    scale = loadable(found)
    with tempfile.TemporaryDirectory() as name:
        library, create_sql = module_with_switch(found, Path(name))
        script = Path(name, "storm.sql")
        script.write_text(load.script)
        settings = {"pgtare.ring_memory": "256MB", "max_connections": "200", **load.settings}
        with Cluster(found, settings, [scale.library, library]) as cluster:
            database = initialise(found, cluster.dsn(), 1)
            with own_session.connect(database.dsn) as conn:
                conn.execute(scale.create_sql.encode())
                conn.execute(create_sql.encode())
                conn.execute("CREATE SEQUENCE storm")
            chosen = arms(tuple(args.level))
            slices = Slices(tuple(range(len(chosen))), *SLICES_US, client_side.GUARD_NS // 1000)
            design = Design(chosen, block_layout(len(chosen)), args.seed, slices)
            spec = LoadSpec(scripts=(Script(script),), protocol="prepared", clients=args.clients)
            query = COUNTED.format(schema=MODULE).encode()
            with own_session.connect(database.dsn) as conn:
                before = conn.execute(query).fetchone()
                recorded = client_side.record(
                    harness.Server(found, database.dsn), spec, design, args.seconds
                )
                after = conn.execute(query).fetchone()
    assert before is not None
    assert after is not None
    data = recorded.observations
    watched = sum(int((data["arm"] == n).sum()) for n in range(2, len(chosen)))
    seen = client_side.seen(recorded, design)
    print(
        f"{load.title}, {args.clients} clients: {seen.base['tps']:.0f} tx/s, "
        f"{seen.base['cpu_us']:.1f} µs CPU a cycle, {(after[0] - before[0]) / max(watched, 1):.2f} "
        f"LWLock waits a transaction, CPU idle {100 * recorded.idle:.0f} %"
    )
    print("| arm | throughput | CPU a cycle |")
    print("|---|---|---|")
    for number, arm in enumerate(chosen[1:], start=1):
        _row(arm.name, seen, seen.tps[number], seen.cpu_us[number])
    for level, (later, at_once) in zip(
        args.level, ((n, n + 1) for n in range(2, len(chosen), 2)), strict=True
    ):
        tps = client_side.between(recorded, design, "tps", at_once, later)
        cpu = client_side.between(recorded, design, "cpu_us", at_once, later)
        _row(f"{level}: at once against later", seen, tps, cpu)


def _row(name: str, seen: client_side.Seen, tps: Estimate, cpu: Estimate) -> None:
    share = 100 / seen.base["tps"]
    print(
        f"| {name} | {share * tps.estimate:+.2f} ± {share * tps.half_width:.2f} % |"
        f" {cpu.estimate:+.2f} ± {cpu.half_width:.2f} µs |",
        flush=True,
    )


def main() -> None:
    """Print a table for each load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", nargs="+", choices=sorted(LOADS), default=sorted(LOADS))
    parser.add_argument("--level", nargs="+", choices=("stats", "trace"), default=["stats"])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name in args.load:
        storm(LOADS[name], args)


if __name__ == "__main__":
    main()
