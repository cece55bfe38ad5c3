"""Evidence for each kind of verdict."""

from __future__ import annotations

from dataclasses import replace

from pgtare.estimate.inference import Estimate
from pgtare.estimate.trial.verdict import Evidence

EQUIVALENT = Evidence(
    proven=True,
    blocks=10_000,
    least_blocks=30,
    body=Estimate(0.05, 0.1, -0.15, 0.25),
    margin_us=0.35,
    excess=Estimate(0.1, 0.3, -0.5, 0.7),
    total=Estimate(0.15, 0.3, -0.5, 0.8),
    tail_bound=1.1,
    p=0.6,
    family=4,
    seconds=60.0,
    factor=0.5,
    tail_factor=3.0,
)
CLEAR = replace(EQUIVALENT, body=Estimate(2.0, 0.1, 1.8, 2.2), p=1e-9)
GAIN = replace(EQUIVALENT, body=Estimate(-2.0, 0.1, -2.2, -1.8), p=1e-9)
OPEN = replace(EQUIVALENT, body=Estimate(0.05, 0.3, -0.55, 0.65), factor=4.0)
DEAR = Estimate(12.0, 2.0, 8.0, 16.0)
