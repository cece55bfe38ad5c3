"""The carry-over regression: effects of a unit's own arm and of the arms before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Floats, Ints
from pgtare.estimate.inference import NAN, Expansion
from pgtare.estimate.trial.blocks import Blocks

#: A smaller reciprocal condition number than this means effects that cannot be separated.
_SINGULAR = 1e-10


@dataclass(frozen=True)
class LagFit:
    """Coefficients of one outcome; lag 0 is the unit's own arm, lag 1 the previous unit's."""

    coefficients: Floats  # (lags + 1, K), zero for the base
    influence: Floats  # (G, lags + 1, K)

    def effect(self, arm: int, lag: int) -> Expansion:
        """Effect of an arm on the unit `lag` after the one it was in force in."""
        return Expansion(float(self.coefficients[lag, arm]), self.influence[:, lag, arm])


def fit(blocks: Blocks, outcomes: list[Floats], lags: int = 1) -> list[LagFit]:
    """OLS of each outcome (B, L) on arm and previous-arm dummies, with block fixed effects.

    y_bi = alpha_b + sum_k tau_k [arm = k] + sum_k c_k [previous arm = k] + error, and likewise
    with a second lag. Units whose previous arm is unknown are left out. The influence is that of
    the cluster-robust sandwich (Liang and Zeger 1986) over `blocks.cluster`. All coefficients
    are NaN if the effects cannot be separated, as two lags cannot in blocks of two units.

    Dummies are never built: with block-demeaned residuals, every cross product that the normal
    equations and the scores need is a count or a sum by (cluster, arm).
    """
    model = Model(blocks, lags)
    return [model.solve(outcome) for outcome in outcomes]


class Model:
    """The normal equations of `fit`, which all outcomes share.

    parts: into how many trials of equal size the blocks fall, one after the other and each with as
    many clusters; every one has coefficients of its own.
    """

    def __init__(self, blocks: Blocks, lags: int, parts: int = 1) -> None:
        self.blocks, self.lags, self.parts = blocks, lags, parts
        self.arms = np.asarray(blocks.layout, dtype=np.int64)
        shape = blocks.service_us.shape
        self.known = (blocks.previous[:lags] >= 0).all(axis=0)
        self.weight = self.known.astype(np.float64)
        self.size = np.maximum(self.weight.sum(axis=1, keepdims=True), 1.0)
        self.all_known = bool(self.known.all())
        #: (lags + 1, B, L) arm at each lag; if unknown any will do, as the weight is zero.
        self.at_lag: list[Ints] = [
            np.broadcast_to(self.arms, shape),
            *(np.maximum(blocks.previous[lag], 0) for lag in range(lags)),
        ]
        self.part = np.repeat(np.arange(parts), shape[0] // parts)[:, np.newaxis]
        self.inverse = self._inverse()

    def _inverse(self) -> Floats | None:
        """Inverse of X'X of each part (P, F, F) after demeaning, without the base's columns.

        None if one is singular.
        """
        n_arms, n_blocks, parts = self.blocks.n_arms, self.blocks.n, self.parts
        terms = self.lags + 1
        gram = np.zeros((parts, terms, n_arms, terms, n_arms))
        weight = self.weight.ravel()
        by_lag = [self._counts(lag) for lag in range(terms)]
        arms = np.arange(n_arms)
        for i, counted in enumerate(by_lag):
            gram[:, i, arms, i, arms] = counted.reshape(parts, -1, n_arms).sum(axis=1)
            for j in range(i):
                pair = ((self.part * n_arms + self.at_lag[i]) * n_arms + self.at_lag[j]).ravel()
                table = np.bincount(pair, weight, parts * n_arms * n_arms)
                table = table.reshape(parts, n_arms, n_arms)
                gram[:, i, :, j, :] = table
                gram[:, j, :, i, :] = table.transpose(0, 2, 1)
        counts = np.concatenate(by_lag, axis=1)
        across = (parts, n_blocks // parts, terms * n_arms)
        within = (counts / self.size).reshape(across)
        square = gram.reshape(parts, terms * n_arms, -1)
        square = square - counts.reshape(across).transpose(0, 2, 1) @ within
        free = self._free()
        square = square[:, free[:, np.newaxis], free]
        if not len(free) or n_blocks == 0 or (np.diagonal(square, axis1=1, axis2=2) <= 0).any():
            return None
        spectrum = np.linalg.eigvalsh(square)
        if (spectrum[:, 0] <= _SINGULAR * spectrum[:, -1]).any():
            return None
        return np.asarray(np.linalg.inv(square), dtype=np.float64)

    def _counts(self, lag: int) -> Floats:
        """How many of each block's units have each arm at this lag (B, K)."""
        n_blocks, n_arms = self.blocks.n, self.blocks.n_arms
        if lag == 0 and self.all_known:
            held = np.bincount(self.arms, minlength=n_arms).astype(np.float64)
            return np.asarray(np.tile(held, (n_blocks, 1)), dtype=np.float64)
        cell = np.arange(n_blocks)[:, np.newaxis] * n_arms + self.at_lag[lag]
        counted = np.bincount(cell.ravel(), self.weight.ravel(), n_blocks * n_arms)
        return np.asarray(counted.reshape(-1, n_arms), dtype=np.float64)

    def _free(self) -> Ints:
        """Positions of the coefficients other than the base's."""
        n_arms = self.blocks.n_arms
        return np.flatnonzero(np.arange((self.lags + 1) * n_arms) % n_arms != 0)

    def _demean(self, values: Floats) -> Floats:
        if self.all_known:
            mean = np.einsum("ij->i", values)[:, np.newaxis] / values.shape[1]
            return np.asarray(values - mean, dtype=np.float64)
        mean = (values * self.weight).sum(axis=1, keepdims=True) / self.size
        return np.asarray((values - mean) * self.weight, dtype=np.float64)

    def _sums(self, values: Floats) -> Floats:
        """Sums of demeaned values (B, L) over each dummy, by cluster: (P, G, F)."""
        blocks = self.blocks
        sums = np.zeros((blocks.n_clusters, self.lags + 1, blocks.n_arms))
        by_column = np.add.reduceat(values, blocks.cluster_starts, axis=0)
        for column, arm in enumerate(blocks.layout):
            sums[:, 0, arm] += by_column[:, column]
        offset = blocks.cluster[:, np.newaxis] * blocks.n_arms
        for lag in range(1, self.lags + 1):
            cell = (offset + self.at_lag[lag]).ravel()
            table = np.bincount(cell, values.ravel(), blocks.n_clusters * blocks.n_arms)
            sums[:, lag, :] = table.reshape(-1, blocks.n_arms)
        by_part = (self.parts, -1, (self.lags + 1) * blocks.n_arms)
        return sums.reshape(by_part)[:, :, self._free()]

    def solve(self, outcome: Floats) -> LagFit:
        """The coefficients of one outcome (B, L) of a single trial."""
        return self.solve_parts(outcome)[0]

    def solve_parts(self, outcome: Floats) -> list[LagFit]:
        """The same of every part."""
        terms, n_arms, parts = self.lags + 1, self.blocks.n_arms, self.parts
        clusters = self.blocks.n_clusters // parts
        if self.inverse is None:
            nothing = np.full((terms, n_arms), NAN), np.full((clusters, terms, n_arms), NAN)
            return [LagFit(*nothing)] * parts
        free = self._free()
        centred = self._demean(outcome)
        right = self._sums(centred).sum(axis=1)
        coefficients = np.zeros((parts, terms * n_arms))
        coefficients[:, free] = (self.inverse @ right[:, :, np.newaxis])[:, :, 0]
        table = coefficients.reshape(parts, terms, n_arms)
        fitted = table[:, 0][self.part[:, 0][:, np.newaxis], self.arms]
        for lag, at in enumerate(self.at_lag[1:], start=1):
            fitted += table[:, lag].ravel()[self.part * n_arms + at]
        scores = self._sums(centred - self._demean(fitted))
        influence = np.zeros((parts, clusters, terms * n_arms))
        influence[:, :, free] = scores @ self.inverse
        return [
            LagFit(table[part], influence[part].reshape(clusters, terms, n_arms))
            for part in range(parts)
        ]
