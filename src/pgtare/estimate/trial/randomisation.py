"""Randomisation test of the plain block differences, by re-drawing labels within blocks."""

from __future__ import annotations

import math

import numpy as np

from pgtare.estimate.arrays import Floats
from pgtare.estimate.trial.blocks import Blocks

DRAWS = 1_999
#: Blocks beyond this are re-labelled in batches.
MAX_BATCHES = 8_192
_CHUNK = 256


def p_values(blocks: Blocks, values: Floats, *, seed: int, draws: int = DRAWS) -> Floats:
    """Two-sided randomisation p-values of every arm against the base (K,), NaN for the base.

    values: (B, L), the outcome. With one base slot, exchanging arm and base within a block flips
    the sign of its difference; with more, the labels of the arm's and the base's slots are
    rotated. Slots of one arm are put in random order first: in the order of time they are not
    exchangeable, and under a trend within blocks the rotations would not be of a kind with the
    labels that were drawn. If there are many blocks, neighbours are re-labelled together: that
    is a subgroup of the permutations the design allows, so the test stays exact.
    p = (k + 1) / (draws + 1), after Phipson and Smyth (2010). Deterministic for a seed.
    """
    result = np.full(blocks.n_arms, math.nan)
    if blocks.n < 2:
        return result
    values = _shuffled(blocks, values, np.random.default_rng((seed, 1)))
    for turns in {len(blocks.slots(arm)) + len(blocks.slots(0)) for arm in _others(blocks)}:
        arms = [
            arm for arm in _others(blocks) if len(blocks.slots(arm)) + len(blocks.slots(0)) == turns
        ]
        rotated = np.stack([_rotations(blocks, values, arm) for arm in arms], axis=-1)
        result[arms] = _test(rotated, np.random.default_rng(seed), draws)
    return result


def sign_flips(differences: Floats, *, seed: int, draws: int = DRAWS) -> float:
    """Two-sided randomisation p-value of block differences (B,) with one place for each arm."""
    if len(differences) < 2:
        return math.nan
    starts = np.arange(min(len(differences), MAX_BATCHES)) * len(differences)
    sums = np.add.reduceat(differences, starts // min(len(differences), MAX_BATCHES))
    return float(
        _test(np.stack([sums, -sums])[:, :, np.newaxis], np.random.default_rng(seed), draws)[0]
    )


def _others(blocks: Blocks) -> range:
    return range(1, blocks.n_arms)


def _shuffled(blocks: Blocks, values: Floats, rng: np.random.Generator) -> Floats:
    """The values (B, L) with each arm's slots in random order within each block."""
    shuffled = values.copy()
    for arm in range(blocks.n_arms):
        columns = blocks.slots(arm)
        if len(columns) > 1:
            shuffled[:, columns] = rng.permuted(values[:, columns], axis=1)
    return shuffled


def _rotations(blocks: Blocks, values: Floats, arm: int) -> Floats:
    """Block differences under each rotation of the labels, summed by batch: (turns, batches)."""
    own = len(blocks.slots(arm))
    columns = blocks.slots(arm) + blocks.slots(0)
    batches = min(blocks.n, MAX_BATCHES)
    starts = np.arange(batches) * blocks.n // batches
    rotated = []
    for turn in range(len(columns)):
        turned = columns[turn:] + columns[:turn]
        difference = values[:, turned[:own]].mean(axis=1) - values[:, turned[own:]].mean(axis=1)
        rotated.append(np.add.reduceat(difference, starts))
    return np.stack(rotated)


def _test(rotated: Floats, rng: np.random.Generator, draws: int) -> Floats:
    """p-values (A,) from batch sums under each rotation (turns, batches, A); 0 = as drawn."""
    turns, batches, n_arms = rotated.shape
    observed = rotated[0].sum(axis=0)
    # Sums of the same numbers in another order differ in the last digits, which must count as ties.
    limit = np.abs(observed) * (1 - 1e-12)
    as_extreme = np.zeros(n_arms, dtype=np.int64)
    for done in range(0, draws, _CHUNK):
        chunk = min(_CHUNK, draws - done)
        turn = rng.integers(0, turns, size=(chunk, batches), dtype=np.uint8)
        total = np.tile(observed, (chunk, 1))
        for shift in range(1, turns):
            total += (turn == shift).astype(np.float64) @ (rotated[shift] - rotated[0])
        as_extreme += (np.abs(total) >= limit).sum(axis=0)
    return np.asarray((as_extreme + 1) / (draws + 1), dtype=np.float64)
