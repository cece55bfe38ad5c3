"""Why can timing waits cost latency at half load, and no throughput at saturation?

Two parts. `--part server` weighs stats and trace by transactions inside one server, with 1, 4, 16
and 64 waits a transaction and the load from 10 % of saturation to saturation, in service time and
in processor time per cycle, and with a known delay; a line through the waits per transaction gives
what a wait costs, and what a transaction. `--part client` runs slices in which all sessions have
one arm, and sees what becomes of a known delay at the client: in its latency, and in throughput.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import client_side, harness
from pgtare.estimate.trial import Estimate, TrialEstimate, analyse
from pgtare.estimate.trial.design import Arm, Design, Slices, block_layout
from pgtare.load import LoadSpec, PgbenchLoad, Script, find_pgbench, find_saturation
from pgtare.load.spec import cores
from pgtare.server import own_session
from pgtare.server.binaries import from_wheel
from pgtare.server.modules import loadable

MODULE = "wait_event_timing"
CAPTURE = f"{MODULE}.capture"
RING = f"{MODULE}.trace_ring_records"
USUAL_RING = 131_072
SCRIPT = Path(__file__).resolve().parents[1] / "studies" / "scripts" / "reads.sql"
SATURATION = 1.0
SLICES_US = (60_000, 180_000)

COUNTED = """
SELECT coalesce(sum(waits) FILTER (WHERE wait_event = 'DataFileRead'), 0),
       coalesce(sum(waits) FILTER (WHERE wait_event = 'ClientRead'), 0)
  FROM pg_stat_wait_event_timing_system WHERE backend_type = 'client backend'
"""


@dataclass(frozen=True)
class Cell:
    """One load at one number of waits a transaction."""

    reads: int
    load: float
    found: TrialEstimate
    waits: tuple[float, float]  # DataFileRead and ClientRead a transaction, counted


@dataclass(frozen=True)
class FittedLine:
    """Cost of an arm as a + b × waits: µs a transaction, ns a wait, each ± 1.96 SE."""

    fixed_us: float
    fixed_half: float
    wait_ns: float
    wait_half: float


def arms(delay_ns: int) -> tuple[Arm, ...]:
    """Base, control, the two levels of capture, and a known delay."""
    off = {CAPTURE: "off"}
    return (
        Arm("base", "base", off),
        Arm("control", "control", off),
        Arm("stats", "instrument", {CAPTURE: "stats"}),
        Arm("trace", "instrument", {CAPTURE: "trace"}),
        Arm("delay", "injected", off, delay_ns),
    )


def reads_load(reads: int, clients: int) -> LoadSpec:
    """The script of this many reads a transaction, at full speed."""
    scripts = (Script(SCRIPT),)
    return _Reads(scripts=scripts, protocol="prepared", clients=clients, reads=reads)


def spec_of(target: harness.Server, reads: int, load: float, clients: int) -> LoadSpec:
    """The script's load at a share of its saturation, which is found first."""
    spec = reads_load(reads, clients)
    if load >= SATURATION:
        return spec
    found = find_saturation(find_pgbench(target.binaries), target.dsn, spec, probes=2, probe_s=1)
    return replace(spec, rate=load * found.tps)


@dataclass(frozen=True)
class _Reads(LoadSpec):
    """A load whose script takes the number of blocks to read."""

    reads: int = 1

    def arguments(self) -> list[str]:
        return [*super().arguments(), "-D", f"reads={self.reads}"]


def weigh(target: harness.Server, reads: int, load: float, args: argparse.Namespace) -> Cell:
    """One cell of the table inside the server; low loads take longer."""
    seconds = args.seconds * min(2.0, max(0.6, 0.5 / load))
    spec = spec_of(target, reads, load, args.clients)
    chosen = arms(args.delay_ns)
    design = Design(chosen, block_layout(len(chosen)), seed=reads + round(100 * load))
    with own_session.connect(target.dsn) as conn:
        conn.execute(f"SET {CAPTURE} = off".encode())
        before = _counted(conn)
        with (
            harness.options({RING: str(args.ring)}),
            PgbenchLoad(find_pgbench(target.binaries), target.dsn, spec) as running,
        ):
            running.wait_ready()
            data = harness.record(target, running, design, seconds, cpu=True)
        after = _counted(conn)
    watched = np.count_nonzero(np.isin(data["arm"], (2, 3)))
    first, second = ((b - a) / max(int(watched), 1) for a, b in zip(before, after, strict=True))
    return Cell(reads, load, analyse(data, design, seed=1), (first, second))


def _counted(conn: Any) -> tuple[float, float]:
    row = conn.execute(COUNTED).fetchone()
    return float(row[0]), float(row[1])


def line(waits: Sequence[float], costs: Sequence[Estimate]) -> FittedLine:
    """The weighted line through costs in µs over the waits of a transaction."""
    x = np.column_stack([np.ones(len(waits)), np.array(waits)])
    weight = np.array([1 / cost.se**2 for cost in costs])
    y = np.array([cost.estimate for cost in costs])
    variance = np.linalg.inv(x.T @ (weight[:, None] * x))
    a, b = variance @ (x.T @ (weight * y))
    half_a, half_b = 1.96 * np.sqrt(np.diag(variance))
    return FittedLine(float(a), float(half_a), 1000 * float(b), 1000 * float(half_b))


