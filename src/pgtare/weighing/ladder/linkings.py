"""Linkings of a built server: which one a round uses, and where its programs are.

A round uses one linking of every built server, and each server has linkings of its own: a pair of
them is a pair drawn at random, and the unit of what is said of two builds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from pgtare.server.binaries import Binaries
from pgtare.server.source import Link, Recipe, relink

# A stream of its own below a study's seed.
_LINKINGS = 7


def order(seed: int, workload: int, rounds: int, layouts: int | None) -> tuple[int, ...]:
    """The linking of each round, from 1: each once in as many rounds, in random order; or 0."""
    if layouts is None:
        return (0,) * rounds
    rng = np.random.default_rng((seed, _LINKINGS, workload))
    blocks = -(-rounds // layouts)
    drawn = [int(n) + 1 for _ in range(blocks) for n in rng.permutation(layouts)]
    return tuple(drawn[:rounds])


def link_seed(server: str, number: int) -> int:
    """The seed of a linking: no two servers have one in common.

    Without the study's seed, which deals linkings to rounds, so that studies share what is linked.
    """
    return int.from_bytes(hashlib.sha256(f"{server}/{number}".encode()).digest()[:4], "big")


def linked(
    recipe: Recipe, server: str, number: int, on_progress: Callable[[str], None] = lambda _: None
) -> Binaries:
    """A built server by the number of its linking; made if it is not there yet."""
    return relink(recipe, Link(link_seed(server, number)), on_progress)
