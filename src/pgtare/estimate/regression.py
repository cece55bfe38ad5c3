"""The carry-over regression: effects of a unit's own arm and of the arms before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pgtare.estimate.blocks import Blocks, Floats, Ints
from pgtare.estimate.inference import NAN, Expansion

#: A smaller reciprocal condition number than this means effects that cannot be told apart.
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
    are NaN where the effects cannot be told apart, as two lags cannot in blocks of two units.

    Dummies are never built: with block-demeaned residuals, every cross product that the normal
    equations and the scores need is a count or a sum by (cluster, arm).
    """
    model = Model(blocks, lags)
    return [model.solve(outcome) for outcome in outcomes]


class Model:
    """The normal equations of `fit`, which all outcomes share."""

    def __init__(self, blocks: Blocks, lags: int) -> None:
        self.blocks, self.lags = blocks, lags
        self.arms = np.asarray(blocks.layout, dtype=np.int64)
        shape = blocks.service_us.shape
        self.known = (blocks.previous[:lags] >= 0).all(axis=0)
        self.weight = self.known.astype(np.float64)
        self.size = np.maximum(self.weight.sum(axis=1, keepdims=True), 1.0)
        self.all_known = bool(self.known.all())
        #: (lags + 1, B, L) arm at each lag; where unknown any will do, as the weight is zero.
        self.at_lag: list[Ints] = [
            np.broadcast_to(self.arms, shape),
            *(np.maximum(blocks.previous[lag], 0) for lag in range(lags)),
        ]
        self.inverse = self._inverse()

    def _inverse(self) -> Floats | None:
        """Inverse of X'X after demeaning, without the base's columns; None where singular."""
        n_arms, n_blocks = self.blocks.n_arms, self.blocks.n
        terms = self.lags + 1
        gram = np.zeros((terms, n_arms, terms, n_arms))
        weight = self.weight.ravel()
        for i in range(terms):
            for j in range(i + 1):
                pair = (self.at_lag[i] * n_arms + self.at_lag[j]).ravel()
                table = np.bincount(pair, weight, n_arms * n_arms).reshape(n_arms, n_arms)
                gram[i, :, j, :] = table
                gram[j, :, i, :] = table.T
        row = np.arange(n_blocks)[:, np.newaxis] * n_arms
        counts = np.concatenate(
            [
                np.bincount((row + at).ravel(), weight, n_blocks * n_arms).reshape(-1, n_arms)
                for at in self.at_lag
            ],
            axis=1,
        )
        square = gram.reshape(terms * n_arms, -1) - counts.T @ (counts / self.size)
        free = self._free()
        square = square[np.ix_(free, free)]
        if not len(free) or n_blocks == 0 or (np.diag(square) <= 0).any():
            return None
        spectrum = np.linalg.eigvalsh(square)
        if spectrum[0] <= _SINGULAR * spectrum[-1]:
            return None
        return np.asarray(np.linalg.inv(square), dtype=np.float64)

    def _free(self) -> Ints:
        """Positions of the coefficients other than the base's."""
        n_arms = self.blocks.n_arms
        return np.flatnonzero(np.arange((self.lags + 1) * n_arms) % n_arms != 0)

    def _demean(self, values: Floats) -> Floats:
        if self.all_known:
            return np.asarray(values - values.mean(axis=1, keepdims=True), dtype=np.float64)
        mean = (values * self.weight).sum(axis=1, keepdims=True) / self.size
        return np.asarray((values - mean) * self.weight, dtype=np.float64)

    def _sums(self, values: Floats) -> Floats:
        """Sum of demeaned values (B, L) over each dummy, by cluster: (G, lags + 1, K)."""
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
        return sums

    def solve(self, outcome: Floats) -> LagFit:
        """The coefficients of one outcome (B, L)."""
        terms, n_arms = self.lags + 1, self.blocks.n_arms
        clusters = self.blocks.n_clusters
        if self.inverse is None:
            return LagFit(np.full((terms, n_arms), NAN), np.full((clusters, terms, n_arms), NAN))
        free = self._free()
        centred = self._demean(outcome)
        right = self._sums(centred).sum(axis=0).ravel()[free]
        coefficients = np.zeros(terms * n_arms)
        coefficients[free] = self.inverse @ right
        table = coefficients.reshape(terms, n_arms)
        fitted = np.zeros_like(outcome)
        for lag, at in enumerate(self.at_lag):
            fitted += table[lag][at]
        scores = self._sums(centred - self._demean(fitted)).reshape(clusters, -1)[:, free]
        influence = np.zeros((clusters, terms * n_arms))
        influence[:, free] = scores @ self.inverse
        return LagFit(table, influence.reshape(clusters, terms, n_arms))
