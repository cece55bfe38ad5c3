"""How many clusters an estimate really rests on, from their influence on it.

Student's t with clusters − 1 degrees of freedom takes the clusters to be alike. If one slow session
has nearly all of the variance, a thousand clusters are but two or three, and an estimate of so few
terms is far less sure than its formula says. Satterthwaite's approximation (1946) counts them: the
degrees of freedom are those of the χ² with the mean and the variance that the estimated variance
has. The clusters' own variances are not known by design here, as a session's slowness is not, so
they are estimated too: a squared influence takes the place of a variance, and a third of its square
for a squared one, as with normal influences (Lipsitz, Ibrahim and Parzen, Statistics in Medicine
1999). With normal influences that are all alike the result is the number of clusters, but for
chance.

The CR2 correction of the influences themselves (Bell and McCaffrey 2002) is left out: arms are
balanced in each block, so that every cluster has nearly the same leverage, and CR2 then is the
factor G / (G − 1) that is applied.
"""

from __future__ import annotations

from pgtare.estimate.arrays import Floats

#: With fewer effective clusters the interval holds, but a verdict rests on a handful of sessions or
#: moments, and a warning says so.
FEW = 8.0


def effective_clusters(influence: Floats) -> float:
    """Effective number of clusters, from 1 to their number; influence (G,) of each on an estimate.

    0 if no cluster has any.
    """
    squares = influence * influence
    variance, fourth = float(squares.sum()), float(squares @ squares)
    if not (variance > 0 and fourth > 0):
        return 0.0
    return min(max(3 * variance**2 / fourth - 2, 1.0), float(len(influence)))


def degrees_of_freedom(influence: Floats) -> float:
    """Satterthwaite's, at least 1: one less than the effective clusters, as a mean was taken."""
    return max(effective_clusters(influence) - 1, 1.0)
