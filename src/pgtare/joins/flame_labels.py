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
from pgtare.seeing.waits import recording as wait_recordings
from pgtare.seeing.waits.record import WaitRecorder
from pgtare.seeing.waits.recording import Columns
from pgtare.seeing.waits.show import one_line
from pgtare.server import signals
from pgtare.server.module_versions import VersionMismatch
from pgtare.server.statement_spans import Ending, spans
from pgtare.server.statement_spans import Spans as StatementSpans
from pgtare.server.wait_counters.reader import open_reader
from pgtare.server.wait_ring import RingRecordKind, epoch_ns
from pgtare.weighing.weigh import store

#: Sessions begin their trace at the end of the request that is under way.
_TRACE_BEGINS_S = 0.3
NOTHING = Spans(*(np.empty(0, np.int64) for _ in range(4)))
#: In the place of an end that nobody has seen, in ns since 1970.
_FOREVER = 1 << 62
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
            reader = stack.enter_context(open_reader(dsn))
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgtare-")))
            recorder = WaitRecorder(reader, dsn, place / "waits", trace_all=trace)
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
                recorder.run(None, lambda progress: None, ended.is_set)
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
            _fill(found, place / "waits")


def _fill(found: FrameLabels, directory: Path) -> None:
    """The stretches of waits and of statements in a recording of traces."""
    recorded = wait_recordings.load(directory)
    index: dict[str, int] = {}
    waits: list[tuple[int, int, int, int]] = []
    statements: list[tuple[int, int, int, int]] = []

    def name(text: str) -> int:
        return index.setdefault(" ".join(text.replace(";", ",").split()), len(index))

    def statement(query_id: int) -> int:
        return name(frames.STATEMENT + one_line(recorded.texts.get(str(query_id)), query_id))

    pids = {s.number: s.pid for s in recorded.sessions}
    marks: list[Columns] = []
    for columns in wait_recordings.parts(directory):
        of_waits = columns["kind"] == RingRecordKind.WAIT
        wanted = ("session", "event", "start_ns", "value")
        lists = (columns[column][of_waits].tolist() for column in wanted)
        for session, event, start, value in zip(*lists, strict=True):
            what = name(frames.WAIT + "/".join(recorded.events.get(str(event), ["?", "?"])))
            waits.append((pids[session], start, start + max(value, 1), what))
        marks.append({column: columns[column][~of_waits] for column in columns})
    for session, ran in _statements(marks):
        for since, end, query_id in zip(
            ran.begin_ns.tolist(), ran.end_ns.tolist(), ran.query_id.tolist(), strict=True
        ):
            statements.append((pids[session], since, min(end, _FOREVER), statement(query_id)))
    traced = set(pids.values())
    for wait in recorded.waiting_at_end:
        if wait.pid not in traced:  # whether it waited all the time, nobody saw
            continue
        label = name(f"{frames.WAIT}{wait.type}/{wait.event}")
        waits.append((wait.pid, epoch_ns(wait.started), _FOREVER, label))
        if wait.query_id:
            statements.append(
                (wait.pid, epoch_ns(wait.started), _FOREVER, statement(wait.query_id))
            )
    found.traced = bool(recorded.sessions)
    found.names, found.waits, found.statements = list(index), _spans(waits), _spans(statements)


def _statements(parts: list[Columns]) -> Iterator[tuple[int, StatementSpans]]:
    """The client's statements of each session, without those whose end was lost."""
    if not parts:
        return
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for session in np.unique(columns["session"]).tolist():
        own = columns["session"] == session
        kind, depth, when, value = (
            columns[name][own] for name in ("kind", "depth", "start_ns", "value")
        )
        found = spans(kind, depth, when, value, outermost=True)
        yield session, found.where(found.ending != Ending.LOST)


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
