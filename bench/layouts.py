"""How far apart linkings of one server come out, and how much two builds would seem to differ.

PostgreSQL 18 is built from source once, and its executable linked from the same objects in K random
orders: nothing differs but where the code lies. All K servers run at once and share one load (a
duet); a set of rounds, in which each plays each data directory once, gives each linking's median
latency in percent of the set's mean. Printed are each linking's place, the spread between linkings
beyond what sets explain, and what a comparison of "builds" says that looks at rounds alone and one
that knows of linkings: the first half of the linkings against the second, which are the same build.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import special

from pgtare.estimate.arrays import Floats
from pgtare.estimate.study import duet as estimate
from pgtare.estimate.study import layouts
from pgtare.estimate.study.rounds import paired
from pgtare.load import LoadSpec
from pgtare.load.duet_plan import Length
from pgtare.server.source import Link, Recipe, relink
from pgtare.weighing.ladder.duet_clusters import DuetBlock, DuetVariant, judge
from pgtare.weighing.ladder.duet_roles import load_seed, roles_of_set

WARMUP_S = 0.5


def measured(args: argparse.Namespace) -> Floats:
    """log(linking / mean of all) of the median latency, by set and linking (S, K)."""
    recipe = Recipe(18)

    def tell(state: str) -> None:
        print(state, file=sys.stderr, flush=True)

    variants = [
        DuetVariant(
            f"linking {seed}", relink(recipe, Link(seed), tell), (), {"shared_buffers": "128MB"}
        )
        for seed in range(1, args.linkings + 1)
    ]
    spec = LoadSpec(protocol=args.protocol, clients=args.clients)
    length = Length(args.seconds, warmup_s=WARMUP_S)
    played: list[estimate.RoundStatistics | None] = []
    with DuetBlock(variants) as block, tempfile.TemporaryDirectory() as directory:
        for number in range(args.sets):
            for roles in roles_of_set(args.seed, number, len(variants)):
                block.assign(roles)
                seeded = dataclasses.replace(spec, seed=load_seed(args.seed, len(played)))
                done = block.drive(seeded, length, Path(directory, f"round-{len(played)}"))
                statistics, dropped = judge(done, roles)
                if dropped:
                    tell(f"a round is dropped: {dropped}")
                played.append(statistics)
    logs = np.log(estimate.round_values(played, "latency_us", "p50", len(variants)))
    sets = np.repeat(np.arange(args.sets), len(variants))
    return estimate.by_set(logs - logs.mean(axis=1, keepdims=True), sets)


def show(values: Floats) -> None:
    """Print what the sets say."""
    sets, linkings = values.shape
    found = layouts.two_way(values)
    t = float(special.stdtrit(sets - 1, 0.975))
    print(f"{linkings} linkings of the same objects, {sets} sets of rounds; median latency")
    for number, column in enumerate(values.T, start=1):
        alone = paired(column, margin=0.005)
        print(
            f"linking {number}: {100 * alone.mean:+.2f} % of the mean of all, "
            f"standard error {100 * alone.se:.2f}"
        )
    print(
        f"SD between linkings {100 * found.sd_layout:.2f} % "
        f"[{100 * found.sd_layout_lo:.2f}, {100 * found.sd_layout_hi:.2f}], of a set "
        f"{100 * found.sd_round:.2f} %; all alike: p = {found.p_layout:.2g}"
    )
    spread = values.mean(axis=0)
    low, high = int(spread.argmin()), int(spread.argmax())
    print(
        f"slowest against fastest, the largest of {linkings * (linkings - 1) // 2} differences: "
        f"{100 * (spread[high] - spread[low]):+.2f} % ± "
        f"{100 * layouts.range_half_width(found, sets):.2f} (Tukey)"
    )
    half = linkings // 2
    arm, base = list(values.T[:half]), list(values.T[half : 2 * half])
    d = values[:, :half].mean(axis=1) - values[:, half : 2 * half].mean(axis=1)
    by_rounds = paired(d, margin=0.005)
    both = layouts.two_builds(arm, base)
    print(
        f"the same build twice, {half} linkings of each: {100 * both.estimate:+.2f} %, "
        f"by rounds alone ± {100 * t * by_rounds.se:.2f}, over linkings "
        f"[{100 * both.lo:+.2f}, {100 * both.hi:+.2f}]"
    )
    for k in (1, 5, 10, 30):
        width = 100 * layouts.expected_half_width(found.sd_layout, k)
        width_text = "nothing can be said" if k < 2 else f"± {width:.2f} %"
        print(f"two builds with {k} linking(s) of each, rounds without error: {width_text}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--linkings", type=int, default=6)
    parser.add_argument("--sets", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--protocol", choices=("simple", "prepared"), default="prepared")
    parser.add_argument("--seed", type=int, default=1)
    show(measured(parser.parse_args()))


if __name__ == "__main__":
    main()
