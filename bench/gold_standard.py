"""Answers alone and in company against the same instruments held for thousands of transactions.

Three instruments are weighed by runs: each alone, with three others, and with nine others. Between
these trials, on the same session of the same server, come trials in slices, in which each arm is
held for thousands of transactions without a switch: the gold standard. It is noisier, as the
machine changes between slices, so it lasts longer. Over the rounds, the mean difference of the
answers from the gold standard must lie within its own 95 % t interval, and under 5 % of the gold
standard or 0.1 µs. The exit status is 1 if one does not.

What is not weighed is off: with pg_stat_statements on, auto_explain costs half as much, because
both use one measurement of the executor.

The server writes its log to a file, as a cluster of pgtare's own does. With `--collector` the
logging collector writes it: a third process that needs a processor, beside the session and its
client. How often it is asleep when a line comes depends on how long lines have been coming.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import scipy

from bench import harness
from bench.harness import say
from pgtare.estimate.trial.analysis import analyse
from pgtare.estimate.trial.design import Design, Slices, block_layout
from pgtare.postgres import own_session
from pgtare.postgres.binaries import from_wheel
from pgtare.postgres.load import LoadSpec, PgbenchLoad, find_pgbench
from pgtare.postgres.modules import loadable
from pgtare.weighing.instruments.arms import choose, combine
from pgtare.weighing.instruments.catalogue import load_catalogue

TAKES = "20 minutes (--seconds, --rounds)"

WEIGHED = ("log_min_duration_statement", "pg_stat_statements", "auto_explain")
#: How many times longer a trial of the gold standard lasts than another; lengths of slices, in µs.
LONGER, SLICE_US = 3, (50_000, 100_000)
#: Each of the three has the other two in its company as well.
ONE = ("track_io_timing",)
SEVEN = (
    *ONE,
    "log_duration",
    "log_statement",
    "track_functions",
    "log_lock_waits",
    "track_wal_io_timing",
    "auto_explain/no_timing",
)
MOST_SHARE, MOST_US = 0.05, 0.1


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=10, help="of each trial")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--collector", action="store_true", help="log through the collector")


def design(names: Sequence[str], seed: int, *, held: bool) -> Design:
    """A trial of these instruments; held: in slices instead of runs."""
    arms = tuple(arm for arm in combine(choose(load_catalogue(), names)) if arm.role != "control")
    slices = Slices(tuple(range(len(arms))), *SLICE_US) if held else None
    return Design(arms, block_layout(len(arms)), seed, slices)


def main(args: argparse.Namespace) -> int:
    """Print the mean difference from the gold standard, by instrument and company."""
    module = loadable(from_wheel())
    libraries = [module.library, "pg_stat_statements", "auto_explain"]
    companies = {"alone": (), "with three": ONE, "with nine": SEVEN}
    found: dict[tuple[str, str], list[float]] = {}
    settings = {
        "pgtare.ring_memory": "128MB",
        "pg_stat_statements.track": "none",
        "logging_collector": "on" if args.collector else "off",
    }
    spec = LoadSpec(clients=1, protocol="prepared")
    with (
        harness.server(libraries, settings) as target,
        own_session.connect(target.dsn) as conn,
        PgbenchLoad(find_pgbench(target.binaries), target.dsn, spec) as load,
    ):
        conn.execute(module.create_sql.encode())
        load.wait_ready()

        def costs(names: Sequence[str], seed: int, *, held: bool = False) -> dict[str, float]:
            asked = design(names, seed, held=held)
            seconds = args.seconds * (LONGER if held else 1)
            observations = harness.record(conn, asked, load, seconds)
            proven = {arm.name: True for arm in asked.arms}
            arms = analyse(observations, asked, proven=proven).arms[1:]
            return {arm.name: arm.answer.us.estimate for arm in arms if arm.answer}

        for number in range(args.rounds):
            gold = costs(WEIGHED, 100 * number, held=True)
            for k, (company, others) in enumerate(companies.items(), start=1):
                groups = [(one,) for one in WEIGHED] if not others else [(*WEIGHED, *others)]
                answer: dict[str, float] = {}
                for names in groups:
                    answer |= costs(names, 100 * number + k)
                for name in WEIGHED:
                    found.setdefault((name, company), []).append(answer[name])
            again = costs(WEIGHED, 100 * number + 50, held=True)
            for name in WEIGHED:
                found.setdefault((name, "gold"), []).append((gold[name] + again[name]) / 2)
            say(f"round {number + 1} of {args.rounds}")
    return judged(found, companies)


def judged(found: dict[tuple[str, str], list[float]], companies: Sequence[str]) -> int:
    """Print the table; 1 if an answer is not the gold standard's."""
    bad = 0
    print("| instrument | company | gold µs | answer µs | difference µs | 95 % of it |")
    print("|---|---|---|---|---|---|")
    for name in WEIGHED:
        gold = np.array(found[name, "gold"])
        for company in companies:
            answer = np.array(found[name, company])
            difference = answer - gold
            mean, n = float(difference.mean()), len(difference)
            half = float(
                scipy.stats.t.ppf(0.975, n - 1) * difference.std(ddof=1) / np.sqrt(n)
                if n > 1
                else np.nan
            )
            good = abs(mean) <= half and abs(mean) <= max(MOST_SHARE * abs(gold.mean()), MOST_US)
            bad += not good
            print(
                f"| {name} | {company} | {gold.mean():.2f} | {answer.mean():.2f} "
                f"| {mean:+.3f} | ± {half:.3f}{'' if good else ' **off**'} |"
            )
    return 1 if bad else 0
