"""Feeds the guards of `estimate.fleet` with what the draining threads read.

Each stage has guards of its own, one for each arm, with their shares of α. A server's cap, at which
times are cut and from which on a transaction counts as slow, is frozen before its first trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgtare.estimate.arrays import Floats
from pgtare.estimate.fleet.guard import GuardedServer, GuardLook, HarmGuard, HarmLimits
from pgtare.estimate.trial.design import Design, transactions_of_block
from pgtare.estimate.trial.observations import UNUSABLE, Observations, UnitFlag, finished
from pgtare.estimate.trial.runs import DROPPED
from pgtare.weighing.fleet.stages import Stage

Bools = npt.NDArray[np.bool_]

#: Chance of a false alarm, over all stages and arms of a weighing.
ALPHA = 0.05
#: Servers with the same value of this label share a load.
LOAD_LABEL = "load"
#: How long a server is looked at before the first trial, in s.
LOOK_S = 3.0
#: The base's quantile at which times are cut, and of how many transactions it is known.
_QUANTILE, _FEWEST = 0.99, 200
#: The cap of a server that ran nothing while it was looked at, in µs.
_NO_TRAFFIC_US = 1e6
#: Rows that wait for the rest of their blocks; more are of sessions that have gone.
_MOST_PENDING = 200_000
#: A stage whose sessions ran less than this share of what they ran before was far too slow.
_FAR_FEWER = 0.1
_OUTSIDE = UNUSABLE | UnitFlag.FIRST_RUN | UnitFlag.OPEN
_WORDS = {
    "body": "its transactions took longer",
    "tail": "more of its runs had a slow one",
    "aborts": "more of its runs had a failed one",
}


@dataclass(frozen=True)
class BaseSample:
    """What a server's transactions are like without any arm. Times in µs.

    cap_us: where times are cut. per_s: transactions a second of each session that finished some in
    the look, by its process.
    """

    cap_us: float
    transactions: int
    per_s: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Observations) -> BaseSample:
        """The sample in rows of a trial that changes nothing, of LOOK_S."""
        ended = finished(rows)
        times = ended["service_ns"] / 1000.0
        if not len(times):
            return cls(_NO_TRAFFIC_US, 0)
        known = len(times) >= _FEWEST
        cap = float(np.quantile(times, _QUANTILE)) if known else 2 * float(times.max())
        return cls(
            cap_us=max(cap, 1.0),
            transactions=len(times),
            per_s={
                int(pid): n / LOOK_S
                for pid, n in zip(*np.unique(ended["pid"], return_counts=True), strict=True)
            },
        )


@dataclass(frozen=True)
class Crossing:
    """A guard's e-value reached its line. transactions: with an instrument on, in this stage."""

    server: str
    what: str
    e_value: float
    transactions: int


