"""One recording: perf collects, events become samples as they come, what is missing is reported."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pgtare.errors import MeasurementError
from pgtare.seeing.flame import frames, perf, permission, process_sample, processes, script, symbols
from pgtare.seeing.flame.perf import Collector
from pgtare.seeing.flame.process_sample import Watched
from pgtare.seeing.flame.recording import FlameRecording, StoppedBy
from pgtare.seeing.flame.samples import RUNNING, Collected, Mode
from pgtare.seeing.flame.scheduler import Scheduler
from pgtare.seeing.flame.targets import FlameTarget
from pgtare.server import signals

_TICK_S = 0.1
_TRIES = 5
#: Samples after which a recording ends by itself: half a gigabyte of memory.
MOST_SAMPLES = 20_000_000

#: Switches a second that can be read next to a busy server, by how their stacks are walked.
_MOST_SWITCHES = {perf.FRAME_POINTERS: 10_000, perf.DWARF: 2_000}

Tell = Callable[[float, int, int], None]  # seconds, samples, lost


@dataclass(frozen=True)
class SamplingPlan:
    """What to record. rate: samples a second of each computing process, for mode "on"."""

    mode: Mode
    target: FlameTarget
    seconds: float | None
    rate: int = 99
    walk: str | None = None


def record(plan: SamplingPlan, tell: Tell = lambda seconds, samples, lost: None) -> FlameRecording:
    """Record for `seconds`, until Ctrl-C, or until the target has ended; keeps what there is.

    Raises UsageError if perf is missing or not allowed, MeasurementError if it fails.
    """
    with signals.asked_to_stop() as asked:
        return FlameRecorder(plan).run(lambda: asked.made, tell)


def _way(plan: SamplingPlan) -> str:
    """How to walk stacks: frame pointers if all that is on them keeps them.

    A wait ends in libc, and if libc keeps none (Debian's), sem_wait loses everything above it.
    """
    pid = plan.target.pids[0]
    files = [processes.program(pid)]
    if plan.mode != "on":
        files.append(processes.libc(pid))
    kept = all(symbols.read(file).frame_pointers for file in files)
    return perf.FRAME_POINTERS if kept else perf.DWARF


class FlameRecorder:
    """A recording that its owner stops, so that it can run during something else."""

    def __init__(self, plan: SamplingPlan) -> None:
        permission.find_perf()
        permission.check(plan.mode, plan.target.pids)
        self.plan = plan
        self.collected = Collected()
        self.walk = plan.walk or _way(plan)
        self.scheduler = Scheduler(
            plan.target.wants,
            self.collected,
            wake=plan.mode == "wake",
        )
        self.reader = script.Reader(self._unnamed, self.scheduler.gap)
        self.watched = Watched([], 0)
        self.failure: BaseException | None = None
        # The kernel sifts by its own numbers; by name it lets sessions to come pass as well, but
        # also those of other servers, whose events would crowd out ours.
        self.by_name = not processes.in_machine_namespace() or (
            plan.target.postmaster is not None and plan.target.alone
        )

    def run(self, stop: Callable[[], bool], tell: Tell) -> FlameRecording:
        """Record until the time is up, `stop` says so, or the target has ended."""
        plan = self.plan
        if plan.mode != "on":
            self._choose()
            self._note_standing()
        with self._collector() as collector:
            self.scheduler.begin(collector.begin_ns)
            thread = threading.Thread(target=self._consume, args=(collector,), daemon=True)
            thread.start()
            stopped_by = self._wait(collector, stop, tell)
            end_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            collector.stop()
            thread.join()
            complaint = collector.complaint() if stopped_by == "perf" else ""
        if self.failure is not None:
            raise MeasurementError(f"perf's output could not be read: {self.failure}")
        if plan.mode != "on":
            self.scheduler.end(end_ns)
        if stopped_by == "perf" and not plan.target.lives:
            stopped_by = "target"
        counts = self.reader.counts
        if stopped_by == "perf" and not counts.events:
            raise MeasurementError(f"perf ended by itself: {complaint}")
        return FlameRecording(
            mode=plan.mode,
            target=plan.target.name,
            samples=self.collected.samples(),
            begin_ns=collector.begin_ns,
            duration_s=(end_ns - collector.begin_ns) / 1e9,
            walk=self.walk,
            rate_hz=plan.rate if plan.mode == "on" else 0,
            stopped_by=stopped_by,
            events=counts.events,
            lost=counts.lost,
            unmatched=self.scheduler.unmatched,
            realtime_ns=time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC),
            notes=self._notes(stopped_by, complaint),
        )

    def _choose(self) -> None:
        """Which processes to watch. Those that wake others have their stacks copied as well."""
        most = _MOST_SWITCHES.get(self.walk, min(_MOST_SWITCHES.values()))
        if self.plan.mode == "wake":
            most //= 2
        found = process_sample.rates(self.plan.target.pids)
        self.watched = process_sample.choose(found, most, perf.FILTERED, random.Random())
        self.scheduler.weights = self.watched.weights
        if not self.watched.all:
            self.by_name = False

    @contextlib.contextmanager
    def _collector(self) -> Iterator[Collector]:
        """Both programs of perf at work. One of many processes may end while they start."""
        for left in reversed(range(_TRIES)):
            with contextlib.ExitStack() as stack:
                self.plan.target.refresh()
                try:
                    collector = stack.enter_context(Collector(self.plan.mode, self._arguments()))
                except MeasurementError:
                    gone = not all(processes.exists(pid) for pid in self.plan.target.pids)
                    if left and gone and self.plan.target.lives:
                        continue
                    raise
                yield collector
                return

    def _arguments(self) -> list[str]:
        plan = self.plan
        if plan.mode == "on":
            return perf.sampling(plan.rate, self.walk, plan.target.pids, permission.sees_kernel())
        pids = plan.target.pids if self.watched.all else self.watched.pids
        return perf.scheduling(plan.mode, self.walk, pids, by_name=self.by_name)

    def _wait(self, collector: Collector, stop: Callable[[], bool], tell: Tell) -> StoppedBy:
        begin = time.monotonic()
        limit = math.inf if self.plan.seconds is None else self.plan.seconds
        while (seconds := time.monotonic() - begin) < limit:
            if stop():
                return "interrupt"
            if not self.plan.target.lives:
                return "target"
            if not collector.runs:
                return "perf"
            if len(self.collected.start_ns) >= MOST_SAMPLES:
                return "full"
            tell(seconds, len(self.collected.start_ns), self.reader.counts.lost)
            time.sleep(min(_TICK_S, max(0.0, limit - seconds)))
        return "time"

    def _consume(self, collector: Collector) -> None:
        perf.hurry(threading.get_native_id())
        weight = 1_000_000_000 // self.plan.rate
        wants = self.plan.target.wants
        try:
            for event in self.reader.events(collector.lines()):
                if self.plan.mode != "on":
                    self.scheduler.take(event)
                elif wants(event.tid):
                    stack = frames.own(event.stack)
                    self.collected.add(event.time_ns, event.tid, stack, RUNNING, weight)
        except Exception as ex:  # reported by run(), which must not wait for ever
            self.failure = ex
            collector.stop()

    def _note_standing(self) -> None:
        for pid in self.watched.pids:
            if processes.sleeps(pid):
                self.scheduler.standing[pid] = processes.standing(pid)

    def _unnamed(self, file: str, offset: int) -> str:
        if file.startswith(("[", "//")) or not file:
            return "unknown"
        path = f"/proc/{self.plan.target.pids[0]}/root{file}"
        return symbols.read(path, file).unnamed(offset)

    def _notes(self, stopped_by: StoppedBy, complaint: str) -> list[str]:
        counts, notes = self.reader.counts, []
        if stopped_by == "target":
            notes.append("The process ended while it was recorded: the rest of the time is empty.")
        if stopped_by == "perf":
            notes.append(f"The recording ended early, as perf ended by itself ({complaint}).")
        if stopped_by == "full":
            notes.append(f"The recording ended at {MOST_SAMPLES:,} samples.")
        if counts.lost:
            notes.append(
                f"{counts.lost:,} of {counts.events + counts.lost:,} events were lost, as they "
                "came faster than they could be read: times are too low."
            )
        if self.scheduler.unmatched > self.scheduler.switches // 100 + len(self.plan.target.pids):
            notes.append(
                f"{self.scheduler.unmatched:,} times a process came back whose leaving was not "
                f"seen; {self.scheduler.switches:,} were."
            )
        if self.plan.mode != "on" and not self.watched.all:
            drawn, of = self.watched.drawn
            notes.append(
                f"Processes left the processor {self.watched.rate:,.0f} times a second, more often "
                f"than can be read: {drawn} of the {of} busiest, drawn by lot, "
                f"{'represents' if drawn == 1 else 'represent'} all of those. Sessions that "
                "connected during the recording are not in it."
            )
        elif self.plan.mode != "on" and self.plan.target.postmaster and not self.by_name:
            notes.append(
                "Sessions that connected during the recording are not in it: other servers run "
                "here, and their events would crowd them out."
            )
        if counts.unreadable:
            notes.append(
                f"{counts.unreadable:,} lines of perf could not be read, such as "
                f"{counts.example[:80]!r}."
            )
        if not permission.sees_kernel():
            notes.append(
                "The kernel's part of stacks is not shown: that needs root, or "
                "perf_event_paranoid at most 1."
            )
        notes += self._missing_symbols()
        return notes

    def _missing_symbols(self) -> list[str]:
        counts, notes = self.reader.counts, []
        for file, missing in sorted(counts.unnamed.items(), key=lambda item: -item[1]):
            if file.startswith("["):
                if "kernel" in file:
                    notes.append("Kernel functions have no names (kptr_restrict hides them).")
                continue
            found = symbols.read(f"/proc/{self.plan.target.pids[0]}/root{file}", file)
            some = missing + counts.named.get(file, 0)
            notes.append(
                f"{missing:,} of {some:,} distinct frames of {found.name} have no name and are "
                f"shown as {found.name}+0x…, one for each function"
                + (": it is stripped; its debug package names them." if found.stripped else ".")
            )
        return notes[:4]
