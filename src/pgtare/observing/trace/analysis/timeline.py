"""The time line of each traced process: calls, requests, transactions, waits, processor readings.

Joins the ring of calls of a process with its rings of waits; all times become ns since 1970.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgtare.observing.trace.analysis.kept_state import kept_at, state_then, with_call_under_way
from pgtare.observing.trace.analysis.time_scale import (
    absolute_calls,
    ends_of_waits_for_clients,
    one_origin,
    rising,
    sharpen_calls,
    sharpened,
    shift_of_waits,
    within,
)
from pgtare.observing.trace.file import record_decoder
from pgtare.observing.trace.file.reader import NO_WAITS, Ring, Trace, Waits, moment
from pgtare.observing.trace.file.records import (
    ABORT,
    BEGIN,
    BY_QUERY_ID,
    CALL,
    COMMITTED,
    ESTIMATED,
    FAILED,
    PREPARE,
    SEVERAL,
    CallKind,
    Stream,
    packed_sqlstate,
)
from pgtare.postgres.statement_spans import FOREVER, Ending, spans
from pgtare.postgres.wait_ring import RingRecordKind

Integers = npt.NDArray[np.int64]

#: A recording's first look at its rings comes no later than this, in ns.
_FIRST_LOOK = 5 * 10**9
#: So close together two moments belong to each other, in ns: a session wakes in between.
_CLOSE = 10**7
#: A file rounds times of waits to this many ns.
_ROUNDED = 16


def _none(columns: int) -> Integers:
    return np.zeros((0, columns), np.int64)


@dataclass
class Process:
    """One traced process. begin and end: what is known of it lies between, ns since 1970.

    calls: of dtype CALL, in the order in which they ended, with absolute times. requests,
    transactions, missing: rows of (begin, end). cpu: rows of (when, CPU ns so far). queue: rows of
    (when, ns waited for a processor so far). leader_pid: of a parallel worker. gone_bytes: of
    calls, lost in a damaged file.
    """

    ring: Ring
    begin: int
    end: int
    calls: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, CALL))
    requests: Integers = field(default_factory=lambda: _none(2))
    transactions: Integers = field(default_factory=lambda: _none(2))
    missing: Integers = field(default_factory=lambda: _none(2))
    cpu: Integers = field(default_factory=lambda: _none(2))
    queue: Integers = field(default_factory=lambda: _none(2))
    waits: Waits = field(default_factory=lambda: NO_WAITS)
    stream: Stream = field(default_factory=Stream)
    gone_bytes: int = 0

    def fetches(self) -> Integers:
        """How many calls each record of a call represents: several fetches can share one."""
        found = np.ones(len(self.calls), np.int64)
        for i in np.flatnonzero(self.calls["flags"] & SEVERAL).tolist():
            found[i] = self.stream.fetches.get(int(self.calls["call"][i]), 1)
        return found

    @property
    def leader_pid(self) -> int | None:
        """The process for which a parallel worker works."""
        return self.ring.leader_pid

    @property
    def zero(self) -> int:
        """Time 0 of its stream, ns since 1970."""
        return int(self.stream.session.get("started_ns", self.ring.started_ns))


def processes(trace: Trace, tell: Callable[[float], None] = lambda _: None) -> list[Process]:
    """Every process of a trace with anything to tell, client sessions first.

    tell: is called with how much of the work is done, from 0 to 1.
    """
    sizes = {n: sum(len(data) for _, data in chunks) for n, chunks in trace.streams.items()}
    total, done = max(sum(sizes.values()), 1), 0
    found, taken = [], set()
    waiting = [ring for ring in trace.rings.values() if ring.kind == "waits"]
    of_sessions: dict[int, list[Ring]] = defaultdict(list)
    for ring in waiting:
        if ring.leader_pid is None:
            of_sessions[ring.pid].append(ring)
    for ring in trace.rings.values():
        if ring.kind != "sql" or ring.number not in trace.streams:
            continue
        process, own = _of_calls(trace, ring, of_sessions.get(ring.pid, []))
        taken |= own
        done += sizes[ring.number]
        tell(done / total)
        if process is not None:
            found.append(process)
    for ring in waiting:
        if ring.number not in taken:
            process = _of_waits(trace, ring)
            if process is not None:
                found.append(process)
    return sorted(found, key=lambda p: (p.leader_pid is not None, p.begin, p.ring.number))


def _of_calls(trace: Trace, ring: Ring, waiting: list[Ring]) -> tuple[Process | None, set[int]]:
    """A process whose calls were traced, and the numbers of its rings of waits.

    waiting: the rings of waits of sessions with its pid.
    """
    decoded = record_decoder.decode(trace.streams[ring.number])
    base = int(decoded.session.get("started_ns", ring.started_ns))
    begin, end = base + decoded.begin, base + decoded.last
    # a trace that was kept has the ring's own time, to the µs
    apart = 1000 if trace.recording.get("kept") else 10**9
    if decoded.passed is not None or decoded.begin < _began(trace) - base - apart:
        begin = _looked_at(decoded, base, _began(trace))  # the ring is older than the recording
        decoded.errors = [e for e in decoded.errors if base + e.when > begin]
    if decoded.records == 0 or end <= begin:
        return None, set()
    process = Process(ring, begin, end, stream=decoded)
    own, marked = _take_waits(trace, process, waiting, base)
    arrivals = ends_of_waits_for_clients(trace, process.waits)
    calls = absolute_calls(decoded.calls, base)
    sharpen_calls(calls, arrivals)
    process.calls = calls[calls["end"] > begin]
    _go_on(process, trace, base)
    _run_on(process, trace)
    _run_into_end(process)
    started = sharpened(decoded.requests["start"] + base, arrivals)
    answered = decoded.requests["end"] + base
    process.requests = _apart(np.stack([np.minimum(started, answered), answered], axis=1))
    _close_last_request(process)
    process.transactions = _transactions(decoded, base, process.end)
    process.missing = _apart(
        np.array(
            [[base + a, base + b] for a, b, _, _ in decoded.gaps]
            + [[base + a, base + b] for a, b in _untraced(decoded)]
            + _undrawn(decoded, process),
            np.int64,
        ).reshape(-1, 2)
    )
    readings = [
        np.stack([end, cpu], axis=1)[cpu >= 0]
        for end, cpu in ((calls["end"], calls["cpu"]), (answered, decoded.requests["cpu"]))
    ]
    process.cpu = one_origin(
        rising(np.concatenate(readings)), rising(np.concatenate([_none(2), *marked]))
    )
    process.queue = _queue(trace, {ring.number, *own})
    # what was overwritten the recorder has counted; the rest a damaged file has lost
    gone = sum(size for _, b, size, _ in decoded.gaps if base + b > begin)
    process.gone_bytes = max(0, gone - trace.losses.get(ring.number, 0))
    return process, own


def _take_waits(
    trace: Trace, process: Process, waiting: list[Ring], base: int
) -> tuple[set[int], list[Integers]]:
    """Give a process its waits; the numbers of their rings, and the readings of CPU in them."""
    own = set()
    parts = [NO_WAITS]
    marked: list[Integers] = []
    for other in waiting:
        shift = shift_of_waits(process.stream, other, base)
        if shift is None and _at_one_time(trace, process, other):
            shift = 0  # the record that ties them was overwritten: by the wall clock, to the µs
        if shift is None:
            continue
        own.add(other.number)
        w, marks = trace.waits_of(other.number), trace.marks_of(other.number)
        parts.append(Waits(w.start + shift, w.length, w.event, w.calls))
        of = marks["kind"] == RingRecordKind.CPU
        marked.append(np.stack([marks["when_ns"][of] + shift, marks["value"][of]], axis=1))
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    process.waits = Waits(*(np.concatenate(column) for column in columns))
    return own, marked


def _at_one_time(trace: Trace, process: Process, other: Ring) -> bool:
    """Whether a ring of waits tells of when a process lived: no other had its number then."""
    waits, marks = trace.waits_of(other.number), trace.marks_of(other.number)
    moments = np.concatenate([waits.start + waits.length, marks["when_ns"]])
    last = max(other.started_ns, int(moments.max(initial=other.started_ns)))
    return last >= process.begin and other.started_ns <= process.end


def _looked_at(decoded: Stream, base: int, began: int) -> int:
    """When the recording began, by the clock of a ring that is older.

    A ring counts from the wall clock as it was then, which may have been set since, or have
    drifted. What the first look found is older than that look, what the next one found is younger.
    """
    last, following = decoded.first_look
    if following is not None and began > base + following:
        begin = base + last
    else:
        begin = max(began, base + last - (_FIRST_LOOK if decoded.passed is None else 0))
    return max(begin, base + _traced_since(decoded))


def _traced_since(decoded: Stream) -> int:
    """When a session was traced anew that was not when the recording began; 0: it was."""
    if decoded.passed is None:
        return 0
    before = [level for when, level, *_ in decoded.levels if when <= decoded.passed]
    after = [when for when, level, *_ in decoded.levels if when > decoded.passed and level > 0]
    following = decoded.first_look[1]
    if not after or (before and before[-1] > 0) or (not before and after[0] != following):
        return 0
    return after[0]


def _began(trace: Trace) -> int:
    """When the recording began, ns since 1970; 0: it does not say."""
    return moment(trace.recording.get("began"))


def _go_on(process: Process, trace: Trace, base: int) -> None:
    """A session that waited when it was last looked at was there until then.

    So was the call in which it waited, of which nothing is written before it ends.
    """
    stream, waits = process.stream, process.waits
    until = moment((trace.end or {}).get("until"))  # when waits under way were looked at
    if stream.ended or not until or not len(waits.start):
        return
    last = int(np.argmax(waits.start))
    goes_on = until - int(waits.start[last] + waits.length[last]) <= _CLOSE
    if not goes_on or until <= process.end:
        return
    if stream.open is None:
        # if it waits for its client since later, there were requests in between; any other wait
        # is in a call of which nothing is written yet, or in a request that is not traced
        event = trace.events.get(int(waits.event[last]))
        in_call = event is not None and event.type != "Client" and _all_traced(stream)
        if in_call or waits.start[last] - process.end <= _CLOSE:
            process.end = until
        return
    process.end = until
    call = np.zeros(1, CALL)
    kind = CallKind.COMMIT if stream.open.kind == CallKind.EXECUTE else CallKind.EXECUTE
    call["call"], call["kind"], call["flags"] = stream.open.call, kind, ESTIMATED
    call["text"], call["query_id"] = stream.open.text, stream.open.query_id
    call["start"], call["end"], call["cpu"] = base + stream.open.end, until, -1
    call["busy"] = call["end"] - call["start"]
    process.calls = np.concatenate([process.calls, call])


def _run_on(process: Process, trace: Trace) -> None:
    """A session that ran a statement when its trace was kept was there until then."""
    state, at = state_then(trace), kept_at(trace)
    if state is None or at is None or not state.running or at <= process.end:
        return
    process.end = at
    answered = process.stream.requests["end"] + process.zero
    process.calls = with_call_under_way(process.calls, int(answered.max(initial=0)), at)


def _run_into_end(process: Process) -> None:
    """A session that was ended in a statement wrote no call of it, but the error."""
    if not process.stream.errors or process.stream.errors[-1].severity == "ERROR":
        return
    error = process.stream.errors[-1]
    answered = process.stream.requests["end"] + process.zero
    until = min(process.zero + error.when, process.end)
    calls = with_call_under_way(process.calls, int(answered.max(initial=0)), until)
    if len(calls) > len(process.calls) and calls["text"][-1] == error.text:
        calls["flags"][-1] |= FAILED
        calls["sqlstate"][-1] = packed_sqlstate(error.sqlstate)
        process.calls = calls


def _all_traced(stream: Stream) -> bool:
    """Whether each request of a session is traced by now."""
    _, level, reason, rate = stream.levels[-1] if stream.levels else (0, 1, 0, 1.0)
    return level > 0 and rate >= 1 and reason != BY_QUERY_ID


def _untraced(decoded: Stream) -> list[tuple[int, int]]:
    """When the trace of a session was switched off and on again, it tells nothing in between."""
    found, since = [], None
    for when, level, _, _ in decoded.levels:
        if level == 0 and since is None:
            since = when
        elif level > 0 and since is not None:
            found.append((since, max(since, when)))
            since = None
    return found if since is None else [*found, (since, max(since, decoded.last))]


def _undrawn(decoded: Stream, process: Process) -> list[list[int]]:
    """If only some requests are traced: between them may be the client's time, or others.

    That is while requests are drawn by sql_trace.statement_rate, or found by query identifier.
    """
    zero = process.zero
    levels = [*decoded.levels, (decoded.last, 0, 0, 1.0)]
    partial = _apart(
        np.array(
            [
                [zero + when, zero + max(after, when)]
                for (when, level, reason, rate), (after, *_) in itertools.pairwise(levels)
                if level > 0 and (rate < 1 or reason == BY_QUERY_ID)
            ],
            np.int64,
        ).reshape(-1, 2)
    )
    if not len(partial):
        return []
    ends = np.array([process.begin, process.end])
    moments = np.concatenate([ends, partial.ravel(), process.requests.ravel()])
    bounds = np.unique(np.clip(moments, process.begin, process.end))
    middle = bounds[:-1] + np.diff(bounds) // 2
    found = (within(partial, middle) >= 0) & (within(process.requests, middle) < 0)
    return list(np.stack([bounds[:-1], bounds[1:]], axis=1)[found].tolist())


def _close_last_request(process: Process) -> None:
    """What began after the last answer belongs to a request that has none yet."""
    calls = process.calls
    answered = int(process.requests[-1, 1]) if len(process.requests) else process.begin
    late = calls["start"][calls["end"] > answered]
    late = late[late >= answered]
    if len(late):
        last = np.array([[int(late.min()), process.end]], np.int64)
        process.requests = np.concatenate([process.requests, last])


def _apart(spans: Integers) -> Integers:
    """Spans in order of time, none before the end of the one before; without empty ones."""
    spans = np.asarray(spans, np.int64)[np.argsort(spans[:, 1], kind="stable")]
    if len(spans):
        before = np.concatenate([[np.iinfo(np.int64).min], spans[:-1, 1]])
        spans[:, 0] = np.maximum(spans[:, 0], before)
    return spans[spans[:, 1] > spans[:, 0]]


def _transactions(decoded: Stream, base: int, end: int) -> Integers:
    """From begin to commit, abort or prepare; one that is open at the end lasts up to it."""
    found: list[tuple[int, int]] = []
    open_since: int | None = None
    for event, when, _, start in decoded.transactions.tolist():
        if event == BEGIN:
            open_since = min(start, when)
        elif event in (COMMITTED, ABORT, PREPARE):
            found.append((base + min(start, when), base + when))
            open_since = None
    if open_since is not None:
        found.append((base + open_since, end))
    return _apart(np.array(found, np.int64).reshape(-1, 2))


def _queue(trace: Trace, rings: set[int]) -> Integers:
    parts = [
        np.stack([p["when_ns"], p["queue_ns"]], axis=1)
        for p in (trace.processor[number] for number in rings if number in trace.processor)
    ]
    return rising(np.concatenate(parts)) if parts else _none(2)


def _of_waits(trace: Trace, ring: Ring) -> Process | None:
    """A process of which there is only a ring of waits: a parallel worker, or waits alone."""
    waits, marks = trace.waits_of(ring.number), trace.marks_of(ring.number)
    moments = np.concatenate([waits.start, waits.start + waits.length, marks["when_ns"]])
    if not len(moments) or moments.max() <= moments.min():
        return None
    born = int(moments.min())
    process = Process(ring, max(born, _began(trace)), int(moments.max()), waits=waits)
    if process.end <= process.begin:
        return None  # all of it was before
    process.missing = _lost(trace, ring)
    if len(marks["kind"]):
        calls = _calls_of_marks(marks, None if ring.leader_pid is not None else process.end)
        process.calls = calls[(calls["end"] > process.begin) & ~_meet(calls, process.missing)]
        of = marks["kind"] == RingRecordKind.CPU
        process.cpu = rising(np.stack([marks["when_ns"][of], marks["value"][of]], axis=1))
    if ring.leader_pid is not None:
        # a worker that ran one statement has one reading, from the start of its process on
        process.cpu = rising(np.concatenate([[[born, 0]], process.cpu]))
        process.requests = np.array([[process.begin, process.end]], np.int64)
    else:
        process.requests = _between_waits_for_clients(trace, process)
    process.queue = _queue(trace, {ring.number})
    return process


def _lost(trace: Trace, ring: Ring) -> Integers:
    """Gaps in a ring of waits alone: from the last moment known before each to the next record."""
    gaps = trace.gaps.get(ring.number)
    if not gaps or trace.recording.get("calls") is not False:
        return _none(2)  # with calls, the server's worker may have written when it noticed
    waits, marks = trace.waits_of(ring.number), trace.marks_of(ring.number)
    spanned = waits.start, waits.start + waits.length
    start, end = (np.concatenate([times, marks["when_ns"]]) for times in spanned)
    order = np.argsort(start, kind="stable")
    start, reached = start[order], np.maximum.accumulate(end[order])
    after = np.searchsorted(start, np.array(gaps, np.int64) - _ROUNDED)
    after = after[(after > 0) & (after < len(start))]
    return _apart(np.stack([reached[after - 1], start[after]], axis=1))


def _meet(calls: npt.NDArray[np.void], spans: Integers) -> npt.NDArray[np.bool_]:
    """Which calls have time in common with spans, which are in order and do not overlap."""
    following = np.searchsorted(spans[:, 1], calls["start"], "right")
    return np.asarray(np.append(spans[:, 0], FOREVER)[following] < calls["end"])


def _between_waits_for_clients(trace: Trace, process: Process) -> Integers:
    """When a session worked, as far as its waits tell: while it did not wait for its client."""
    of = np.isin(process.waits.event, trace.client_events)
    start = np.clip(process.waits.start[of], process.begin, process.end)
    end = np.clip((process.waits.start + process.waits.length)[of], process.begin, process.end)
    order = np.argsort(start, kind="stable")
    begins = np.concatenate([[process.begin], np.maximum.accumulate(end[order])])
    ends = np.concatenate([start[order], [process.end]])
    return _apart(np.stack([begins, np.maximum(begins, ends)], axis=1))


def _calls_of_marks(marks: dict[str, Integers], until: int | None) -> npt.NDArray[np.void]:
    """Executions, from the begins and ends of statements in a ring of waits.

    until: of a session, when what has not ended was last seen; None: only what has ended.
    """
    found = spans(marks["kind"], marks["depth"], marks["when_ns"], marks["value"])
    endings = [Ending.END] if until is None else [Ending.END, Ending.ABORT, Ending.OPEN]
    ended = np.flatnonzero(np.isin(found.ending, endings))
    end_ns = np.minimum(found.end_ns, FOREVER if until is None else until)
    ended = ended[np.lexsort((-found.depth[ended], end_ns[ended]))]
    calls = np.zeros(len(ended), CALL)
    calls["call"], calls["parent"] = ended + 1, found.parent[ended] + 1
    calls["kind"], calls["depth"] = CallKind.EXECUTE, found.depth[ended]
    calls["query_id"] = found.query_id[ended]
    calls["flags"] = np.where(found.ending[ended] == Ending.ABORT, FAILED, 0)
    calls["start"] = np.minimum(found.begin_ns[ended], end_ns[ended])
    calls["end"] = end_ns[ended]
    calls["busy"] = calls["end"] - calls["start"]
    calls["cpu"] = -1
    last = np.minimum(found.end[ended], len(marks["value"]) - 1)
    complete = (found.ending == Ending.END)[ended]
    calls["rows"] = np.where(complete, marks["value"][last], 0)
    return calls