class FleetGuard:
    """The guards of a fleet weighing. `see` and `crossing` are for one thread at a time.

    samples: by server, from before the trials. limits: the harm that is tolerated.
    """

    def __init__(
        self,
        samples: Mapping[str, BaseSample],
        loads: Mapping[str, str],
        limits: HarmLimits,
    ) -> None:
        self._samples, self._loads, self._limits = samples, loads, limits
        self._share = self._left = ALPHA
        self._servers: dict[str, GuardedServer] = {}
        self._guards: dict[str, HarmGuard] = {}
        self._pending: dict[str, Observations] = {}
        self._instrumented = self._block_length = 0
        self._whole_blocks = Counter[str]()
        self._came: dict[str, Counter[int]] = {}

    def begin(self, stage: Stage, arms: int, stages_left: int) -> None:
        """New guards for a stage, with their share of the α that is left.

        stages_left: how many are to come, this one included. A stage that is repeated, as its
        servers were lost, has spent its share if it saw anything; so all shares together are α at
        most, however often the stages change.
        """
        self._left -= self._share * len(self._guards)
        self._servers = {
            name: GuardedServer(self._loads.get(name, f"server {name}"), self._samples[name].cap_us)
            for name in stage.servers
        }
        self._guards, self._pending = {}, {}
        self._instrumented = 0
        self._whole_blocks, self._came = Counter[str](), {}
        self._share = self._left / stages_left / max(arms, 1)

    def ended(self, server: str) -> None:
        """A server's trial has ended: its blocks are not completed any more."""
        self._pending.pop(server, None)

    def see(self, server: str, design: Design, part: Observations) -> None:
        """Count what was read of a server."""
        guarded = _guarded_arms(design)
        self._instrumented += int(np.isin(part["arm"], guarded).sum())
        self._came.setdefault(server, Counter()).update(part["pid"].tolist())
        rows = part[(part["flags"] & int(_OUTSIDE)) == 0]
        if server in self._pending:
            rows = np.concatenate([self._pending[server], rows])
        whole, rest = _whole_blocks(rows, len(design.block))
        self._pending[server] = rest[-_MOST_PENDING:]
        self._block_length = round(transactions_of_block(design))
        self._whole_blocks[server] += len(np.unique(_block_of(whole)))
        if not len(whole):
            return
        for k in guarded:
            name = design.arms[k].name
            if name not in self._guards:
                self._guards[name] = HarmGuard(self._servers, self._limits, self._share)
            cap_us, limit = self._servers[server].cap_us, self._limits.body
            found = look(whole, k, cap_us, limit)
            self._guards[name].update(server, found)

    def crossing(self) -> Crossing | None:
        """The first guard that breached, if one did."""
        for name, guard in list(self._guards.items()):
            if guard.breach is not None:
                found = guard.breach
                what = f"{name}: {_WORDS[found.harm]}"
                return Crossing(found.server, what, found.e_value, self._instrumented)
        return None

    def blind(self, stage: Stage) -> str:
        """Why a stage that has ended showed too little for its guards; empty if it did not.

        An instrument that all but stops transactions lets few blocks end, so it could pass. It may
        do so on one server only, which the others' transactions must not hide.
        """
        if not self._whole_blocks.total():
            return (
                f"no session finished a whole block of {self._block_length} transactions, so the "
                "guard saw nothing"
            )
        if why := self._far_fewer(self._came, stage):
            return f"its sessions ran {why}"
        for server in sorted(self._came):
            seen = self._whole_blocks[server]
            if not seen and (why := self._far_fewer((server,), stage)):
                return f"the sessions of {server} finished no whole block, and ran {why}"
        return ""

    def _far_fewer(self, servers: Collection[str], stage: Stage) -> str:
        """How few transactions these servers ran, if far fewer than before it; else empty."""
        came = sum(self._came[server].total() for server in servers)
        planned = stage.seconds * sum(
            self._samples[server].per_s.get(pid, 0.0)
            for server in servers
            for pid in self._came[server]
        )
        if came >= _FAR_FEWER * planned:
            return ""
        return f"{came:,} transactions, and {planned:,.0f} at their earlier rate"

    def words(self) -> str:
        """How far the guard is from stopping the trials, for the progress line."""
        highest = max((guard.e_value() for guard in list(self._guards.values())), default=1.0)
        return f"evidence of harm {highest:.2g} of {1 / self._share:.0f}"

    def description(self) -> str:
        """What the guard stops."""
        limits = self._limits
        return (
            "guard: all trials are stopped if an instrument makes transactions over "
            f"{100 * limits.body:g} % slower, raises the odds of a run with a slow one over "
            f"{limits.tail:g} times, or those of one with a failed one over {limits.aborts:g} "
            f"times, as soon as that is shown: few transactions show only harm that is far larger; "
            f"false alarms: {100 * ALPHA:g} % at most, over all stages and arms"
        )


def _guarded_arms(design: Design) -> list[int]:
    return [k for k, arm in enumerate(design.arms) if arm.role in ("instrument", "injected")]


def look(whole: Observations, arm: int, cap_us: float, limit: float) -> GuardLook:
    """What whole blocks say of an arm and the base, without the beginnings of their runs.

    limit: share by which the arm may be slower; its times are cut that much later. Slow and failed
    transactions come in spells, and runs are what is drawn: so runs that have one are counted.
    """
    kept = whole[(whole["position"] >= DROPPED) & np.isin(whole["arm"], (0, arm))]
    times = kept["service_ns"] / 1000.0
    treated = kept["arm"] == arm
    _, block = np.unique(_block_of(kept), return_inverse=True)
    blocks = int(block.max(initial=-1)) + 1
    _, first, run = np.unique(
        block.astype(np.int64) << 32 | kept["run"], return_index=True, return_inverse=True
    )
    of_arm = treated[first]

    def means(mine: Bools, cut_us: float) -> Floats:
        sums = np.bincount(block[mine], np.minimum(times[mine], cut_us), blocks)
        return np.asarray(sums / np.bincount(block[mine], minlength=blocks))

    def with_one(hit: Bools) -> Bools:
        return np.asarray(np.bincount(run, hit, len(first)) > 0, dtype=np.bool_)

    slow = with_one(times > cap_us)
    aborted = with_one((kept["flags"] & UnitFlag.ABORTED) != 0)
    return GuardLook(
        arm_us=means(treated, (1 + limit) * cap_us),
        base_us=means(~treated, cap_us),
        arm_n=int(of_arm.sum()),
        base_n=int((~of_arm).sum()),
        arm_slow=int((slow & of_arm).sum()),
        base_slow=int((slow & ~of_arm).sum()),
        arm_aborted=int((aborted & of_arm).sum()),
        base_aborted=int((aborted & ~of_arm).sum()),
    )


def _block_of(rows: Observations) -> npt.NDArray[np.int64]:
    return np.asarray(rows["backend"].astype(np.int64) << 32 | rows["block"])


def _whole_blocks(rows: Observations, runs: int) -> tuple[Observations, Observations]:
    """The rows of whole blocks, and the rest as they came. runs: of a block, all of one length."""
    if not len(rows):
        return rows, rows
    _, block, counts = np.unique(_block_of(rows), return_inverse=True, return_counts=True)
    last = np.zeros(len(counts), dtype=np.int64)
    np.maximum.at(last, block, rows["position"])
    whole = (counts == runs * (last + 1))[block]
    return rows[whole], rows[~whole]
