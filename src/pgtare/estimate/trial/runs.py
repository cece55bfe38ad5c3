"""Selection of usable transactions: the observations of a trial by runs as two strata."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pgtare.estimate.arrays import Bools, Ints
from pgtare.estimate.trial.answer import COVERS_ALL
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import (
    NO_BLOCK,
    NO_SLICE,
    UNUSABLE,
    Observations,
    UnitFlag,
)
from pgtare.estimate.trial.outcomes import FailedRuns
from pgtare.estimate.trial.strata import FirstRuns, LaterRuns, Units

#: Transactions at the beginning of each later run that are left out: the arm before it still lasts,
#: and what the arm needs is not warm yet.
DROPPED = 8
#: Transactions up to here, of those that are kept, are compared with those after: whether the cost
#: has settled.
EARLY = 16
#: With a smaller share of the transactions, first runs are left out.
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Selection:
    """The usable transactions, and an account of what was left out.

    later: without the beginnings of runs. beginnings, early, late: other parts of the same runs,
    by the same blocks. first: None if no session began during the trial.
    """

    later: LaterRuns
    beginnings: LaterRuns
    early: LaterRuns
    late: LaterRuns
    first: FirstRuns | None
    failed: FailedRuns
    failed_first: FailedRuns
    n_first: int  # answered transactions in first runs
    n_first_covered: int  # of them, those of sessions with a whole block
    n_rest: int  # later ones of sessions that have a first run and no whole block
    n_later: int  # answered transactions in later runs of sessions with a whole block
    n_all: int  # answered transactions of all sessions
    shortest: int  # transactions of the shortest session with a whole block
    sessions: int  # with a whole block
    used: Ints  # (K,) transactions of each arm that entered
    aborted: Ints  # (K,) of these, those that failed
    excluded: Ints  # (K,) answered transactions of each arm left out

    @property
    def first_share(self) -> float:
        """The first runs' share of the transactions that the answer is of, if they are used."""
        both = self.n_first + self.n_later
        return self.n_first / both if both else 0.0

    @property
    def first_weight(self) -> float:
        """The first runs' weight in the answer.

        If the answer is of all sessions, first runs stand for the rest of their sessions, too:
        short sessions that come and go may be unlike those that stay.
        """
        rest = self.n_rest if self.covered(first_used=True) >= COVERS_ALL else 0
        together = self.n_first + rest + self.n_later
        return (self.n_first + rest) / together if together else 0.0

    @property
    def uses_first(self) -> bool:
        """Whether first runs are so many that the answer has to hold them."""
        return self.first is not None and self.first_share >= LEAST_SHARE

    def covered(self, first_used: bool) -> float:
        """The share of all transactions that the answer is of; 0 without any."""
        first = self.n_first if first_used else self.n_first_covered
        return (self.n_later + first) / self.n_all if self.n_all else 0.0


def select(obs: Observations, design: Design) -> Selection:
    """Usable transactions of a trial by runs.

    obs: observations of dtype OBSERVATION in any order; times in ns. Transactions that a session's
    or the trial's end left open are kept. A transaction is left out if its arm was not surely in
    force in it; a session, with its later runs, if it has no whole block.
    """
    n_arms = len(design.arms)
    known = obs[(obs["arm"] < n_arms) & (obs["slice"] == NO_SLICE)]
    rows = known[np.lexsort((known["unit"], known["backend"]))]
    flags, arm = rows["flags"], rows["arm"].astype(np.int64)
    finished = flags & UnitFlag.OPEN == 0
    usable = flags & UNUSABLE == 0
    in_block = (rows["block"] != NO_BLOCK) & (flags & UnitFlag.FIRST_RUN == 0)
    in_first = (flags & UnitFlag.FIRST_RUN != 0) & (flags & UnitFlag.UNDRAWN == 0)

    backend = rows["backend"].astype(np.int64)
    whole = _whole_blocks(rows[in_block], design)
    covered = np.zeros(int(backend.max(initial=-1)) + 1, dtype=np.bool_)
    covered[backend[in_block][whole]] = True
    later = in_block & covered[backend]
    began = np.zeros_like(covered)
    began[backend[in_first]] = True
    rest = in_block & (began & ~covered)[backend]
    kept = later & usable

    # What is cut short belongs to the block before: alone it may have one arm only, the one that
    # was slow when the session ended, and would be left out because it was.
    number = rows["block"].astype(np.int64)
    number[in_block] -= ~whole
    units = _units(rows[kept], _numbered(rows[kept], number[kept]))
    position = rows["position"][kept]
    first = _first_runs(rows[in_first & usable]) if in_first.any() else None
    entered = kept & (rows["position"] >= DROPPED) & finished
    if first is not None:
        entered |= in_first & usable & finished
    used = np.bincount(arm[entered], minlength=n_arms)
    sizes = np.bincount(backend[finished], minlength=len(covered))
    return Selection(
        later=LaterRuns(units.where(position >= DROPPED)),
        beginnings=LaterRuns(units.where(position < DROPPED)),
        early=LaterRuns(units.where((position >= DROPPED) & (position < EARLY))),
        late=LaterRuns(units.where(position >= EARLY)),
        first=first,
        failed=_failed_runs(rows[in_block][whole & usable[in_block]], design),
        failed_first=_failed_runs(rows[in_first & usable], design),
        n_first=int(np.count_nonzero(in_first & finished)),
        n_first_covered=int(np.count_nonzero((in_first & finished)[covered[backend]])),
        n_rest=int(np.count_nonzero(rest & finished)),
        n_later=int(np.count_nonzero(later & finished)),
        n_all=int(np.count_nonzero(finished)),
        shortest=int(sizes[covered].min(initial=np.iinfo(np.int64).max)) if covered.any() else 0,
        sessions=int(np.count_nonzero(covered)),
        used=used,
        aborted=np.bincount(arm[entered & (flags & UnitFlag.ABORTED != 0)], minlength=n_arms),
        excluded=np.bincount(arm[finished], minlength=n_arms) - used,
    )


