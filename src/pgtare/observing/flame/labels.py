"""Joins samples to the waits and statements that traces have of their moment."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pgtare.errors import PgtareError, UsageError
from pgtare.kit.numbers import volume
from pgtare.observing.flame import frames
from pgtare.observing.flame.processes import FlameTarget
from pgtare.observing.flame.recording import FlameRecording, Numbers
from pgtare.observing.trace.analysis.ledger import ends_of_work
from pgtare.observing.trace.analysis.timeline import processes
from pgtare.observing.trace.capture.record import TraceRecorder
from pgtare.observing.trace.capture.server import Need, open_server
from pgtare.observing.trace.capture.target import Target
from pgtare.observing.trace.documents import TraceRecorded
from pgtare.observing.trace.file import disk_limits
from pgtare.observing.trace.file.disk_limits import MIB, LimitReached, Limits
from pgtare.observing.trace.file.reader import Trace, load
from pgtare.observing.trace.file.records import CallKind
from pgtare.observing.waits.show import one_line
from pgtare.postgres import signals
from pgtare.postgres.module_versions import VersionMismatch
from pgtare.postgres.statement_spans import Ending, spans

#: Sessions begin their trace at the end of the request that is under way.
_TRACE_BEGINS_S = 0.3
#: In the place of an end that nobody has seen, in ns since 1970.
_FOREVER = 1 << 62
#: What is recorded is forgotten with the samples. A wait takes 3 bytes of it, and 56 of memory.
_LIMITS = Limits(total=256 * MIB)
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
    """What a server's traces say of a recording's time.

    spans: the stretches of each kind of label, as `StackSamples.within` wants them, but by the
    server's own numbers of processes and CLOCK_REALTIME. notes: why there is none, or not of all.
    """

    server_pids: dict[int, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    spans: list[Numbers] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def put(self, recording: FlameRecording) -> FlameRecording:
        """The recording with each sample under its statement and wait event, if known."""
        samples = recording.samples
        for stretches in self.spans:
            moved = stretches.copy()
            moved[:, 0] = [self.server_pids.get(pid, -1) for pid in moved[:, 0].tolist()]
            moved[:, 1:3] -= recording.realtime_ns
            samples = samples.framed(self.names, samples.within(moved))
        notes = [*recording.notes, *self.notes]
        return dataclasses.replace(recording, samples=samples, notes=notes)


@contextlib.contextmanager
def labels(dsn: str | None, target: FlameTarget, *, trace: bool) -> Iterator[FrameLabels]:
    """Drain the traces of a server's waits during a recording; without them, nothing is done.

    trace: trace every session during the recording. Raises UsageError if that cannot be.
    """
    found = FrameLabels()
    with contextlib.ExitStack() as stack:
        if dsn is None:
            yield found
            return
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgtare-")))
        try:
            disk_limits.check(place, _LIMITS, 0, 0)
        except LimitReached:
            sentence = (
                f"{place.parent}, where traces are kept meanwhile, has less than "
                f"{volume(_LIMITS.reserve)} free (TMPDIR names another place)"
            )
            if trace:
                raise UsageError(sentence) from None
            found.notes.append(f"Frames carry no wait event and no statement: {sentence}.")
            yield found
            return
        meant = Target(8, armed_only=not trace)

        def recorder(need: Need) -> TraceRecorder:
            server = stack.enter_context(open_server(dsn, need))
            return TraceRecorder(server, dsn, place / need.name, meant, _LIMITS)

        try:
            recorders = [recorder(Need.WAITS)]
        except UsageError as ex:
            if trace:
                raise
            if isinstance(ex, VersionMismatch):  # else the module is not there: frames only
                found.notes.append(f"Frames carry no wait event and no statement: {ex}.")
            yield found
            return
        if not trace:  # a ring of waits has no statements of sessions that only sql_trace traces
            with contextlib.suppress(UsageError):
                recorders.append(recorder(Need.CALLS))
        armed, ended = threading.Event(), threading.Event()
        finished: list[TraceRecorded] = []

        def drain(recorder: TraceRecorder) -> None:
            try:
                done = recorder.run(None, lambda progress: armed.set(), ended.is_set)
                finished.append(done)
                if done.stopped_by in ("size", "space"):
                    found.notes.append(_cut_short(place, done))
            except PgtareError as ex:
                found.notes.append(f"Traces could not be read: {ex}")
            finally:
                armed.set()

        threads = [threading.Thread(target=drain, args=(one,), daemon=True) for one in recorders]
        for thread in threads:
            thread.start()
        try:
            if trace:
                armed.wait()  # that takes a second on a busy machine
                time.sleep(_TRACE_BEGINS_S)
            yield found
        finally:
            ended.set()
            with signals.deferred():  # until they have given the sessions back
                for thread in threads:
                    thread.join()
        if len(finished) < len(recorders):
            return
        if not any(done.sessions for done in finished):
            found.notes.append(_NO_TRACE_YET if trace else _NO_TRACE)
            return
        if target.unnumbered:
            found.notes.append(
                f"{target.unnumbered:,} processes ended before the server's own number of them was "
                "looked up: their frames carry no wait event and no statement."
            )
        found.server_pids = target.by_server_pid()
        # a recorder that saw no session left nothing
        paths = [recorder.path for recorder in recorders]
        _fill(found, *(load(path) if path.exists() else Trace(path) for path in paths))


def _cut_short(place: Path, done: TraceRecorded) -> str:
    reached = (
        f"they had reached {volume(_LIMITS.total)}"
        if done.stopped_by == "size"
        else f"less than {volume(_LIMITS.reserve)} of {place.parent} was free"
    )
    return (
        f"Traces of {'calls' if done.calls else 'waits'} ended after {done.duration_s:.1f} s, as "
        f"{reached}: later frames carry none of them."
    )


def _fill(found: FrameLabels, trace: Trace, calls: Trace | None = None) -> None:
    """The stretches of waits and of statements in recordings of waits, and of calls."""
    index: dict[str, int] = {}
    waits: list[Numbers] = [np.empty((0, 4), np.int64)]
    statements: list[tuple[int, int, int, int]] = []

    def name(text: str) -> int:
        return index.setdefault(" ".join(text.replace(";", ",").split()), len(index))

    for ring, of in trace.waits.items():
        events, which = np.unique(of.event, return_inverse=True)
        named = np.array([name(frames.WAIT + trace.label(e)) for e in events.tolist()], np.int64)
        pids = np.full(len(of.start), trace.rings[ring].pid)
        ends = of.start + np.maximum(of.length, 1)
        waits.append(np.stack([pids, of.start, ends, named[which]], axis=1).astype(np.int64))
    for ring, marks in trace.marks.items():
        pid = trace.rings[ring].pid
        ran = spans(marks["kind"], marks["depth"], marks["when_ns"], marks["value"], outermost=True)
        ran = ran.where(ran.ending != Ending.LOST)
        columns = (ran.begin_ns.tolist(), ran.end_ns.tolist(), ran.query_id.tolist())
        for begin, end, query_id in zip(*columns, strict=True):
            label = name(frames.STATEMENT + one_line(trace.texts.get(query_id), query_id))
            statements.append((pid, begin, min(end, _FOREVER), label))
    for process in processes(calls) if calls is not None else []:
        texts = process.stream.texts
        own = process.calls[process.calls["depth"] == 0]
        ran = own[np.isin(own["kind"], [CallKind.EXECUTE, CallKind.FETCH])]
        # while a portal is open and not fetched from, others may run
        for call, end in zip(ran, ends_of_work(ran).tolist(), strict=True):
            text = texts.get(int(call["text"]))
            query_id = int(call["query_id"])
            said = one_line(text.text if text else None, query_id)
            label = name(frames.STATEMENT + said)
            statements.append((process.ring.pid, int(call["start"]), end, label))
    found.names = list(index)
    # a statement's frame is outside its waits', so it is put in last
    found.spans = [np.concatenate(waits), np.array(statements, np.int64).reshape(-1, 4)]
