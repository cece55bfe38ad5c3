"""Runs the stages of a fleet weighing: a thread for each server, and one guard over all of them.

A server that goes away is marked, what was read there is kept, and the rest goes on; but not if its
trial was of a stage before the last, as what is weighed may have ended it. A breach ends all trials
at once, from the thread that saw it, and so does Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import FrameType

import psycopg
from rich.console import Console

from pgtare.errors import DiskFull, MeasurementError, PgtareError
from pgtare.estimate.trial.design import Design
from pgtare.estimate.trial.observations import Observations
from pgtare.kit import numbers
from pgtare.kit.progress import Display
from pgtare.postgres.own_session import first_line
from pgtare.weighing.fleet import stages
from pgtare.weighing.fleet.directory import FleetDirectory
from pgtare.weighing.fleet.fleet_guard import Crossing, FleetGuard
from pgtare.weighing.fleet.raw_data import SERVERS
from pgtare.weighing.fleet.server_weighing import NO_ANSWER, ServerWeighing, TrialEnd
from pgtare.weighing.fleet.stages import ServerTraffic, Stage
from pgtare.weighing.fleet.state import FleetBreach
from pgtare.weighing.weigh.recording import Halt

#: A trial is given up if it has not ended this long after it should have, in s.
_PATIENCE_S = 30.0
#: The same after a breach or Ctrl-C.
_HALTED_PATIENCE_S = 20.0
#: How long a trial that was given up may take to hand over what was read, in s.
_CUT_PATIENCE_S = 5.0
_POLL_S = 0.05
#: Why a server is lost that ran no transaction.
_NOBODY = "none of its sessions took part"


class _Job(threading.Thread):
    """One server's trial of a stage, and its directory if that is what the stage is for."""

    def __init__(self, coordinator: Coordinator, name: str, stage: Stage) -> None:
        super().__init__(daemon=True, name=f"fleet {name}")
        self.server, self.stage, self._of = name, stage, coordinator
        self.began = time.monotonic()
        self.end: TrialEnd | None = None
        self.error: BaseException | None = None
        self.kept = self.whole = False
        self._cut_s: float | None = None

    def run(self) -> None:
        of, weighing = self._of, self._of.weighings[self.server]
        try:
            traffic = of.traffic[self.server]
            self.end = weighing.trial(self.stage, traffic, of.halt, of.seen)
            if self.stage.last or of.halt.wanted or self.end.trouble:
                with of.estimating:  # one at a time: others' rings have to be drained meanwhile
                    made = weighing.weighing(of.command)
                if made is not None:
                    self.kept = of.directory.keep(self.server, made)
                    self.whole = self.kept and made.result.design.stopped_by == "time"
        except BaseException as ex:
            self.error = ex

    @property
    def lost_in_trial(self) -> bool:
        """Whether its server ended the trial, or went away in it."""
        return bool(self.end.trouble) if self.end is not None else self.error is None

    def given_up(self, halted: float | None) -> bool:
        """Whether it hands nothing over although its connection was cut, as it was overdue."""
        if not self._overdue(halted):
            return False
        if self._cut_s is None:
            self._cut_s = time.monotonic()
            self._of.weighings[self.server].cut()
        return time.monotonic() - self._cut_s > _CUT_PATIENCE_S

    def _overdue(self, halted: float | None) -> bool:
        """Whether its trial should have ended long ago. halted: when all were stopped."""
        if self.end is not None:
            return False
        now = time.monotonic()
        if halted is not None and now - halted > _HALTED_PATIENCE_S:
            return True
        longest = self.stage.seconds * (1 if self.stage.last else 5)  # all draws
        return now - self.began > longest + _PATIENCE_S


