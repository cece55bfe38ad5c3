"""How many transactions a second a database ran during a trial, also those that took no part."""

from __future__ import annotations

from dataclasses import dataclass

from pgtare.weighing.weigh.schema import WeighResult


@dataclass(frozen=True)
class TransactionRate:
    """Transactions a second during a trial.

    whole: whether those that took no part are in it; else their share is not known, and the rate
    is a lower bound.
    """

    per_s: float
    whole: bool


def transaction_rate(result: WeighResult) -> TransactionRate | None:
    """The rate of the database that was weighed, not of the server's others, during the trial.

    None if nothing was measured, or from outside, where transactions were the driver's own.
    """
    design = result.design
    if design.outside is not None:
        return None
    took_part = sum(arm.n + arm.excluded for arm in result.arms) + design.lost
    if not (design.duration_s > 0 and took_part > 0):
        return None
    share_pct = design.transactions_took_part_pct
    if share_pct is None or not 0 < share_pct <= 100:
        return TransactionRate(took_part / design.duration_s, whole=False)
    return TransactionRate(took_part / design.duration_s / (share_pct / 100), whole=True)
