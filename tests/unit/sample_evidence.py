"""Evidence for each kind of verdict."""

from __future__ import annotations

from dataclasses import replace

from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.verdict import Evidence

EQUIVALENT = Evidence(
    proven=True,
    blocks=10_000,
    body=Estimate(0.05, 0.1, -0.15, 0.25),
    under=Estimate(0.40, 0.1, 0.24, 0.56),
    over=Estimate(-0.30, 0.1, -0.46, -0.14),
    excess=Estimate(0.1, 0.3, -0.5, 0.7),
    total=Estimate(0.15, 0.3, -0.5, 0.8),
    total_over=Estimate(-0.2, 0.3, -0.8, 0.4),
    tail_bound=1.1,
    p=0.6,
    family=4,
    seconds=60.0,
    factor=0.5,
    tail_factor=3.0,
)
CLEAR = replace(
    EQUIVALENT,
    body=Estimate(2.0, 0.1, 1.8, 2.2),
    under=Estimate(2.35, 0.1, 2.19, 2.51),
    over=Estimate(1.65, 0.1, 1.49, 1.81),
    p=1e-9,
)
OPEN = replace(EQUIVALENT, over=Estimate(-0.3, 0.4, -1.0, 0.4), factor=4.0)
DEAR = Estimate(12.0, 2.0, 8.0, 16.0)
