"""The duet protocol: all variants' clusters up at once, roles exchanged between rounds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.arrays import Floats
from pgtare.estimate.study import duet as estimate
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import DEFAULTS, Cluster
from pgtare.postgres.load import BenchDatabase, LoadSpec, initialise
from pgtare.postgres.load.driver import driver_for
from pgtare.postgres.load.duet import DuetRun, run_duet
from pgtare.postgres.load.duet_plan import Length
from pgtare.postgres.load.duet_records import Outcome, Records
from pgtare.postgres.processes import kill_leftovers
from pgtare.postgres.settings import Value, checked, library_list

#: A round with fewer complete cycles says nothing.
FEWEST_CYCLES = 20
# Streams of their own below a study's seed.
_ROLES = 4
_LOADS = 5

Hook = Callable[[Cluster, BenchDatabase], None]


@dataclass(frozen=True)
class DuetVariant:
    """One rung: programs, what is preloaded, settings that need a restart, and run-time ones."""

    name: str
    binaries: Binaries
    preload: tuple[str, ...] = ()
    settings: Mapping[str, Value] = field(default_factory=dict)
    runtime: Mapping[str, Value] = field(default_factory=dict)

    @property
    def at_start(self) -> tuple[Any, ...]:
        """What a server must be started anew for."""
        return self.binaries, self.preload, sorted(checked(self.settings).items())


class DuetBlock:
    """Clusters for all variants of a block, up together, for `with`.

    Each has pgbench's tables at `scale`. warm: called before each round, for prewarming. Clusters
    begin as the variants in order, so that one that cannot start says so before anything is
    measured (MeasurementError with the end of its log). Raises UsageError for variants that cannot
    share data directories.
    """

    def __init__(
        self,
        variants: Sequence[DuetVariant],
        *,
        scale: int = 1,
        warm: Hook = lambda cluster, database: None,
    ) -> None:
        if len(variants) < 2 or len({v.name for v in variants}) < len(variants):
            raise UsageError("a duet takes two or more variants, each with a name of its own")
        if len({v.binaries.major for v in variants}) > 1:
            raise UsageError(
                "variants of a duet exchange their data directories, so all must be of one major"
                " version of PostgreSQL: compare versions by rounds"
            )
        self.variants = tuple(variants)
        self.scale = scale
        self.clusters: list[Cluster] = []
        self.databases: list[BenchDatabase] = []
        self._warm = warm
        self._roles = tuple(range(len(variants)))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.driver = driver_for(self.variants[0].binaries)
            for variant in self.variants:
                cluster = self._started(stack, variant)
                database = initialise(cluster.binaries, cluster.dsn(), self.scale)
                self.clusters.append(cluster)
                self.databases.append(database)
                self._warm(cluster, database)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def drive(
        self,
        spec: LoadSpec,
        length: Length,
        output: Path,
        *,
        on_progress: Callable[[float, int], None] | None = None,
    ) -> DuetRun:
        """Run the load on the clusters as they are.

        Raises MeasurementError if the load cannot begin.
        """
        return run_duet(
            self.driver,
            [database.dsn for database in self.databases],
            spec,
            length,
            output,
            variables={"scale": self.scale},
            on_progress=on_progress,
        )

    def assign(self, roles: tuple[int, ...]) -> None:
        """Let each cluster play the variant that `roles` gives it, and make its data ready.

        If one has to be started anew, all are, so that none is younger than another.
        """
        before = [self.variants[variant] for variant in self._roles]
        after = [self.variants[variant] for variant in roles]
        restart = any(b.at_start != a.at_start for b, a in zip(before, after, strict=True))
        self._roles = roles
        # All stop before the first starts: they share the machine's memory.
        if restart or not all(cluster.answers() for cluster in self.clusters):
            for cluster in self.clusters:
                cluster.stop()
        for cluster, database, variant in zip(self.clusters, self.databases, after, strict=True):
            cluster.configure(self._configuration(variant))
            if cluster.running:
                cluster.reload()
            else:
                cluster.binaries = variant.binaries
                # A postmaster that was killed leaves its children, which hold the data directory.
                kill_leftovers(cluster.data_directory)
                with _naming(variant):
                    cluster.start()
            self._warm(cluster, database)

    def _started(self, stack: contextlib.ExitStack, variant: DuetVariant) -> Cluster:
        with _naming(variant):
            settings = {**variant.settings, **variant.runtime}
            return stack.enter_context(Cluster(variant.binaries, settings, variant.preload))

    def _configuration(self, variant: DuetVariant) -> dict[str, Value]:
        """All that any variant sets, as this one has it."""
        everything: dict[str, Value] = {"shared_preload_libraries": None}
        for other in self.variants:
            everything |= dict.fromkeys(checked({**other.settings, **other.runtime}))
        defaults = {name: DEFAULTS.get(name) for name in everything}
        own = checked({**variant.settings, **variant.runtime})
        if variant.preload:
            own = {"shared_preload_libraries": library_list(variant.preload), **own}
        return {**defaults, **own}


def judge(
    run: DuetRun, roles: tuple[int, ...]
) -> tuple[estimate.RoundStatistics | None, str | None]:
    """The statistics of a run, or why it must not count."""
    outcomes = run.records.outcomes()
    if not run.whole:
        return None, run.failure or "it was interrupted"
    censored = outcomes["unfinished"] + outcomes["unsent"]
    if censored:
        return None, (
            f"{censored} transactions had no answer when the run ended: the load is more than the"
            " servers can take"
        )
    cycles = cycles_of(run.records, roles)
    if len(cycles) < FEWEST_CYCLES:
        return None, f"only {len(cycles)} complete cycles, fewer than {FEWEST_CYCLES}"
    return estimate.summarise(cycles), None


def cycles_of(records: Records, roles: tuple[int, ...]) -> Floats:
    """The measured cycles of a run (n, K), by variant."""
    rows = records.measured
    rows = rows[rows["outcome"] == Outcome.OK]
    return estimate.pair_cycles(
        rows["thread"].astype(np.int64),
        rows["cycle"].astype(np.int64),
        np.asarray(roles, dtype=np.int64)[rows["cluster"]],
        rows["latency_ns"],
        len(roles),
    )


def roles_of_set(seed: int, number: int, n_variants: int) -> tuple[tuple[int, ...], ...]:
    """The roles in one set of rounds: [round][cluster] = variant.

    A set has as many rounds as variants, and in it each variant plays each cluster once, so
    that what a cluster's placement is worth (its files' place on disk, its pages' place in memory)
    falls on all variants alike. With two variants it is a pair of rounds, the second with the
    clusters' roles exchanged; which comes first is drawn by lot. With more it is a Latin square
    whose rounds, clusters and variants are shuffled. The same for a seed and number, whatever was
    asked before.
    """
    rng = np.random.default_rng((seed, _ROLES, number))
    rounds, clusters, variants = (rng.permutation(n_variants) for _ in range(3))
    return tuple(tuple(int(variants[(r + c) % n_variants]) for c in clusters) for r in rounds)


def load_seed(seed: int, round_number: int) -> int:
    """The seed of a round's load: of the order within cycles, of times due, of random rows."""
    return int(np.random.default_rng((seed, _LOADS, round_number)).integers(2**31))


@contextlib.contextmanager
def _naming(variant: DuetVariant) -> Iterator[None]:
    """Say which variant's server did not start."""
    try:
        yield
    except MeasurementError as ex:
        raise MeasurementError(f"variant {variant.name}: {ex}") from ex
