"""What a switch between settings takes in a trial, by the number of settings."""

from __future__ import annotations

import argparse

import numpy as np

from bench import harness
from pgtare.estimate.trial.design import Arm, Design, block_layout
from pgtare.postgres import own_session
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench
from pgtare.postgres.modules import loadable

TAKES = "a minute"

#: Settings that can be switched, with two values each that make no difference to this load.
SETTINGS = {
    "track_io_timing": ("off", "on"),
    "compute_query_id": ("off", "on"),
    "log_lock_waits": ("off", "on"),
    "deadlock_timeout": ("1s", "2s"),
    "track_functions": ("none", "pl"),
    "log_statement": ("none", "ddl"),
    "log_min_duration_statement": ("-1", "1h"),
    "enable_seqscan": ("on", "off"),
    "enable_sort": ("on", "off"),
    "enable_hashagg": ("on", "off"),
    "enable_material": ("on", "off"),
    "enable_memoize": ("on", "off"),
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=int, default=6, help="of each trial")


def main(args: argparse.Namespace) -> None:
    """Cost of a switch, and its share of the load's time, by number of settings."""
    print("settings  switch µs (mean)  median  share of the time")
    module = loadable(from_wheel())
    with harness.server([module.library], {"pgtare.ring_memory": "128MB"}) as target:
        with own_session.connect(target.dsn) as conn:
            conn.execute(module.create_sql.encode())
        weigh(target, args.seconds)


def weigh(target: harness.Server, seconds: int) -> None:
    """A line for each number of settings, from a trial of two arms that differ in all of them."""
    pgbench = find_pgbench(target.binaries)
    with PgbenchLoad(pgbench, target.dsn, LoadSpec(clients=1)) as running:
        running.wait_ready()
        for n in (1, 4, 8, 12):
            base, other = (
                {name: values[k] for name, values in list(SETTINGS.items())[:n]} for k in (0, 1)
            )
            arms = (Arm("base", "base", base), Arm("arm", "instrument", other))
            with own_session.connect(target.dsn) as conn:
                design = Design(arms, block_layout(2), 1)
                observations = harness.record(conn, design, running, seconds)
            data = np.sort(observations, order="unit")
            spacing = np.diff(data["start_ns"]).mean()
            share = data["switch_ns"][1:].mean() / spacing
            switch = data["switch_ns"][1:][np.diff(data["arm"].astype(np.int64)) != 0]
            print(
                f"{n:8d}  {switch.mean() / 1000:16.2f}  {np.median(switch) / 1000:6.2f}"
                f"  {100 * share:13.1f} %",
                flush=True,
            )
