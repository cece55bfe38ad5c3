"""One recording: perf collects, events become samples as they come, what is missing is reported."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from pgtare.errors import MeasurementError
from pgtare.observing.flame import events, frames, perf, processes, symbols
from pgtare.observing.flame.frames import Stack
from pgtare.observing.flame.perf import Collector
from pgtare.observing.flame.processes import FlameTarget
from pgtare.observing.flame.recording import RUNNING, Collected, FlameRecording, Mode, StoppedBy
from pgtare.observing.flame.symbols import Program
from pgtare.postgres import signals

_TICK_S = 0.1
_TRIES = 5
#: How often both clocks are read for the closest pair of readings.
_CLOCK_PAIRS = 20
#: Samples after which a recording ends by itself: half a gigabyte of memory.
MOST_SAMPLES = 20_000_000

#: For so long switches are counted before, in s.
_LOOK_S = 0.2
#: Switches a second that can be read next to a busy server, by how their stacks are walked.
_MOST_SWITCHES = {perf.FRAME_POINTERS: 10_000, perf.DWARF: 2_000}
#: Up to this part of what can be read goes to those who switch least: all of them are watched.
_QUIET_PART = 0.3

Tell = Callable[[float, int, int], None]  # seconds, samples, lost


def record(
    mode: Mode,
    target: FlameTarget,
    seconds: float,
    rate: int = 99,
    tell: Tell = lambda seconds, samples, lost: None,
) -> FlameRecording:
    """Record for `seconds`, until Ctrl-C, or until the target has ended; keeps what there is.

    Raises UsageError if perf is missing or not allowed, MeasurementError if it fails.
    """
    with signals.asked_to_stop() as asked:
        return FlameRecorder(mode, target, rate).run(lambda: asked.made, seconds, tell)


def choose(
    rates: Mapping[int, float], most: float, room: int, draw: random.Random
) -> dict[int, float]:
    """Which processes to watch, and how many each represents, itself included.

    All; or if they switch more often than can be read, those who switch least, and some of the
    others by lot. rates: switches a second by process; most: how many a second can be read; room:
    how many processes can be distinguished, if not all are watched.
    """
    if sum(rates.values()) <= most:
        return dict.fromkeys(rates, 1.0)
    quiet: list[int] = []
    spent = 0.0
    for pid in sorted(rates, key=lambda pid: rates[pid]):
        if spent + rates[pid] > _QUIET_PART * most:
            break
        spent += rates[pid]
        quiet.append(pid)
    busy = [pid for pid in rates if pid not in set(quiet)]
    each = (sum(rates.values()) - spent) / len(busy)
    number = max(1, min(len(busy), int((most - spent) / each), room // 2))
    weights: dict[int, float] = {}
    for group, wanted in ((quiet, min(len(quiet), room - number)), (busy, number)):
        weights |= dict.fromkeys(draw.sample(group, wanted), len(group) / max(wanted, 1))
    return weights


def wall_clock_offset_ns() -> int:
    """CLOCK_REALTIME less CLOCK_MONOTONIC.

    On a busy machine milliseconds may pass between two readings: the closest of many pairs counts.
    """
    pairs = []
    for _ in range(_CLOCK_PAIRS):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        wall = time.time_ns()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        pairs.append((after - before, wall - (before + after) // 2))
    return min(pairs)[1]


class FlameRecorder:
    """A recording that its owner stops, so that it can run during something else.

    rate: samples a second of each computing process, for mode "on"; lowered to what the kernel
    allows. walk: how stacks are walked; None: as the program allows.
    """

    def __init__(
        self, mode: Mode, target: FlameTarget, rate: int = 99, walk: str | None = None
    ) -> None:
        perf.find_perf()
        perf.check_allowed(mode, target.pids)
        self.mode, self.target = mode, target
        self.wanted_rate, self.rate = rate, perf.possible_rate(rate)
        self.waits = mode != "on"
        self.collected = Collected()
        self.walk = walk or self._way()
        alone = target.postmaster is not None and target.alone
        wanted = partial(target.wants, descends=alone)
        self.scheduler = events.Scheduler(wanted, self.collected, wake=mode == "wake")
        self.reader = events.Reader(
            self._unnamed, self.scheduler.gap, target.forked, self._wants_event
        )
        self.rates: dict[int, float] = {}
        #: sample the whole machine, and sift here
        self.everything = perf.too_many(target.pids) and perf.sees_everything()
        self.missed = 0
        self.failure: BaseException | None = None
        # The kernel sifts by its own numbers; by name it lets sessions to come pass as well, but
        # also those of other servers, whose events would crowd out ours.
        self.by_name = alone or not processes.in_machine_namespace()
        #: by name only because there are too many for the kernel to sift by number
        self.too_many = False

    def run(
        self,
        stop: Callable[[], bool],
        limit_s: float = math.inf,
        tell: Tell = lambda seconds, samples, lost: None,
    ) -> FlameRecording:
        """Record until the time is up, `stop` says so, or the target has ended."""
        if self.waits:
            self._choose()
        with self._collector() as collector:
            if self.waits:
                self.scheduler.begin(collector.begin_ns, self._standing())
            thread = threading.Thread(target=self._consume, args=(collector,), daemon=True)
            thread.start()
            stopped_by = self._wait(collector, stop, limit_s, tell)
            end_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            collector.stop()
            thread.join()
            complaint = collector.complaint() if stopped_by == "perf" else ""
        if self.failure is not None:
            raise MeasurementError(f"perf's output could not be read: {self.failure}")
        self.scheduler.end(end_ns)
        if stopped_by == "perf" and not self.target.lives:
            stopped_by = "target"
        if stopped_by == "perf" and not self.reader.events_read:
            raise MeasurementError(f"perf ended by itself: {complaint}")
        return FlameRecording(
            mode=self.mode,
            target=self.target.name,
            samples=self.collected.samples(),
            begin_ns=collector.begin_ns,
            duration_s=(end_ns - collector.begin_ns) / 1e9,
            walk=self.walk,
            rate_hz=0 if self.waits else self.rate,
            stopped_by=stopped_by,
            events=self.reader.events_read,
            lost=self.reader.lost,
            unmatched=self.scheduler.unmatched,
            realtime_ns=wall_clock_offset_ns(),
            notes=list(self._notes(stopped_by, complaint)),
        )

    def _way(self) -> str:
        """How to walk stacks: frame pointers if all that is on them keeps them.

        A wait ends in libc, and if libc keeps none (Debian's), sem_wait loses all above it.
        """
        pid = self.target.pids[0]
        files = [processes.program(pid), *([processes.libc(pid)] if self.waits else [])]
        kept = all(symbols.read(file).frame_pointers for file in files)
        return perf.FRAME_POINTERS if kept else perf.DWARF

    def _choose(self) -> None:
        """Choose the processes to watch; those that wake others have their stacks copied, too.

        All, if the kernel has other numbers for them: it could not sift those out.
        """
        if not processes.in_machine_namespace():
            return
        pids = self.target.pids
        most = _MOST_SWITCHES[self.walk] // (2 if self.mode == "wake" else 1)
        before, began = {pid: processes.switches(pid) for pid in pids}, time.monotonic()
        time.sleep(_LOOK_S)
        spent = time.monotonic() - began
        self.rates = {pid: max(0, processes.switches(pid) - before[pid]) / spent for pid in pids}
        self.scheduler.weights = choose(self.rates, most, perf.FILTERED, random.Random())
        if self._by_lot:
            self.by_name = False

    def _standing(self) -> dict[int, tuple[int, Stack]]:
        """What waits already, and when each was looked at."""
        watched = list(self.scheduler.weights) if self._by_lot else list(self.target.pids)
        if self.by_name:
            watched += self.target.newcomers(watched)
        found = {}
        for pid in watched:
            if (stack := processes.standing(pid)) is not None:
                found[pid] = (time.clock_gettime_ns(time.CLOCK_MONOTONIC), stack)
        return found

    @property
    def _by_lot(self) -> bool:
        """Whether only some of the processes are watched."""
        return len(self.scheduler.weights) < len(self.rates)

    @contextlib.contextmanager
    def _collector(self) -> Iterator[Collector]:
        """Both programs of perf at work.

        perf follows processes by number only if all of them are still there, and sees those that
        begin while it starts only if it watches the whole machine: if it may, it then does.
        """
        for left in reversed(range(_TRIES)):
            with contextlib.ExitStack() as stack:
                self.target.refresh()
                if left < _TRIES - 1 and not self.everything:  # leave out what ends soon
                    time.sleep(_LOOK_S)
                    self.target.pids = [p for p in self.target.pids if processes.exists(p)]
                followed = list(self.target.pids)
                try:
                    collecting = perf.collecting(self.mode, self._arguments())
                    collector = stack.enter_context(collecting)
                except MeasurementError as ex:
                    if all(processes.exists(pid) for pid in followed):
                        raise
                    if left and self.target.lives:
                        self.everything = perf.sees_everything()
                        continue
                    raise MeasurementError(self._no_beginning(ex)) from ex
                if not (self.waits or self.everything):
                    self.missed = len(self.target.newcomers(followed))
                    if left and self.missed and perf.sees_everything():
                        self.everything, self.missed = True, 0
                        continue
                yield collector
                return

    def _no_beginning(self, ex: MeasurementError) -> str:
        if not self.target.lives:
            return f"the {self.target.name} ended before perf had begun"
        return (
            f"sessions of this server end before perf can follow them ({ex}): run pgtare as root, "
            "so that perf watches the whole machine, or record one session (--pid)"
        )

    def _arguments(self) -> list[str]:
        pids = self.target.pids
        if not self.waits:
            return perf.sampling(self.rate, self.walk, None if self.everything else pids)
        watched = list(self.scheduler.weights) if self._by_lot else pids
        if len(watched) > perf.FILTERED and not self.by_name:
            self.by_name = self.too_many = True
        return perf.scheduling(self.mode, self.walk, watched, by_name=self.by_name)

    def _wait(
        self, collector: Collector, stop: Callable[[], bool], limit_s: float, tell: Tell
    ) -> StoppedBy:
        begin = time.monotonic()
        while (seconds := time.monotonic() - begin) < limit_s:
            if stop():
                return "interrupt"
            if not self.target.lives:
                return "target"
            if not collector.runs or self.failure is not None:
                return "perf"
            if len(self.collected) >= MOST_SAMPLES:
                return "full"
            tell(seconds, len(self.collected), self.reader.lost)
            time.sleep(min(_TICK_S, max(0.0, limit_s - seconds)))
        return "time"

    def _consume(self, collector: Collector) -> None:
        perf.hurry(threading.get_native_id())
        weight = 1_000_000_000 // self.rate
        try:
            for event in self.reader.events(collector.lines()):
                if self.waits:
                    self.scheduler.take(event)
                else:
                    stack = frames.own(event.stack)
                    self.collected.add(event.time_ns, event.tid, stack, RUNNING, weight)
        except Exception as ex:  # reported by run(), which must not wait for ever
            self.failure = ex
            collector.stop()

    def _wants_event(self, task: int, program: str) -> bool:
        # of the scheduler's events the process that leaves, comes or is woken counts
        return self.waits or self.target.wants(task, program, descends=not self.everything)

    def _program(self, file: str) -> Program:
        return symbols.read(f"/proc/{self.target.pids[0]}/root{file}", file)

    def _unnamed(self, file: str, offset: int) -> str:
        if file.startswith(("[", "//")) or not file:
            return "unknown"
        return self._program(file).unnamed(offset)

    def _notes(self, stopped_by: StoppedBy, complaint: str) -> Iterator[str]:
        reader, scheduler = self.reader, self.scheduler
        if stopped_by == "target":
            yield "The process ended while it was recorded: the rest of the time is empty."
        if stopped_by == "perf":
            yield f"The recording ended early, as perf ended by itself ({complaint})."
        if stopped_by == "full":
            yield f"The recording ended at {MOST_SAMPLES:,} samples."
        if not self.waits and self.rate < self.wanted_rate:
            yield (
                f"Samples were taken {self.rate:,} times a second, not {self.wanted_rate:,}: more "
                "is not allowed by kernel.perf_event_max_sample_rate."
            )
        if reader.lost:
            yield (
                f"{reader.lost:,} of {reader.events_read + reader.lost:,} events were lost, as "
                "they came faster than they could be read: times are too low."
            )
        if self.target.unknown:
            yield (
                f"{self.target.unknown:,} events are left out: their processes ended before it "
                "was known whether they were this server's."
            )
        if self.missed:
            yield (
                f"{self.missed:,} sessions connected while perf started and may be missing: as "
                "root, perf would see them."
            )
        if scheduler.unmatched > scheduler.switches // 100 + len(self.target.pids):
            yield (
                f"{scheduler.unmatched:,} times a process came back whose leaving was not seen; "
                f"{scheduler.switches:,} were."
            )
        if self._by_lot:
            drawn = [times for times in scheduler.weights.values() if times > 1]
            yield (
                f"Processes left the processor {sum(self.rates.values()):,.0f} times a second, "
                f"more often than can be read: {len(drawn)} of the {sum(drawn):.0f} busiest, "
                f"drawn by lot, {'represents' if len(drawn) == 1 else 'represent'} all of those. "
                "Sessions that connected during the recording are not in it."
            )
        elif self.too_many:
            yield (
                f"Events of other servers here were read as well: with more than {perf.FILTERED} "
                "processes the kernel cannot leave them out."
            )
        elif self.waits and self.target.postmaster and not self.by_name:
            yield (
                "Sessions that connected during the recording are not in it: other servers run "
                "here, and their events would crowd them out."
            )
        if reader.unreadable:
            yield (
                f"{reader.unreadable:,} lines of perf could not be read, such as "
                f"{reader.example[:80]!r}."
            )
        if not perf.sees_kernel():
            yield (
                "The kernel's part of stacks is not shown: that needs root, or "
                "perf_event_paranoid at most 1."
            )
        for file, missing in reader.unnamed.most_common(4):
            if file.startswith("["):
                if "kernel" in file:
                    yield "Kernel functions have no names (kptr_restrict hides them)."
                continue
            found = self._program(file)
            yield (
                f"{missing:,} of {missing + reader.named[file]:,} distinct frames of {found.name} "
                f"have no name and are shown as {found.name}+0x…, one for each function"
                + (": it is stripped; its debug package names them." if found.stripped else ".")
            )