def show_cell(cell: Cell) -> None:
    """A row for each arm of a cell."""
    base = cell.found.baseline
    print(
        f"| {cell.reads} | {_load(cell.load)} | {base.body_mean_us:.1f} | {base.cpu_us:.1f} |"
        f" {cell.waits[0]:.2f} | {cell.waits[1]:.2f} | "
        + " | ".join(
            f"{_pm(arm.effect.body_us)} | {_pm(arm.effect.cpu_us)}"
            for arm in cell.found.arms[1:]
            if arm.effect
        )
        + " |",
        flush=True,
    )


def show_lines(cells: Sequence[Cell]) -> None:
    """For each load and arm, what a wait and what a transaction costs."""
    print("| load | arm | of | a transaction, µs | a wait, ns |")
    print("|---|---|---|---|---|")
    for load in dict.fromkeys(cell.load for cell in cells):
        row = [cell for cell in cells if cell.load == load]
        if len(row) < 2:
            continue
        for number, arm in enumerate(row[0].found.arms):
            if arm.name not in ("stats", "trace", "delay"):
                continue
            effects = [cell.found.arms[number].effect for cell in row]
            for of in ("body_us", "cpu_us"):
                fitted = line([c.reads for c in row], [getattr(e, of) for e in effects])
                name = "service time" if of == "body_us" else "CPU a cycle"
                print(
                    f"| {_load(load)} | {arm.name} | {name} |"
                    f" {fitted.fixed_us:+.2f} ± {fitted.fixed_half:.2f} |"
                    f" {fitted.wait_ns:+.1f} ± {fitted.wait_half:.1f} |"
                )


def at_client(target: harness.Server, load: float, args: argparse.Namespace) -> None:
    """A row for each arm of a trial in slices, from both sides."""
    chosen = tuple(a for a in arms(args.delay_ns) if a.name in ("base", "control", *args.arms))
    shortest, longest = SLICES_US
    slices = Slices(tuple(range(len(chosen))), shortest, longest, client_side.GUARD_NS // 1000)
    design = Design(chosen, block_layout(len(chosen)), round(100 * load), slices)
    spec = spec_of(target, args.reads[0], load, args.clients)
    recorded = client_side.record(target, spec, design, round(args.seconds))
    found = client_side.seen(recorded, design)
    base = found.base
    print(
        f"| {_load(load)} | base | {base['latency_us']:.1f} | {base['median_us']:.1f} |"
        f" {base['service_us']:.1f} | {base['cpu_us']:.1f} | {base['tps']:.0f} |"
        f" {100 * recorded.idle:.0f} % |"
    )
    share = 100 / base["tps"]
    for number, arm in enumerate(chosen[1:], start=1):
        rate = found.tps[number]
        print(
            f"| {_load(load)} | {arm.name} | {_pm(found.latency_us[number])} |"
            f" {_pm(found.median_us[number])} | {_pm(found.service_us[number])} |"
            f" {_pm(found.cpu_us[number])} |"
            f" {share * rate.estimate:+.2f} ± {share * rate.half_width:.2f} % | |",
            flush=True,
        )


def _load(load: float) -> str:
    return "saturation" if load >= SATURATION else f"{100 * load:.0f} %"


def _pm(found: Estimate | None) -> str:
    if found is None:
        return "–"
    return f"{found.estimate:+.2f} ± {found.half_width:.2f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("server", "client"), default="server")
    parser.add_argument("--reads", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--load", type=float, nargs="+", default=[0.1, 0.25, 0.5, 0.75, 1.0])
    parser.add_argument("--seconds", type=float, default=10, help="of a cell; lower loads longer")
    parser.add_argument("--delay-ns", type=int, default=5_000, help="the known delay")
    parser.add_argument("--clients", type=int, default=2 * cores(), help="enough to saturate")
    parser.add_argument("--ring", type=int, default=USUAL_RING, help="records of a trace")
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=("stats", "trace", "delay"),
        default=["stats", "trace", "delay"],
        help="of the client's part",
    )
    args = parser.parse_args()
    library = loadable(from_wheel(), MODULE).library
    with harness.server([library]) as target:
        with own_session.connect(target.dsn) as conn:
            conn.execute(loadable(target.binaries, MODULE).create_sql.encode())
            conn.execute("CREATE EXTENSION pg_prewarm")
        if args.part == "client":
            print("| load | arm | client, mean µs | median | service | CPU | tx/s | CPU idle |")
            print("|---|---|---|---|---|---|---|---|")
            for load in args.load:
                at_client(target, load, args)
            return
        heads = [f"{a.name} service | {a.name} CPU" for a in arms(args.delay_ns)[1:]]
        print("| reads | load | base µs | CPU µs | DataFileRead | ClientRead | ", end="")
        print(" | ".join(heads) + " |")
        print("|" + "---|" * 14)
        cells = []
        for load in args.load:
            for reads in args.reads:
                cells.append(weigh(target, reads, load, args))
                show_cell(cells[-1])
        print()
        show_lines(cells)


if __name__ == "__main__":
    main()