class Coordinator:
    """A fleet weighing under way. traffic: of each server, from `ServerWeighing.look`."""

    def __init__(
        self,
        directory: FleetDirectory,
        weighings: Mapping[str, ServerWeighing],
        traffic: Mapping[str, ServerTraffic],
        guard: FleetGuard,
        console: Console,
        command: list[str],
    ) -> None:
        self.directory, self.weighings, self.traffic = directory, weighings, traffic
        self.guard, self.command = guard, command
        self.halt = Halt()
        self.estimating = threading.Lock()
        self._console = console
        self._interrupted = False
        self._blind = ""  # why a stage before the last ended all
        self._quiet = set[str]()  # no session took part before the last stage: no canaries
        self._seen = 0
        self._stage_began = time.monotonic()
        self._crossing: Crossing | None = None
        self._crossed_s = self._last_end_s = 0.0
        self._halted_s: float | None = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run all stages; the directory says more.

        Raises MeasurementError if no server is left, an early stage lost one or saw too little, or
        something could not be written.
        """
        state, design = self.directory.state, self.directory.state.design
        names = stages.order(
            {name: each for name, each in self.traffic.items() if state.of(name).state != "done"}
        )
        with self._interruptible():
            done: list[str] = []
            while not self.halt.wanted:
                alive = [name for name in names if state.of(name).state != "lost"]
                if not alive:
                    break
                alive.sort(key=self._quiet.__contains__)
                plan = stages.plan(alive, design.duration_s, design.participation, design.canary_s)
                left = [stage for stage in plan if stage.name not in done]
                if not left:
                    break
                if self._quiet.issuperset(alive):
                    for name in alive:
                        state.of(name).state, state.of(name).reason = "lost", _NOBODY
                    break
                if self._stage(left[0], len(left)):
                    done.append(left[0].name)
        self._finish(names)

    def seen(self, server: str, design: Design, part: Observations) -> None:
        """What has just been read of a server; called by many threads."""
        try:
            with self._lock:
                self._seen += len(part)
                self.guard.see(server, design, part)
                if self._crossing is None and (found := self.guard.crossing()) is not None:
                    self._crossing, self._crossed_s = found, time.monotonic()
                    self._stop()
        except Exception as ex:  # a guard that fails guards nothing
            self._fail(ex)

    def _fail(self, error: BaseException) -> None:
        """Stop all; the error is raised once the trials have ended."""
        self._failure = self._failure or error
        self._stop()

    def _stop(self) -> None:
        if self._halted_s is None:
            self._halted_s = time.monotonic()
        self.halt.set()

    def _stage(self, stage: Stage, stages_left: int) -> bool:
        """Run a stage; whether one of its servers measured something, or all was stopped."""
        state, at_once = self.directory.state, self.directory.state.design.at_once
        state.stage = stage.name
        self._stage_began, self._seen = time.monotonic(), 0
        arms = len(state.design.instruments) + len(state.design.arms) + len(state.design.inject_ns)
        self.guard.begin(stage, arms, stages_left)
        waiting, running = list(stage.servers), list[_Job]()
        measured, lost = False, list[str]()
        share = f"{100 * stage.participation:g} %"
        names = stage.servers
        which = names[0] if len(names) == 1 else f"{len(names)} servers"
        title = f"{stage.name}: {which}, {share} of the sessions"
        if not self._console.is_terminal:
            self._console.print(f"pgtare: {title}, {stage.seconds:.0f} s", highlight=False)
        with Display(self._console, title, stage.lasts_s(at_once)) as display:
            while running or (waiting and not self.halt.wanted):
                try:
                    while waiting and len(running) < at_once and not self.halt.wanted:
                        running.append(self._begin(waiting.pop(0), stage))
                    for job in list(running):
                        if not job.is_alive() or job.given_up(self._halted_s):
                            running.remove(job)
                            measured |= self._ended(job)
                            lost += [job.server] if job.lost_in_trial else []
                except MeasurementError as ex:  # fleet.json could not be written
                    self._fail(ex)
                spent = time.monotonic() - self._stage_began
                display.tick(spent, f"{self._seen:,} transactions, {self.guard.words()}")
                time.sleep(_POLL_S)
        if isinstance(self._failure, DiskFull):
            goes_on = f"then --resume {self.directory.path} goes on"
            then = goes_on if self._crossing is None else self._why()
            raise DiskFull(f"{self._failure}; {then}") from self._failure
        if self._failure is not None:
            raise self._failure
        self._note_breach(stage)
        if not (stage.last or self.halt.wanted):
            self._blind = self._why_no_further(stage, measured, lost)
        if self._blind:
            self._stop()
        return measured or self.halt.wanted

    def _why_no_further(self, stage: Stage, measured: bool, lost: list[str]) -> str:
        """Why no other server may be exposed after a stage before the last; empty if they may.

        lost: the servers that were lost in their trials. With each the next would be the canary.
        """
        if lost:
            which = "; ".join(f"{name}: {self.directory.state.of(name).reason}" for name in lost)
            return (
                f"stage {stage.name} lost {numbers.counted(len(lost), 'server')} ({which}); look "
                f"whether an instrument ended it: --resume {self.directory.path} goes on"
            )
        if measured and (why := self.guard.blind(stage)):
            return (
                f"stage {stage.name}: {why}; look whether an instrument hangs, or give a longer "
                "--canary"
            )
        return ""

    def _begin(self, name: str, stage: Stage) -> _Job:
        server = self.directory.state.of(name)
        server.state, server.started, server.ended = "running", _now(), None
        self.directory.save()
        job = _Job(self, name, stage)
        job.start()
        return job

    def _ended(self, job: _Job) -> bool:
        """Write down how a job ended; whether it measured something."""
        server = self.directory.state.of(job.server)
        server.ended = _now()
        with self._lock:
            self.guard.ended(job.server)
        transactions = job.end.transactions if job.end else 0
        server.transactions += transactions
        error = job.error
        full = isinstance(error, DiskFull)  # the next server's trial would be for nothing, too
        if error is not None and (full or not isinstance(error, PgtareError | psycopg.Error)):
            self._fail(error)
        if job.end is not None and job.end.trouble:
            server.state, server.reason = "lost", job.end.trouble
            if error is not None:
                server.reason += f"; what was read could not be kept: {first_line(error)}"
        elif error is not None and not full:
            server.state, server.reason = "lost", first_line(error)
        elif job.end is None:
            server.state, server.reason = "lost", NO_ANSWER
        elif job.stage.last and job.whole:  # also if all was stopped just then
            server.state, server.reason = "done", ""
        elif self.halt.wanted:
            server.state, server.reason = "stopped", self._why()
        elif job.stage.last:
            server.state = "lost"
            server.reason = "too little data" if transactions else _NOBODY
        else:
            server.state = "waiting"
            if not transactions:
                self._quiet.add(job.server)
        self.directory.save()
        if server.state in ("done", "lost") and not job.is_alive():
            self._leave(job.server)
        if server.state == "lost":
            count = numbers.counted(server.transactions, "transaction")
            kept = f"; what was read is in {SERVERS}/{server.name}" if job.kept else ""
            self._console.print(
                f"pgtare: {server.name} is lost after {count}: {server.reason}{kept}",
                highlight=False,
                markup=False,
            )
        if job.end is not None:
            self._last_end_s = max(self._last_end_s, job.end.ended_s)
        return transactions > 0 and server.state != "lost"

    def _leave(self, name: str) -> None:
        threading.Thread(target=self.weighings[name].close, daemon=True).start()

    def _why(self) -> str:
        if self._crossing is not None:
            return f"the guard saw harm on {self._crossing.server}"
        if self._failure is not None:
            return first_line(self._failure)
        return "interrupted" if self._interrupted else "stopped"

    def _note_breach(self, stage: Stage) -> None:
        crossing = self._crossing
        if crossing is None:
            return
        self.directory.state.breach = FleetBreach(
            server=crossing.server,
            what=crossing.what,
            stage=stage.name,
            after_s=self._crossed_s - self._stage_began,
            transactions=crossing.transactions,
            e_value=crossing.e_value,
            stopped_s=max(0.0, self._last_end_s - self._crossed_s),
        )

    def _finish(self, names: list[str]) -> None:
        state = self.directory.state
        if self._crossing is not None:
            state.ended_by = "breach"
        elif self._blind:
            state.ended_by = "blind"
        elif self._interrupted:
            state.ended_by = "interrupt"
        elif all(server.state == "lost" for server in state.servers):
            state.ended_by = "lost"
        else:
            state.ended_by, state.stage = "time", "ended"
        self.directory.save()
        for name in self.weighings:
            self._leave(name)
        if state.ended_by == "blind":
            raise MeasurementError(self._blind)
        if state.ended_by == "lost":
            reasons = "; ".join(f"{name}: {state.of(name).reason}" for name in names)
            raise MeasurementError(f"no server is left: {reasons}")

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C stops the trials and unwinds nothing: what was measured is kept."""

        def interrupted(signum: int, frame: FrameType | None) -> None:
            self._interrupted = True
            self._stop()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