def _units(rows: Observations, cluster: Ints) -> Units:
    cpu_us = rows["cpu_ns"] / 1000.0
    cpu_us[cpu_us < 0] = np.nan
    return Units(
        service_us=rows["service_ns"] / 1000.0,
        cpu_us=cpu_us,
        arm=rows["arm"].astype(np.int64),
        cluster=cluster,
        open=np.asarray(rows["flags"] & UnitFlag.OPEN != 0, dtype=np.bool_),
        n_clusters=int(cluster.max(initial=-1)) + 1,
    )


def _numbered(rows: Observations, block: Ints) -> Ints:
    """The blocks (N,) of the sessions numbered through all of them, from 0."""
    key = rows["backend"].astype(np.int64) << 32 | block
    return np.asarray(np.unique(key, return_inverse=True)[1], dtype=np.int64)


def _whole_blocks(rows: Observations, design: Design) -> Bools:
    """Which of these transactions, by (backend, unit), are in a block with all of its runs.

    A session begins its next block only when the one before is whole. Its last one is if it has
    as many transactions as its runs, all of one length, have together.
    """
    if not len(rows):
        return np.zeros(0, dtype=np.bool_)
    number = _numbered(rows, rows["block"])
    starts = np.unique(number, return_index=True)[1]
    answered = np.asarray(rows["flags"] & UnitFlag.OPEN == 0, dtype=np.float64)
    count = np.bincount(number, answered)
    length = np.maximum.reduceat(rows["position"].astype(np.int64), starts) + 1
    last = np.append(np.diff(rows["backend"][starts].astype(np.int64)) != 0, True)
    return np.asarray((~last | (count == len(design.block) * length))[number])


def _first_runs(rows: Observations) -> FirstRuns:
    _, at, session = np.unique(rows["backend"], return_index=True, return_inverse=True)
    units = _units(rows, session.astype(np.int64))
    group = np.unique(rows["stratum"][at], return_inverse=True)[1].astype(np.int64)
    return FirstRuns(units, group, rows["arm"][at].astype(np.int64))


def _failed_runs(rows: Observations, design: Design) -> FailedRuns:
    """Which of these runs have a failed transaction; rows by (backend, unit)."""
    answered = rows[rows["flags"] & UnitFlag.OPEN == 0]
    block = _numbered(answered, answered["block"])
    run = block * len(design.block) + answered["run"].astype(np.int64)
    _, starts, number = np.unique(run, return_index=True, return_inverse=True)
    aborted = np.asarray(answered["flags"] & UnitFlag.ABORTED != 0, dtype=np.float64)
    return FailedRuns(
        block=block[starts].astype(np.int64),
        arm=answered["arm"][starts].astype(np.int64),
        failed=np.bincount(number, aborted, len(starts)).astype(np.float64),
        size=np.bincount(number, minlength=len(starts)).astype(np.float64),
        service_us=answered["service_ns"] / 1000.0,
        aborted=aborted > 0,
        arm_of_unit=answered["arm"].astype(np.int64),
        layout=tuple(design.block),
    )
