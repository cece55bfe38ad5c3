"""The design of a trial: arms, runs in permuted blocks, slices, and the schedule of these."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pgtare.estimate.sequential import TUNED_AT

Role = Literal["base", "control", "instrument", "injected"]
Unit = Literal["run", "slice", "both", "burst"]

#: A kind of slice: each session draws its arm for the slice, and half of them have each.
MIXED = -1

#: Limit of the server module: transactions of a run.
MAX_RUN = 255

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Arm:
    """One setting combination of a trial.

    settings: name -> value; a setting of the trial that an arm does not name keeps the
    session's own value there. inject_ns: busy-wait added to each transaction, in ns.
    """

    name: str
    role: Role
    settings: dict[str, str] = field(default_factory=dict)
    inject_ns: int = 0


@dataclass(frozen=True)
class Slices:
    """Spans of time in which all sessions do the same.

    kinds: of the slices of one block of slices, before permutation: the index of the arm that all
    sessions follow, or MIXED. Lengths are uniform between min_us and max_us. guard_us: how long
    after a switch nothing is measured.
    """

    kinds: tuple[int, ...]
    min_us: int = 15_000
    max_us: int = 45_000
    guard_us: int = 2_000

    def __post_init__(self) -> None:
        if not 1_000 <= self.min_us <= self.max_us <= 1_000_000:
            raise ValueError("slices last between 1,000 and 1,000,000 microseconds")
        if not 0 <= self.guard_us < self.min_us:
            raise ValueError("the guard must be shorter than the shortest slice")


@dataclass(frozen=True)
class Runs:
    """Runs of transactions in which a session keeps one arm.

    Lengths are uniform between shortest and longest; those of one block are alike.
    """

    shortest: int = 16
    longest: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest <= MAX_RUN:
            raise ValueError(f"runs have between 1 and {MAX_RUN} transactions")

    @property
    def mean(self) -> float:
        """Transactions of a run, on average."""
        return (self.shortest + self.longest) / 2


#: With fewer blocks nothing is said about an arm; so many of windows are few, but each is long.
LEAST_BLOCKS, LEAST_WINDOWS = 30, 8
#: A comparison of servers has this many batches of sessions; an answer takes at least so many.
BATCHES, LEAST_BATCHES = 20, 12
#: By what a driver's runs hang together.
Grouping = Literal["block", "sessions", "windows"]


@dataclass(frozen=True)
class Design:
    """Arms (index 0 is the base), the arms of the runs of one block, and the seed.

    block: before permutation. slices: None if runs are drawn; with slices there are none. driven:
    the runs are a driver's, which sees the server from outside. grouping: what of these counts as
    one: a block of runs; a batch of sessions, if each arm is a server; or a block of windows.
    batch_s: length of such a batch, in which sessions begin; a session that lasts longer is one.
    """

    arms: tuple[Arm, ...]
    block: tuple[int, ...]
    seed: int
    slices: Slices | None = None
    runs: Runs = Runs()
    driven: bool = False
    grouping: Grouping = "block"
    batch_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.arms or self.arms[0].role != "base":
            raise ValueError("the first arm must be the base")
        if sorted(set(self.block)) != list(range(len(self.arms))):
            raise ValueError("a block must hold every arm at least once")
        if self.slices and not set(self.slices.kinds) - {MIXED} == set(range(len(self.arms))):
            raise ValueError("a block of slices must hold every arm at least once")
        if self.slices and MIXED in self.slices.kinds and len(self.arms) != 2:
            raise ValueError("in a mixed slice sessions have one of two arms")

    @property
    def unit(self) -> Unit:
        """The unit of randomisation."""
        if self.driven:
            return "burst"
        if self.slices is None:
            return "run"
        return "both" if MIXED in self.slices.kinds else "slice"

    @property
    def reference(self) -> tuple[int, ...]:
        """The arms that are the base: itself and its control."""
        return tuple(i for i, arm in enumerate(self.arms) if arm.role in ("base", "control"))

    @property
    def least_blocks(self) -> int:
        """With fewer blocks nothing is said about an arm."""
        return {"windows": LEAST_WINDOWS, "sessions": LEAST_BATCHES}.get(
            self.grouping, LEAST_BLOCKS
        )

    @property
    def tuned_at(self) -> int:
        """Blocks at which intervals that hold at any time are to be tightest."""
        return BATCHES if self.grouping == "sessions" else TUNED_AT

    @property
    def setting_names(self) -> tuple[str, ...]:
        """The union of all arms' settings, in a stable order."""
        return tuple(sorted({name for arm in self.arms for name in arm.settings}))


#: After a switch between slices nothing is measured for this long, or a quarter of a short slice.
GUARD_US = 2_000
_GUARD_SHARE = 4


def slices_of(unit: Unit, n_arms: int, shortest_us: int, longest_us: int) -> Slices | None:
    """The slices of a trial with these arms by its unit; none if that is the run."""
    if unit == "run":
        return None
    kinds = (*range(n_arms), MIXED) if unit == "both" else tuple(range(n_arms))
    return Slices(kinds, shortest_us, longest_us, min(GUARD_US, shortest_us // _GUARD_SHARE))


#: From so many arms on the base has two runs in a block: with many comparisons against it a second
#: one makes their errors smaller.
TWO_OF_BASE = 6


def block_layout(n_arms: int) -> tuple[int, ...]:
    """The arms of the runs of one block: one of each, from TWO_OF_BASE arms on two of the base."""
    return (*range(n_arms), 0) if n_arms >= TWO_OF_BASE else tuple(range(n_arms))


def transactions_of_block(design: Design) -> float:
    """Transactions of a block, on average."""
    return len(design.block) * design.runs.mean


def _splitmix64(state: int) -> tuple[int, int]:
    state = (state + 0x9E3779B97F4A7C15) & _MASK64
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return state, z ^ (z >> 31)


def _shuffled(items: tuple[int, ...], state: int) -> tuple[int, ...]:
    """Fisher-Yates, driven by a SplitMix64 stream."""
    order = list(items)
    for i in range(len(order) - 1, 0, -1):
        state, draw = _splitmix64(state)
        j = (draw * (i + 1)) >> 64
        order[i], order[j] = order[j], order[i]
    return tuple(order)


def slice_order(design: Design, block: int) -> tuple[int, ...]:
    """The kinds of one block of slices, in order; draw_arms.c computes the same."""
    assert design.slices is not None
    state = (design.seed ^ ((block + 1) * 0x9FB21C651E98DF25)) & _MASK64
    return _shuffled(design.slices.kinds, state)


def slice_ns(design: Design, number: int) -> int:
    """The length of a slice; draw_arms.c computes the same."""
    assert design.slices is not None
    shortest, longest = 1_000 * design.slices.min_us, 1_000 * design.slices.max_us
    state = (design.seed ^ ((number + 1) * 0xC2B2AE3D27D4EB4F)) & _MASK64
    _, draw = _splitmix64(state)
    return shortest + (((draw >> 32) * (longest - shortest + 1)) >> 32)


def slice_ends(design: Design) -> Iterator[int]:
    """When each slice ends, in ns since the trial began."""
    return itertools.accumulate(slice_ns(design, number) for number in itertools.count())
