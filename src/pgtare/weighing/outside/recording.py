"""Runs the driver's blocks until the time is up, gently, and stops where it could do harm."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.trial import bursts
from pgtare.estimate.trial.bursts import BURST, PACED
from pgtare.postgres import pooler, signals
from pgtare.postgres.own_session import first_line
from pgtare.weighing.outside.loops import LEAST_REST_S, REST, Loops, RunBlock
from pgtare.weighing.outside.session import READ_ONLY_SETTING
from pgtare.weighing.weigh.schema import StoppedBy

#: Blocks before the first that counts, and the seconds after which there is no further one: caches
#: fill, and it shows how long one takes.
WARM_UP, WARM_UP_S = 20, 5.0
_LOOK_S, _LOOK_SHARE = 1.0, 0.05
_TICK_S = 0.1
#: The server is asked about replicas this often, in s; if one lags so much more, in s, than when it
#: was seen first, the driver stops.
_HEALTH_S, MOST_LAG_S = 5.0, 10.0
#: The longest rest after a block that failed, in s.
_REST_AFTER_ERROR_S = 15.0
#: It also stops if of so many blocks in a row more than this share end in an error.
_RECENT, MOST_ERRORS = 50, 0.2
#: And if a transaction takes so many times as long as in the beginning, for as many blocks.
_SLOWER = 5.0
#: Standbys whose lag is hidden from a role.
_HIDDEN = "SELECT count(*) FROM pg_catalog.pg_stat_replication WHERE state IS NULL"
_LAGS = """
SELECT pid, coalesce(extract(epoch FROM replay_lag), 0)::float8
FROM pg_catalog.pg_stat_replication
"""

#: Called about once a second with seconds run and the runs so far; why the trial ends now, or None.
Look = Callable[[float, npt.NDArray[Any]], StoppedBy | None]


@dataclass
class OutsideRecording:
    """What a trial from outside gave, and how it ended. rows: of dtype RUN.

    failed_arms: in whose run each block failed in which the server reported an error. error: the
    latest of these errors, which may quote rows of the tables, and so is in no result.
    """

    rows: npt.NDArray[Any] = field(default_factory=bursts.empty)
    duration_s: float = 0.0
    stopped_by: StoppedBy = "time"
    trouble: str = ""
    failed_blocks: int = 0
    blocks: int = 0
    busy_s: float = 0.0  # of the server
    transactions: int = 0  # that count
    failed_arms: list[int] = field(default_factory=list)
    error: str = ""


def warm_up(loops: Loops, at_most_s: float, fitted: Callable[[float], object]) -> float:
    """Fit the lengths of runs, and run some blocks that count for nothing; seconds that two take.

    Two are one of each loop, and are to take at_most_s. fitted: called with what they probably
    take, before they run. Raises UsageError if the server refuses what is sent, if a transaction is
    left open, or if it takes too long.
    """
    began = time.monotonic()
    _checked(loops, loops.fit(at_most_s))
    fitted(loops.pair_s)
    took = {BURST: 0.0, PACED: 0.0}
    for number in range(WARM_UP):
        loop = (BURST, PACED)[number % 2]
        at = time.monotonic()
        block = loops.burst() if loop == BURST else loops.paced()
        _checked(loops, block)
        time.sleep(_rest_s(block))
        took[loop] = time.monotonic() - at
        if number and time.monotonic() - began > WARM_UP_S:
            break
    return sum(took.values())


def unwatched(controls: Mapping[str, psycopg.Connection[Any]]) -> tuple[str, ...]:
    """A sentence if standbys may fall behind unseen. controls: sessions by their servers' names."""
    names = [name for name, control in controls.items() if pooler.rows(control, _HIDDEN)[0][0]]
    if not names:
        return ()
    of = f" of {', '.join(names)}" if any(names) else ""
    return (
        f"the lag of standbys{of} is not watched: this role may not see it "
        "(GRANT pg_read_all_stats)",
    )


def _checked(loops: Loops, block: RunBlock) -> None:
    error = block.error
    if not error and loops.in_transaction:
        raise UsageError("the script leaves a transaction open: end it with COMMIT or ROLLBACK")
    if error:
        loops.recover()
        raise UsageError(_refused(loops, block))


def record(
    loops: Loops,
    controls: Mapping[str, psycopg.Connection[Any]],
    seconds: float,
    *,
    look: Look,
    tick: Callable[[float, int], None],
    advance: Callable[[], bool] = lambda: True,
) -> OutsideRecording:
    """Run blocks for so long, or until `look` says so, Ctrl-C, or the server's end.

    controls: another session on each server by its name, for the look at replicas. tick: called ten
    times a second with the seconds run and the transactions so far. advance: called before each
    block; the trial ends if it says False.
    """
    state = _State(loops, controls, began=time.monotonic(), advance=advance)
    got = state.got
    try:
        got.stopped_by = _until_end(state, seconds, look, tick)
    except KeyboardInterrupt:
        got.stopped_by = "interrupt"
    except (_Harm, MeasurementError, UsageError) as ex:
        got.stopped_by, got.trouble = "server", str(ex)
    except psycopg.Error as ex:
        got.stopped_by, got.trouble = "server", first_line(ex)
    signals.let_finish()
    got.rows, got.duration_s = state.rows(), time.monotonic() - state.began
    return got


class _Harm(Exception):
    """Why the driver had better stop."""


