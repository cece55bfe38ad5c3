"""Joins samples to what others know of their moment: traces of waits, and the arms of a trial."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from pgtare.errors import PgtareError, UsageError
from pgtare.estimate.trial.observations import Observations, UnitFlag
from pgtare.seeing.flame import frames
from pgtare.seeing.flame.recording import FlameRecording
from pgtare.seeing.flame.samples import Spans
from pgtare.seeing.flame.targets import FlameTarget
from pgtare.seeing.trace.capture.record import TraceRecorder
from pgtare.seeing.trace.capture.server import Need, open_server
from pgtare.seeing.trace.capture.target import Target
from pgtare.seeing.trace.file.disk_limits import Limits
from pgtare.seeing.trace.file.reader import load
from pgtare.seeing.waits.show import one_line
from pgtare.server import signals
from pgtare.server.module_versions import VersionMismatch
from pgtare.server.statement_spans import Ending, spans
from pgtare.server.wait_ring import epoch_ns
from pgtare.weighing.weigh import store

#: Sessions begin their trace at the end of the request that is under way.
_TRACE_BEGINS_S = 0.3
NOTHING = Spans(*(np.empty(0, np.int64) for _ in range(4)))
#: In the place of an end that nobody has seen, in ns since 1970.
_FOREVER = 1 << 62
#: What is recorded is forgotten with the samples: the disk is the only limit.
_LIMITS = Limits(total=1 << 62, reserve=0)
_NO_TRACE = (
    "Frames carry no wait event and no statement: no session had wait_event_timing.capture = trace "
    "(--trace switches it on during the recording)."
)
_NO_TRACE_YET = (
    "Frames carry no wait event and no statement: no session began a request while --trace had "
    "them traced."
)


@dataclass
class FrameLabels:
    """What a server's traces say of a recording's time. Times: CLOCK_REALTIME."""

    server_pids: dict[int, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    statements: Spans = NOTHING
    waits: Spans = NOTHING
    asked: bool = False
    tracing: bool = False  # every session should have been traced
    traced: bool = False  # any session at all
    trouble: str = ""

    def put(self, recording: FlameRecording) -> FlameRecording:
        """The recording with each sample under its statement and wait event, if known."""
        if self.trouble:
            return _noted(recording, self.trouble)
        if not self.asked:
            return recording
        if not self.traced:
            recording = _noted(recording, _NO_TRACE_YET if self.tracing else _NO_TRACE)
        samples = recording.samples
        for label in (self.waits, self.statements):  # a statement's frame is outside its waits'
            which = samples.within(self._moved(label, recording))
            samples = samples.framed(self.names, which, depth=1)
        return dataclasses.replace(recording, samples=samples)

    def _moved(self, spans: Spans, recording: FlameRecording) -> Spans:
        """By the machine's process numbers and CLOCK_MONOTONIC."""
        pids = [self.server_pids.get(pid, -1) for pid in spans.pid.tolist()]
        return Spans(
            np.array(pids, np.int64),
            spans.start_ns - recording.realtime_ns,
            spans.end_ns - recording.realtime_ns,
            spans.what,
        )


@contextlib.contextmanager
def labels(dsn: str | None, target: FlameTarget, *, trace: bool) -> Iterator[FrameLabels]:
    """Drain the traces of a server's waits during a recording; without them, nothing is done.

    trace: trace every session during the recording. Raises UsageError if that cannot be.
    """
    found = FrameLabels(tracing=trace)
    with contextlib.ExitStack() as stack:
        if dsn is None:
            yield found
            return
        try:
            server = stack.enter_context(open_server(dsn, Need.WAITS))
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgtare-")))
            meant = Target(8, armed_only=not trace)
            recorder = TraceRecorder(server, dsn, place / "waits.pgtrace", meant, _LIMITS)
        except UsageError as ex:
            if trace:
                raise
            if isinstance(ex, VersionMismatch):  # else the module is not there: frames only
                found.trouble = f"Frames carry no wait event and no statement: {ex}."
            yield found
            return
        ended = threading.Event()

        def drain() -> None:
            try:
                done = recorder.run(None, lambda progress: None, ended.is_set)
                found.traced = done.sessions > 0
            except PgtareError as ex:
                found.trouble = f"Traces of waits could not be read: {ex}"

        thread = threading.Thread(target=drain, daemon=True)
        thread.start()
        try:
            if trace:
                time.sleep(_TRACE_BEGINS_S)
            yield found
        finally:
            ended.set()
            with signals.deferred():  # until it has given the sessions back
                thread.join()
        if not found.trouble:
            found.asked = True
            found.server_pids = target.by_server_pid()
            if found.traced:
                _fill(found, recorder.path)


