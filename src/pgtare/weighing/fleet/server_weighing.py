"""Weighs one server of a fleet: a look, one trial for each stage, and the last one's result."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import psycopg

from pgtare.errors import MeasurementError
from pgtare.estimate.trial.design import Arm, Design
from pgtare.estimate.trial.observations import Observations, empty
from pgtare.postgres import own_session, pooler
from pgtare.weighing.fleet.fleet_guard import LOOK_S, BaseSample
from pgtare.weighing.fleet.stages import ServerTraffic, Stage
from pgtare.weighing.trials import Trials
from pgtare.weighing.weigh import participation, recording
from pgtare.weighing.weigh import plan as planning
from pgtare.weighing.weigh.measurement import Measurement, Weighing
from pgtare.weighing.weigh.plan import WeighPlan
from pgtare.weighing.weigh.recording import Halt, Lease
from pgtare.weighing.weigh.request import Request
from pgtare.weighing.weigh.target import PURPOSE, needs_of

#: A trial outlives us by 15 s at most, wherever we are cut off.
LEASE = Lease(seconds=15.0, every_s=3.0)
#: A host that has vanished is noticed after this many ms.
_VANISHED_MS = 10_000
#: Why a server is lost whose connection we cut.
NO_ANSWER = "it no longer answers; the lease ends its trial"
#: Draws until a session takes part, before a stage gives up. The last takes the whole stage.
_DRAWS = 8
#: A session that was drawn takes part after this many transactions, for certain.
_TRANSACTIONS = 3


#: Takes what has just been read of a server; called by many threads.
Seen = Callable[[str, Design, Observations], None]


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended. ended_s: when, by time.monotonic(). trouble: why the server ended it."""

    transactions: int
    ended_s: float
    trouble: str = ""


