"""What an arm's transactions spend more time in than the base's, function by function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from pgtare.seeing.flame import frames
from pgtare.seeing.flame.samples import Stack, StackSamples

#: Blocks of time over which a figure's spread is taken.
BLOCKS = 40
#: Functions seen in fewer samples than these, of both arms, are not looked at.
_FEWEST = 10
_LEVEL = 0.95
# Some entries of the kernel jump on to a function that others call as well, and leave no frame.
_ENTRIES = ("__x64_sys_", "__arm64_sys_", "ksys_")
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Growth:
    """One function: µs a transaction in the base and in the arm, and the growth with its interval.

    A function's time includes what it calls. p: of no growth, by Holm over all functions of the
    arm that were looked at. The interval holds for one function alone: of functions that are only
    just listed the growth is overstated. new: the base hardly has it.
    """

    name: str
    base_us: float
    arm_us: float
    growth_us: float
    lo_us: float
    hi_us: float
    p: float
    new: bool


@dataclass(frozen=True)
class Reasons:
    """Why an arm costs what it costs: what grew, the new functions first, each part by its growth.

    total: the growth of all samples; samples: of this arm.
    """

    arm: str
    total: Growth
    functions: tuple[Growth, ...]
    samples: int


def function_names(stack: Stack) -> set[str]:
    """The server's and libraries' functions of a stack, and the system call it is in."""
    found = {name for name in stack[1:] if not name.endswith(frames.KERNEL)}
    found.update(call for name in stack if (call := system_call(name)))
    return found


def system_call(name: str) -> str:
    """`write (system call)` for the kernel's entry of it, empty for any other frame."""
    plain = name.removesuffix(frames.KERNEL)
    for prefix in _ENTRIES:
        if plain.startswith(prefix):
            return f"{plain.removeprefix(prefix)} (system call)"
    return ""


def wait_names(stack: Stack) -> set[str]:
    """What a blocked stack waits in: its system call, and the wait event if it is known."""
    found = {call for name in stack if (call := system_call(name))}
    found.update(name for name in stack if name.startswith(frames.WAIT))
    return found


def explain(
    samples: StackSamples,
    sample_arm: Array,
    transactions_ns: Array,
    transaction_arm: Array,
    arms: Sequence[str],
    *,
    recorded: tuple[int, int] | None = None,
    names: Callable[[Stack], set[str]] = function_names,
) -> list[Reasons]:
    """Compare each arm but the first with the first.

    sample_arm: of each sample, -1 for none. transactions_ns: when each transaction began, by the
    clock of the samples. recorded: from when to when samples were taken; transactions outside of it
    have none and do not count. Spread is taken over blocks of time by the jackknife.
    """
    if recorded is not None:
        within = (transactions_ns >= recorded[0]) & (transactions_ns < recorded[1])
        transactions_ns, transaction_arm = transactions_ns[within], transaction_arm[within]
    if not len(transactions_ns):
        return []
    first, last = int(transactions_ns.min()), int(transactions_ns.max()) + 1
    edges = np.linspace(first, last, BLOCKS + 1)
    taken = sample_arm >= 0
    chosen = samples.where(taken)
    arm = sample_arm[taken]
    block = np.clip(np.searchsorted(edges, chosen.start_ns, side="right") - 1, 0, BLOCKS - 1)
    runs = np.zeros((BLOCKS, len(arms)))
    when = np.clip(np.searchsorted(edges, transactions_ns, side="right") - 1, 0, BLOCKS - 1)
    np.add.at(runs, (when, transaction_arm), 1)
    index: dict[str, int] = {}
    members = [
        np.array(sorted(index.setdefault(n, len(index)) for n in names(stack)), np.int64)
        for stack in chosen.stacks
    ]
    # time by block, arm and function; function 0 of the last axis is everything
    spent = np.zeros((BLOCKS, len(arms), len(index) + 1))
    seen = np.zeros((len(arms), len(index) + 1))
    cell = (block * len(arms) + arm) * len(chosen.stacks) + chosen.stack
    used, place = np.unique(cell, return_inverse=True)
    weight = np.bincount(place, chosen.weight_ns, len(used))
    count = np.bincount(place, minlength=len(used))
    for key, ns, n in zip(used.tolist(), weight.tolist(), count.tolist(), strict=True):
        rest, stack = divmod(key, len(chosen.stacks))
        b, k = divmod(rest, len(arms))
        own = np.append(members[stack] + 1, 0)
        spent[b, k, own] += ns / 1000
        seen[k, own] += n
    listed = ["everything", *index]
    return [_compare(k, arms[k], spent, seen, runs, listed) for k in range(1, len(arms))]


def _compare(
    k: int, arm: str, spent: Array, seen: Array, runs: Array, names: Sequence[str]
) -> Reasons:
    looked = np.flatnonzero((seen[k] + seen[0] >= _FEWEST) | (np.arange(len(names)) == 0))
    difference, spread, base, mean = _jackknife(spent[:, [0, k]][:, :, looked], runs[:, [0, k]])
    factor = float(scipy.stats.t.ppf((1 + _LEVEL) / 2, BLOCKS - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(spread > 0, difference / spread, 0.0)
    p = 2 * scipy.stats.t.sf(np.abs(t), BLOCKS - 1)
    p[1:] = _holm(p[1:])
    made = [
        Growth(
            name=names[f],
            base_us=float(base[i]),
            arm_us=float(mean[i]),
            growth_us=float(difference[i]),
            lo_us=float(difference[i] - factor * spread[i]),
            hi_us=float(difference[i] + factor * spread[i]),
            p=float(p[i]),
            new=bool(base[i] < mean[i] / 2),
        )
        for i, f in enumerate(looked.tolist())
    ]
    grown = [g for g in made[1:] if g.p < 1 - _LEVEL and g.growth_us > 0]
    grown.sort(key=lambda g: (not g.new, -g.growth_us, g.name))
    return Reasons(arm, made[0], tuple(grown), int(seen[k, 0]))


def _jackknife(spent: Array, runs: Array) -> tuple[Array, Array, Array, Array]:
    """Growth a transaction, its standard error, and both means; blocks left out one at a time."""
    total, n = spent.sum(axis=0), runs.sum(axis=0)
    n_safe = np.maximum(n, 1)
    rates = total / n_safe[:, None]
    without = (total[None] - spent) / np.maximum(n[None] - runs, 1)[:, :, None]
    each = without[:, 1] - without[:, 0]
    count = len(each)
    spread = np.sqrt((count - 1) / count * ((each - each.mean(axis=0)) ** 2).sum(axis=0))
    return rates[1] - rates[0], spread, rates[0], rates[1]


def _holm(p: Array) -> Array:
    order = np.argsort(p)
    scaled = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, scaled)
    return adjusted