def _fill(found: FrameLabels, path: Path) -> None:
    """The stretches of waits and of statements in a recording of traces."""
    trace = load(path)
    index: dict[str, int] = {}
    waits: list[tuple[int, int, int, int]] = []
    statements: list[tuple[int, int, int, int]] = []

    def name(text: str) -> int:
        return index.setdefault(" ".join(text.replace(";", ",").split()), len(index))

    def statement(query_id: int) -> int:
        return name(frames.STATEMENT + one_line(trace.texts.get(query_id), query_id))

    for ring, of in trace.waits.items():
        pid = trace.rings[ring].pid
        rows = (of.start.tolist(), of.length.tolist(), of.event.tolist())
        for start, length, event in zip(*rows, strict=True):
            waits.append(
                (pid, start, start + max(length, 1), name(frames.WAIT + trace.label(event)))
            )
    for ring, marks in trace.marks.items():
        ran = spans(marks["kind"], marks["depth"], marks["when_ns"], marks["value"], outermost=True)
        ran = ran.where(ran.ending != Ending.LOST)
        for since, end, query_id in zip(
            ran.begin_ns.tolist(), ran.end_ns.tolist(), ran.query_id.tolist(), strict=True
        ):
            last = min(end, _FOREVER)
            statements.append((trace.rings[ring].pid, since, last, statement(query_id)))
    found.names, found.waits, found.statements = list(index), _spans(waits), _spans(statements)


def _spans(found: list[tuple[int, int, int, int]]) -> Spans:
    table = np.array(found, np.int64).reshape(-1, 4)
    return Spans(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def cut(recording: FlameRecording, from_s: float, to_s: float) -> FlameRecording:
    """The part of a recording from and to these seconds. Raises UsageError if it is empty."""
    if to_s <= from_s or from_s >= recording.duration_s:
        raise UsageError(
            f"--from {from_s:g} --to {to_s:g}: the recording is {recording.duration_s:.1f} s long"
        )
    seconds = min(to_s, recording.duration_s) - from_s
    first, last = (recording.begin_ns + int(1e9 * min(s, 1e9)) for s in (from_s, to_s))
    samples = recording.samples.window(first, last)
    return dataclasses.replace(recording, samples=samples, duration_s=seconds)


def arm_spans(observations: Observations, began_ns: int, pids: dict[int, int]) -> Spans:
    """When each transaction ran, and under which arm.

    began_ns: of the trial, CLOCK_MONOTONIC. pids: the machine's number by the server's.
    """
    data = observations[(observations["flags"] & (UnitFlag.UNBLOCKED | UnitFlag.OPEN)) == 0]
    machine = np.array([pids.get(int(p), int(p)) for p in data["pid"].tolist()], np.int64)
    start = began_ns + data["start_ns"]
    end = start + data["service_ns"] + data["client_ns"]
    return Spans(machine, start, end, data["arm"].astype(np.int64))


def by_arm(recording: FlameRecording, directory: Path) -> FlameRecording:
    """The samples under the arm of the transaction in which each was taken; others are left out.

    Raises UsageError if the trial and the recording have no time in common.
    """
    kept = store.load(directory)
    if kept.result.design.started is None:
        raise UsageError(f"{directory} does not tell when its trial began")
    began = epoch_ns(datetime.fromisoformat(kept.result.design.started))
    spans = arm_spans(kept.observations, began - recording.realtime_ns, {})
    arms = recording.samples.within(spans)
    if not (arms >= 0).any():
        raise UsageError(f"no sample was taken in a transaction of the trial in {directory}")
    names = [frames.ARM + arm.name.replace(";", ",") for arm in kept.design.arms]
    inside = recording.samples.where(arms >= 0).framed(names, arms[arms >= 0])
    outside = int((arms < 0).sum())
    return _noted(
        dataclasses.replace(recording, samples=inside),
        f"{outside:,} samples fell between transactions, or into other sessions, and are left out.",
    )


def _noted(recording: FlameRecording, note: str) -> FlameRecording:
    return dataclasses.replace(recording, notes=[*recording.notes, note])
