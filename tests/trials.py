"""What the tests of the server module share: a trial to run, and its observations."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
import pytest

from pgtare.estimate.trial import observations
from pgtare.estimate.trial.design import Arm, Design, Runs, Slices
from pgtare.estimate.trial.observations import Observations
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.own_session import connect
from pgtare.weighing.trials import Population, Trials
from tests.sessions import Connection, eventually

#: Of one transaction, so that arms come and go within few.
RUNS = Runs(1, 1)
#: A setting that both servers have, which no client hears of, and its values arm by arm.
MARKER = "work_mem"
MARKED: tuple[dict[str, str], ...] = ({MARKER: "1111kB"}, {MARKER: "2222kB"})


class Running:
    """A trial that runs, and all that has been drained from it."""

    def __init__(self, trials: Trials, design: Design) -> None:
        self.trials = trials
        self.design = design
        self._drained: list[Observations] = []

    def drain(self) -> None:
        """Take what is there, to be looked at later."""
        self._drained.append(self.trials.drain())

    def drained(self) -> Observations:
        """All observations up to now, in the order in which each session made them."""
        self.drain()
        rows: Observations = np.concatenate(self._drained)
        return rows[np.lexsort((rows["unit"], rows["backend"]))]

    def observed(self, session: Connection, count: int) -> Observations:
        """The `count` observations of one session: a record follows its answer a little later."""
        pid = session.info.backend_pid

        def mine() -> Observations:
            rows = self.drained()
            own: Observations = rows[rows["pid"] == pid]
            return own

        with contextlib.suppress(TimeoutError):
            eventually(lambda: len(mine()) >= count)
        time.sleep(0.02)  # would show one too many
        rows = mine()
        assert len(rows) == count, (len(rows), count)
        return rows


def design_of(
    arms: Sequence[Mapping[str, str]],
    inject_ns: Sequence[int] | None = None,
    block: Sequence[int] | None = None,
    seed: int = 20240607,
    slices: Slices | None = None,
    runs: Runs = RUNS,
) -> Design:
    """A design whose arms have these settings."""
    delays = inject_ns or [0] * len(arms)
    return Design(
        tuple(
            Arm(f"arm{i}", "base" if i == 0 else "instrument", dict(settings), delays[i])
            for i, settings in enumerate(arms)
        ),
        tuple(block or range(len(arms))),
        seed,
        slices,
        runs,
    )


#: Sessions that have answered and do not wait for their client yet: as they begin to, they look
#: whether there is a trial, and would take part from their next transaction on instead of the one
#: after that.
_BETWEEN = """
SELECT pid FROM pg_stat_activity
WHERE backend_type = 'client backend' AND state = 'idle'
  AND wait_event IS DISTINCT FROM 'ClientRead'
"""


@contextlib.contextmanager
def trial(
    cluster: Cluster,
    arms: Sequence[Mapping[str, str]] = MARKED,
    *,
    inject_ns: Sequence[int] | None = None,
    block: Sequence[int] | None = None,
    seed: int = 20240607,
    slices: Slices | None = None,
    runs: Runs = RUNS,
    seconds: float = 60.0,
    sessions: int = 64,
    cpu: bool = True,
    application: str = "*",
    role: str | None = None,
    participation: float = 1.0,
    database: str | None = "postgres",
    owner_does: str = "",
) -> Iterator[Running]:
    """A trial, stopped in the end; `owner_does` comes first, in the session that starts it."""
    design = design_of(arms, inject_ns, block, seed, slices, runs)
    population = Population(database, role, application, participation, sessions)
    with connect(cluster.dsn()) as owner:
        owner.execute(owner_does.encode())
        trials = Trials(owner)
        eventually(lambda: not owner.execute(_BETWEEN).fetchall())
        trials.start(design, population, seconds, cpu=cpu)
        try:
            yield Running(trials, design)
        finally:
            if not owner.closed and not owner.broken:
                trials.stop()


def share(rows: Observations, flag: observations.UnitFlag) -> float:
    """Of the rows that carry the flag."""
    return float(np.mean((rows["flags"] & flag) != 0))


def flagged(rows: Observations, flag: observations.UnitFlag) -> list[bool]:
    """Row by row, whether it carries the flag."""
    return [bool(flags & flag) for flags in rows["flags"]]


START = (
    "SELECT pgtare.trial_start(%(settings)s::text[], %(values)s::text[], %(inject)s::bigint[],"
    " %(block)s::int[], %(seed)s::bigint, %(duration)s::float8, %(database)s::name,"
    " %(role)s::name, %(application)s::text, %(participation)s::float8, %(sessions)s::int,"
    " %(cpu)s::bool)"
)
GOOD: dict[str, Any] = {
    "settings": [MARKER],
    "values": [None, "1111kB"],
    "inject": [0, 0],
    "block": [0, 1],
    "seed": 1,
    "duration": 60.0,
    "database": None,
    "role": None,
    "application": "*",
    "participation": 1.0,
    "sessions": 8,
    "cpu": True,
}


def start(operator: Connection, **changes: Any) -> int:
    """Start a trial by plain SQL, with good arguments but these."""
    row = operator.execute(START.encode(), {**GOOD, **changes}).fetchone()
    assert row is not None
    return int(row[0])


def refusal(operator: Connection, **changes: Any) -> str:
    """What the server says to a trial with these arguments."""
    with pytest.raises(psycopg.Error) as caught:
        start(operator, **changes)
    return f"{caught.value.diag.message_primary}: {caught.value.diag.message_detail}"
