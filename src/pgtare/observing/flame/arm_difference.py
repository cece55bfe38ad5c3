"""What an arm's transactions spend more time in than the base's, function by function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pgtare.estimate.distributions import student_below, student_quantile
from pgtare.estimate.inference import holm
from pgtare.observing.flame import frames
from pgtare.observing.flame.frames import Stack
from pgtare.observing.flame.recording import StackSamples

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
    just listed the growth is overstated. new: the base hardly has it. around: the function of the
    base that it was put around, whose time in the base is counted as its own; empty for none.
    """

    name: str
    base_us: float
    arm_us: float
    growth_us: float
    lo_us: float
    hi_us: float
    p: float
    new: bool
    around: str = ""


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
    edges = np.linspace(first, last, BLOCKS + 1)[1:-1]
    taken = sample_arm >= 0
    chosen = samples.where(taken)
    runs = np.zeros((BLOCKS, len(arms)))
    np.add.at(runs, (np.searchsorted(edges, transactions_ns, "right"), transaction_arm), 1)
    index: dict[str, int] = {}
    members = [
        sorted(index.setdefault(n, len(index)) for n in names(stack)) for stack in chosen.stacks
    ]
    # time and samples by block, arm and stack
    shape = (BLOCKS, len(arms), len(chosen.stacks))
    block = np.searchsorted(edges, chosen.start_ns, "right")
    cell = np.ravel_multi_index((block, sample_arm[taken], chosen.stack), shape)
    spent = np.bincount(cell, chosen.weight_ns / 1000, math.prod(shape)).reshape(shape)
    seen = np.bincount(cell, minlength=math.prod(shape)).reshape(shape).sum(axis=0)
    calls = _Calls(
        np.concatenate([np.array(m, np.int64) for m in [[], *members]]),
        np.repeat(np.arange(len(members)), [*map(len, members)]),
    )
    return [
        _compare(
            arms[k], spent[:, [0, k]], seen[[0, k]], runs[:, [0, k]], calls, [*index], chosen.stacks
        )
        for k in range(1, len(arms))
    ]


class _Calls(NamedTuple):
    """Pairs of a function and a stack that it is in, each once."""

    function: Array
    stack: Array

    def samples(self, seen: Array, functions: int) -> Array:
        """Samples of each function. seen: by stack."""
        return np.bincount(self.function, seen[self.stack], functions)

    def rows(self, functions: Array, stacks: int) -> Array:
        """Which of these functions, in ascending order, each stack has: functions by stacks."""
        row = np.searchsorted(functions, self.function)
        row[row == len(functions)] = 0
        known = functions[row] == self.function if len(functions) else np.zeros(len(row), bool)
        found = np.zeros((len(functions), stacks), bool)
        found[row[known], self.stack[known]] = True
        return found


def _compare(
    arm: str,
    spent: Array,
    seen: Array,
    runs: Array,
    calls: _Calls,
    names: Sequence[str],
    stacks: Sequence[Stack],
) -> Reasons:
    """spent, seen: of base and arm, by stack. calls: which functions each stack has."""
    looked = np.flatnonzero(calls.samples(seen.sum(axis=0), len(names)) >= _FEWEST)
    has = calls.rows(looked, len(stacks))
    rate = spent.sum(axis=0) / np.maximum(runs.sum(axis=0), 1)[:, None]
    names = [names[f] for f in looked.tolist()]
    wrapped = _wrapped(has, rate, names, stacks)
    groups = np.vstack([np.ones((1, has.shape[1]), bool), has])
    groups[1:][wrapped >= 0] |= has[wrapped[wrapped >= 0]]
    by_stack = spent.reshape(2 * BLOCKS, len(stacks))
    by_group = np.hstack(
        [by_stack @ part.T.astype(float) for part in np.array_split(groups, len(groups) // 64 + 1)]
    )
    difference, spread, base, mean = _jackknife(by_group.reshape(BLOCKS, 2, -1), runs)
    factor = student_quantile(BLOCKS - 1, (1 + _LEVEL) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(spread > 0, difference / spread, 0.0)
    p = np.array([2 * student_below(BLOCKS - 1, -abs(one)) for one in t.tolist()])
    p[1:] = holm(p[1:].tolist())
    half = factor * spread
    columns = (base, mean, difference, difference - half, difference + half, p, base < mean / 2)
    around = ["", *(names[c] if c >= 0 else "" for c in wrapped.tolist())]
    rows = zip(["everything", *names], *(c.tolist() for c in columns), around, strict=True)
    made = [Growth(*row) for row in rows]
    grown = [g for g in made[1:] if g.p < 1 - _LEVEL and g.growth_us > 0]
    grown.sort(key=lambda g: (not g.new, -g.growth_us, g.name))
    return Reasons(arm, made[0], tuple(grown), int(seen[1].sum()))


def _wrapped(has: Array, rate: Array, names: Sequence[str], stacks: Sequence[Stack]) -> Array:
    """For each function that the arm put around another one, which; -1 for any other.

    A new function that calls what the base calls as well is in the stacks of that time without
    having added it: the base spends it outside of the new function, the arm within. has: functions
    by stacks. rate: µs a transaction in base and arm, by stack.
    """
    time = has @ rate.T  # of functions, in base and arm
    found = np.full(len(has), -1)
    for f in np.flatnonzero((time[:, 0] < time[:, 1] / 2) & (time[:, 1] > 0)).tolist():
        within = has[:, has[f]] @ rate[1, has[f]]
        moved = np.minimum(within, time[:, 0] - (time[:, 1] - within))
        callees = []
        for c in np.flatnonzero(moved > time[f, 1] / 2).tolist():
            stack = stacks[int(np.argmax(rate[1] * has[f] * has[c]))]
            if names[f] in stack and names[c] in stack[stack.index(names[f]) + 1 :]:
                callees.append((stack.index(names[c]), c))
        most = max((moved[c] for _, c in callees), default=0)
        # the outermost of those in which all of it lies
        wide = [(at, c) for at, c in callees if moved[c] > 0.99 * most]
        found[f] = min(wide, default=(0, -1))[1]
    return found


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
