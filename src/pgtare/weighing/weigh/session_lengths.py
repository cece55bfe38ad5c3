"""Whether sessions are long enough for whole blocks, seen before the trial begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from pgtare.estimate.trial.design import MIXED, Design, block_layout, transactions_of_block
from pgtare.postgres import pooler

#: Base and control are arms that are no instruments.
_OTHER_ARMS = 2
#: A block of slices has to fit in this many times, for most transactions to be in whole ones.
_FITS = 3
#: And so many blocks of runs.
_BLOCKS = 2


@dataclass(frozen=True)
class SessionLengths:
    """How long a database's sessions are on the mean, since its statistics were reset."""

    transactions: float
    seconds: float


def session_lengths(conn: psycopg.Connection[Any]) -> SessionLengths | None:
    """Of the connected database, by pg_stat_database; None without a session."""
    ((transactions, session_ms, sessions),) = pooler.rows(
        conn,
        "SELECT (xact_commit + xact_rollback)::float8, session_time, sessions"
        " FROM pg_stat_database WHERE datname = current_database()",
    )
    if not sessions:
        return None
    return SessionLengths(transactions / sessions, session_ms / 1_000 / sessions)


def too_short(design: Design, found: SessionLengths | None) -> str:
    """What to do if sessions are too short for whole blocks, in words; empty if they are not."""
    if found is None:
        return ""
    if design.slices is not None and MIXED not in design.slices.kinds:
        needed = _slices_s(design, len(design.arms))
        if found.seconds >= needed:
            return ""
        return (
            f"Sessions of this database last {found.seconds:.2g} s on the mean, and one block of "
            f"slices of {len(design.arms)} arms lasts {needed:.2g} s: sessions without a "
            "transaction in every kind of slice are left out. Name fewer instruments, or keep "
            "sessions connected (a pooler)."
        )
    if found.transactions >= _BLOCKS * transactions_of_block(design):
        return ""
    block = transactions_of_block(design)
    return (
        f"Sessions of this database run {found.transactions:.0f} transactions on the mean, and a "
        f"trial of {len(design.arms)} arms meets each of them in {block:.0f}: the answers may be "
        f"of longer sessions only. {_remedy(design, found)}"
    )


def _remedy(design: Design, found: SessionLengths) -> str:
    fit = len(design.arms)
    while fit > _OTHER_ARMS and (
        _BLOCKS * len(block_layout(fit)) * design.runs.mean > found.transactions
    ):
        fit -= 1
    remedies = []
    if _OTHER_ARMS < fit < len(design.arms):
        remedies.append(f"weigh at most {fit - _OTHER_ARMS} instruments at a time")
    if found.seconds >= _FITS * _slices_s(design, len(design.arms)):
        remedies.append("use --unit slice, whose blocks take time instead of transactions")
    remedies.append("keep sessions connected (a pooler)")
    text = ", or ".join(remedies)
    return text[0].upper() + text[1:] + "."


def _slices_s(design: Design, arms: int) -> float:
    """How long a block of slices lasts on the mean, of slices as long as they are by default."""
    slices = design.slices
    mean_us = (slices.min_us + slices.max_us) / 2 if slices else 100_000
    return arms * mean_us / 1e6