class ServerWeighing:
    """One server, by one connection of its own. Everything but `weighing` is for its thread.

    request: of its last stage. Raises UsageError and MeasurementError everywhere.
    """

    def __init__(self, name: str, request: Request) -> None:
        assert request.dsn is not None
        self.name, self.request = name, request
        self.sample = BaseSample.of(empty())
        self.too_short = ""  # why its sessions hold no whole block, by the look
        self._module: Trials | None = None
        self._measurement: Measurement | None = None
        self._trials, self._run = 0, time.time_ns()
        self._cut = False

    def look(self) -> ServerTraffic:
        """Connect, see whether the server can be weighed, and measure what it does."""
        request, module = self.request, self._connected()
        try:
            planning.try_settings(module.conn, planning.arms_of(request))
            there = planning.make_plan(module.conn, request)
            before = participation.count(module)
            seen = self._sample(module, there)
            counted = participation.others_per_s(before, participation.count(module))
            sample = BaseSample.of(seen)
            # sessions whose statements touch no table are late to report their transactions
            rate = max(counted, sample.transactions / LOOK_S / request.participation)
            if request.participation == 1 and not len(seen):
                rate = 0.0  # not even one under way: it is of others than those to weigh
        except BaseException:
            module.conn.close()
            raise
        self._module = module
        self.sample, self.too_short = sample, there.too_short
        active = round(len(sample.per_s) / request.participation)
        return ServerTraffic(rate, active or there.sessions_there, 1.0)

    def _connected(self) -> Trials:
        """The module of a new session there, if the server is one that can be weighed."""
        request = self.request
        assert request.dsn is not None
        conn = own_session.connect(request.dsn, tcp_user_timeout=str(_VANISHED_MS))
        try:
            pooler.require_one_session(conn, request.dsn, PURPOSE)
            module = Trials(conn)
            self._info = module.require_module(*needs_of(request.chosen))
            planning.check_server(conn, request)
        except BaseException:
            conn.close()
            raise
        return module

    def _connect_again(self) -> None:
        """A new session, if ours was ended while it waited for its turn."""
        assert self._module is not None
        try:
            self._module.conn.execute("SELECT 1")
        except psycopg.Error:
            self._module.conn.close()
            if not self._cut:
                self._module = self._connected()
        if self._cut:
            raise MeasurementError(NO_ANSWER)

    def _sample(self, module: Trials, plan: WeighPlan) -> Observations:
        """What transactions are like: a trial whose arms set nothing, so it changes nothing."""
        arms = (Arm("base", "base"), Arm("control", "control"))
        design = Design(arms, (0, 1), self._seed(0))
        got = recording.record(
            module,
            design,
            plan.population,
            LOOK_S,
            cpu=False,
            load=None,
            look=None,
            tick=lambda seconds, rows: None,
            lease=LEASE,
        )
        return got.observations

    def trial(self, stage: Stage, traffic: ServerTraffic, halt: Halt, seen: Seen) -> TrialEnd:
        """The trial of a stage. A stage before the last one is drawn until somebody takes part."""
        self._connect_again()
        end = TrialEnd(0, time.monotonic())
        patience_s = [self._patience_s(stage, traffic)] * (0 if stage.last else _DRAWS - 1)
        for each_s in (*patience_s, math.inf):
            end = self._one_trial(stage, traffic, Halt(of=halt), seen, each_s)
            if end.transactions or end.trouble or halt.wanted:
                break
        return end

    def _patience_s(self, stage: Stage, traffic: ServerTraffic) -> float:
        """How long to wait for a session that was drawn: most of them would take part by then."""
        mean = traffic.transactions_per_s / max(traffic.sessions, 1)
        each = statistics.median(self.sample.per_s.values() or [mean])
        return min(max(1.0, _TRANSACTIONS / max(each, 1e-3)), stage.seconds / 2)

    def _one_trial(
        self, stage: Stage, traffic: ServerTraffic, halt: Halt, seen: Seen, patience_s: float
    ) -> TrialEnd:
        """One draw. patience_s: after how long it is given up if nobody takes part."""
        module = self._module
        assert module is not None
        self._trials += 1
        request = replace(
            self.request,
            participation=stage.share_of(traffic),
            duration_s=stage.seconds,
            seed=self._seed_of(stage),
        )
        plan = planning.make_plan(module.conn, request)
        design = plan.design

        def tick(seconds: float, rows: int) -> None:
            if not rows and seconds > patience_s:
                halt.set()

        measurement = Measurement(module, self._info, plan, "server of a fleet")
        got = recording.record(
            module,
            design,
            plan.population,
            stage.seconds,
            cpu=request.cpu,
            load=None,
            look=None,
            tick=tick,
            halt=halt,
            lease=LEASE,
            arrived=lambda part: seen(self.name, design, part),
        )
        ended_s = time.monotonic()
        if not stage.last and got.stopped_by == "time":  # kept only if all are stopped just then
            got = replace(got, stopped_by="interrupt")
        self._measurement = None
        if len(got.observations) and (stage.last or halt.wanted or got.trouble):
            with contextlib.suppress(MeasurementError):
                measurement.end(got)
                self._measurement = measurement
        trouble = NO_ANSWER if got.trouble and self._cut else got.trouble
        return TrialEnd(len(got.observations), ended_s, trouble)

    def _seed_of(self, stage: Stage) -> int:
        """For the trial that begins. A resumed canary draws others than the one before."""
        return self._seed(self._trials) if stage.last else self._seed(self._trials, self._run)

    def _seed(self, *numbers: int) -> int:
        """A seed made of the fleet's, the server and these."""
        own = [self.request.seed, zlib.crc32(self.name.encode()), *numbers]
        made = np.random.SeedSequence(own).generate_state(1, np.uint64)
        return int(made[0] >> np.uint64(11))

    def weighing(self, command: list[str]) -> Weighing | None:
        """What the last trial gave, also if the server was lost in it; None if nothing.

        Needs no server. Only once: with many servers there is no memory to keep what all gave.
        """
        measurement, self._measurement = self._measurement, None
        if measurement is None:
            return None
        load = {"kind": "none", "application": self.request.application}
        return measurement.weighing(load, command)

    def cut(self) -> None:
        """Cut the connection to a server that no longer answers; a trial hands over what was read.

        For another thread: the server's own waits for an answer.
        """
        self._cut = True
        if self._module is None:
            return
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self._module.conn.fileno())) as connection,
        ):
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Leave the server; a trial that runs there ends."""
        if self._module is not None:
            self._module.conn.close()
