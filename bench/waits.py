"""What a captured wait costs, beside the cost of its two clock readings in the same run.

The module's own function calls a wrapped libc function in a tight loop inside a backend, with the
deferred folding included.
"""

from __future__ import annotations

import argparse

from pgtare.server.binaries import from_wheel
from pgtare.server.cluster import Cluster
from pgtare.server.modules import loadable


def main() -> None:
    """Print a line for each round and capture level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waits", type=int, default=400_000)
    args = parser.parse_args()
    found = from_wheel()
    module = loadable(found, "wait_event_timing")
    with Cluster(found, {}, [module.library]) as cluster, cluster.connect() as conn:
        conn.execute(module.create_sql.encode())
        print("capture  ns a wait  ns for two clock readings  ratio")
        for _ in range(args.rounds):
            for level in ("off", "stats", "trace"):
                conn.execute(f"SET wait_event_timing.capture = {level}")
                row = conn.execute(
                    "SELECT wait_ns, two_clock_reads_ns, ratio FROM"
                    " wait_event_timing_benchmark(%s)",
                    (args.waits,),
                ).fetchone()
                assert row is not None
                print(f"{level:7}  {row[0]:9.1f}  {row[1]:25.1f}  {row[2]:5.2f}", flush=True)


if __name__ == "__main__":
    main()
