"""Which cluster plays which variant in each round of a duet: randomised Latin squares."""

from __future__ import annotations

import numpy as np

# Streams of their own below a study's seed.
_ROLES = 4
_LOADS = 5


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