@dataclass
class _State:
    loops: Loops
    controls: Mapping[str, psycopg.Connection[Any]]
    began: float
    advance: Callable[[], bool]
    parts: list[npt.NDArray[Any]] = field(default_factory=list)
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_RECENT))
    took_s: dict[str, deque[float]] = field(default_factory=dict)  # by server
    first_s: dict[str, float] = field(default_factory=dict)
    first_lag_s: dict[tuple[str, int], float] = field(default_factory=dict)  # by server, process
    got: OutsideRecording = field(default_factory=OutsideRecording)

    def rows(self) -> npt.NDArray[Any]:
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0] if self.parts else bursts.empty()

    def add(self, block: RunBlock, loop: int) -> None:
        """Count a block. Raises _Harm."""
        self.got.blocks += 1
        self.got.busy_s += block.busy_s
        error = block.error or ("a transaction was left open" if self.loops.in_transaction else "")
        self.recent.append(bool(error))
        if error:
            self.got.failed_blocks += 1
            if block.failed_arm is not None:
                self.got.failed_arms.append(block.failed_arm)
                self.got.error, error = error, f"SQLSTATE {block.sqlstate}"
            self.loops.recover()
            if len(self.recent) == _RECENT and sum(self.recent) > MOST_ERRORS * _RECENT:
                raise _Harm(
                    f"{sum(self.recent)} of the last {_RECENT} blocks ended in an error: {error}"
                )
            return
        self.parts.append(block.rows)
        self.got.transactions += int(block.rows["transactions"].sum())
        if loop == BURST:
            for name, each_s in block.each_s.items():
                took_s = self.took_s.setdefault(name, deque(maxlen=_RECENT))
                took_s.append(each_s)
                if len(took_s) == _RECENT:
                    self._compare(name, statistics.median(took_s))

    def _compare(self, name: str, now_s: float) -> None:
        first_s = self.first_s.setdefault(name, now_s)
        if now_s > _SLOWER * first_s:
            times = f"{now_s / first_s:.0f} times slower than at the start"
            raise _Harm(f"{name or 'the server'} answers {times}")

    def check_replicas(self) -> None:
        """Raises _Harm if a replica falls behind. See `unwatched`."""
        for name, control in self.controls.items():
            for pid, lag_s in pooler.rows(control, _LAGS):
                first_s = self.first_lag_s.setdefault((name, pid), lag_s)
                if lag_s > first_s + MOST_LAG_S:
                    whose = f" of {name}" if name else ""
                    raise _Harm(
                        f"a replica{whose} is {lag_s:.0f} s behind; when it was seen first, it was "
                        f"{first_s:.0f} s behind"
                    )

    def renew(self, seconds: float) -> None:
        """New sessions if it is time for them, and the rest after what they ran."""
        for block in self.loops.renew(seconds):
            self.got.busy_s += block.busy_s
            time.sleep(_rest_s(block))


def _until_end(
    state: _State, seconds: float, look: Look, tick: Callable[[float, int], None]
) -> StoppedBy:
    next_look, next_tick, next_health = _LOOK_S, 0.0, 0.0
    spent_s = {BURST: 0.0, PACED: 0.0}
    latest_s = dict(spent_s)  # of a block without its rest
    while True:
        # both loops get the same time: a distant server makes pauses long
        loop = min(spent_s, key=lambda each: spent_s[each])
        now = time.monotonic() - state.began
        if now + latest_s[loop] / 2 >= seconds:
            return "time"
        if now >= next_tick:
            tick(now, state.got.transactions)
            next_tick = now + _TICK_S
        if now >= next_health:
            state.check_replicas()
            next_health = now + _HEALTH_S
        state.renew(now)
        if not state.advance():
            return "time"
        at = time.monotonic()
        block = state.loops.burst() if loop == BURST else state.loops.paced()
        rest_s = _rest_s(block)
        latest_s[loop] = time.monotonic() - at
        spent_s[loop] += latest_s[loop] + rest_s
        state.add(block, loop)
        if now >= next_look:
            began = time.monotonic()
            if (reason := look(now, state.rows())) is not None:
                return reason
            spent = time.monotonic() - began
            next_look = now + max(_LOOK_S, spent / _LOOK_SHARE)
        time.sleep(min(rest_s, max(state.began + seconds - time.monotonic(), 0.0)))


def _rest_s(block: RunBlock) -> float:
    """What is left to rest. A block that failed has waited for a lock, perhaps: then not for long.

    Else a guardian, which hears of us between blocks, would take us for hung.
    """
    most_s = _REST_AFTER_ERROR_S if block.error else math.inf
    return max(min(max(LEAST_REST_S, REST * block.busy_s), most_s) - block.rested_s, 0.0)


def _refused(loops: Loops, block: RunBlock) -> str:
    if block.sqlstate == "25006" and READ_ONLY_SETTING not in loops.settings[0]:
        if loops.is_on(READ_ONLY_SETTING) and not loops.is_on("in_hot_standby"):
            return (
                f"transactions only read by default here ({READ_ONLY_SETTING} is on): begin the "
                "script with BEGIN READ WRITE, and end it with COMMIT"
            )
        return f"the server only reads: {block.error}"
    if block.sqlstate == "25006":
        return (
            f"the script writes ({block.error}): add --writes if it may; what it writes stays in "
            "your tables"
        )
    if not block.sqlstate:
        return f"this cannot be weighed: {block.error}"
    return f"the server refuses the script: {block.error}"
