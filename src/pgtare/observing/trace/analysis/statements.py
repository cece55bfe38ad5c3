"""Statements as tkprof lists them: each kind of call with its sums, its waits, its row sources."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from pgtare.errors import UsageError
from pgtare.observing.trace.analysis import plan_nodes as nodes
from pgtare.observing.trace.analysis.ledger import CPU, OWN, Ledger
from pgtare.observing.trace.analysis.texts import statement_labels
from pgtare.observing.trace.documents import CallSum, NodeSum, PlanSum, TracedStatement, WaitSum
from pgtare.observing.trace.file.reader import Integers
from pgtare.observing.trace.file.records import (
    BUFFERS,
    EXACT,
    FAILED,
    CallKind,
    RowSources,
    call_name,
    sqlstate,
)
from pgtare.postgres.sql_text import normalised


def _runs(statement: TracedStatement) -> int:
    """How often a statement ran; a utility statement has no execution."""
    kinds = ("execute", "utility")
    return sum(statement.calls[kind].count for kind in kinds if kind in statement.calls)


Sort = Literal["elapsed", "cpu", "waits", "count", "mean", "longest", "rows", "reads", "buffers"]
#: Keys by which statements are sorted, largest first.
SORTS: dict[Sort, Callable[[TracedStatement], float]] = {
    "elapsed": lambda s: s.sum("elapsed_ns"),
    "cpu": lambda s: s.sum("cpu_ns"),
    "waits": lambda s: s.sum("waited_ns"),
    "count": lambda s: float(_runs(s)),
    "mean": lambda s: s.sum("elapsed_ns") / max(_runs(s), 1),
    "longest": lambda s: max((c.max_ns for c in s.calls.values()), default=0.0),
    "rows": lambda s: s.sum("rows"),
    "reads": lambda s: float(s.buffers("shared_read")),
    "buffers": lambda s: float(s.buffers("shared_hit") + s.buffers("shared_read")),
}


def report(
    ledger: Ledger, sort: Sort = "elapsed", pids: frozenset[int] | None = None
) -> list[TracedStatement]:
    """The statements of a trace, those of clients first.

    Raises UsageError for processes that are no sessions of the trace.
    """
    _check_sessions(ledger, pids or frozenset())
    labels = statement_labels(ledger)
    found: list[TracedStatement] = []
    known: dict[tuple[bool, int], int] = {}
    own = _own_times(ledger)
    calls = ledger.calls
    wanted: npt.NDArray[np.bool_] = np.array(
        [p.leader_pid is None and (pids is None or p.ring.pid in pids) for p in ledger.processes],
        bool,
    )
    owner = np.full(len(calls) + 1, -1, np.int64)  # the statement of each call; the last: of none
    for i in np.flatnonzero(wanted[ledger.call_process]).tolist() if len(calls) else ():
        recursive = bool(calls["depth"][i] > 0)
        label = int(labels.of_call[i])
        owner[i] = number = known.setdefault((recursive, label), len(found))
        if number == len(found):
            name, query_id = labels.names[label], labels.query_ids[label]
            found.append(TracedStatement(name, query_id, recursive))
        _add_call(ledger, found[number], i, own)
    _add_waits(ledger, owner, found)
    _add_plans(ledger, owner, found)
    _add_errors(ledger, owner, found)
    _add_unparsed(ledger, wanted, found)
    key_of = SORTS[sort]
    return sorted(found, key=lambda s: (s.recursive, -key_of(s)))


def _check_sessions(ledger: Ledger, pids: frozenset[int]) -> None:
    absent = pids - {p.ring.pid for p in ledger.processes if p.leader_pid is None}
    for p in ledger.processes:
        if p.ring.pid in absent:
            raise UsageError(
                f"process {p.ring.pid} is a parallel worker: its statements are those of process "
                f"{p.leader_pid}"
            )
    if absent:
        raise UsageError(
            f"the trace holds nothing of process {', '.join(map(str, sorted(absent)))}: "
            "`pgtare trace profile TRACE --by session` lists its sessions"
        )


_Own = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]


def _own_times(ledger: Ledger) -> _Own:
    """CPU, waits and all time of each call without inner ones, in ns."""
    e, n = ledger.entries, len(ledger.calls)
    inside = e.call >= 0
    cpu = inside & ((e.component == CPU) | (e.component == OWN))
    waits = inside & (e.component >= 0)
    return (
        np.bincount(e.call[cpu], e.ns[cpu], n).astype(np.float64),
        np.bincount(e.call[waits], e.ns[waits], n).astype(np.float64),
        np.bincount(e.call[inside], e.ns[inside], n).astype(np.float64),
    )


def _add_call(ledger: Ledger, statement: TracedStatement, i: int, own: _Own) -> None:
    call = ledger.calls[i]
    kind = int(call["kind"])
    into = statement.calls.setdefault(call_name(kind), CallSum())
    process = ledger.processes[int(ledger.call_process[i])]
    several = process.stream.fetches.get(int(call["call"]), 1)
    into.count += several
    into.failed += bool(call["flags"] & FAILED)
    start, end, whole = (int(call[name]) for name in ("start", "end", "busy"))
    # without what was before the recording
    busy = float(max(min(whole, min(start + whole, end) - process.begin), 0))
    into.elapsed_ns += busy
    into.max_ns = max(into.max_ns, busy / several)
    into.cpu_ns += own[0][i]
    into.waited_ns += own[1][i]
    into.other_ns += own[2][i] - own[0][i] - own[1][i]
    into.inner_ns += busy - own[2][i]
    into.rows += int(call["rows"]) if kind != CallKind.FETCH else 0  # its execution has them
    buffers = process.stream.buffers.get(int(call["call"]))
    if buffers:
        for buffer, count in zip(BUFFERS, buffers, strict=True):
            into.buffers[buffer] = into.buffers.get(buffer, 0) + count


def _add_waits(ledger: Ledger, owner: Integers, found: list[TracedStatement]) -> None:
    e = ledger.entries
    rows = np.flatnonzero((e.component >= 0) & (owner[e.call] >= 0))
    if not len(rows):
        return
    kinds = int(e.component.max()) + 1
    key, inverse = np.unique(owner[e.call[rows]] * kinds + e.component[rows], return_inverse=True)
    ns, times = np.bincount(inverse, e.ns[rows]), np.bincount(inverse, e.times[rows])
    pieces, longest = np.bincount(inverse), np.zeros(len(key))
    np.maximum.at(longest, inverse, e.whole[rows])
    for i in np.argsort(-ns, kind="stable").tolist():
        which, event = divmod(int(key[i]), kinds)
        # if all of them began before the statement's calls, their rests are what there is
        many = int(times[i]) or int(pieces[i])
        found[which].waits.append(
            WaitSum(ledger.name(event), many, float(ns[i]), float(longest[i]))
        )


def _add_plans(ledger: Ledger, owner: Integers, found: list[TracedStatement]) -> None:
    if not any(process.stream.rowsources for process in ledger.processes):
        return  # a table of all calls is large
    numbers = {
        (int(process), int(call)): i
        for i, (process, call) in enumerate(
            zip(ledger.call_process, ledger.calls["call"], strict=True)
        )
    }
    runs: dict[tuple[int, int], list[RowSources]] = defaultdict(list)
    planned: dict[int, dict[int, nodes.Node]] = {}
    for p, process in enumerate(ledger.processes):
        for run in process.stream.rowsources:
            statement = int(owner[numbers.get((p, run.call), -1)])
            if statement >= 0:
                # a plan's number is made from the plan: sessions share it
                runs[statement, run.plan].append(run)
                if run.plan not in planned and run.plan in process.stream.plans:
                    planned[run.plan] = nodes.of_plan(process.stream.plans[run.plan])
    for (which, plan), some in runs.items():
        found[which].plans.append(_plan(plan, some, planned.get(plan, {})))
    for one in found:
        one.plans.sort(key=lambda plan: -max((n.time_ns for n in plan.nodes), default=0))


def _plan(plan: int, runs: list[RowSources], planned: dict[int, nodes.Node]) -> PlanSum:
    own: dict[int, float] = defaultdict(float)
    for run in runs:
        for number, ns in nodes.own_times(run, planned).items():
            own[number] += ns
    found = []
    for number, sums in nodes.merged(runs).items():
        node = planned.get(number)
        found.append(
            NodeSum(
                node=number,
                depth=_depth(number, planned),
                kind=node.kind if node else "node",
                relation=node.relation if node else None,
                index=node.index if node else None,
                calls=sums.calls,
                rows=sums.rows,
                loops=sums.loops,
                time_ns=sums.time,
                lo_ns=sums.low,
                hi_ns=sums.high,
                own_ns=own.get(number, 0.0),
                exact=bool(sums.flags & EXACT),
            )
        )
    order = {number: i for i, number in enumerate(planned)}
    found.sort(key=lambda n: order.get(n.node, len(order)))
    return PlanSum(plan=plan, executions=len(runs), nodes=found)


def _depth(number: int, planned: dict[int, nodes.Node]) -> int:
    depth = 0
    while number in planned and planned[number].parent >= 0 and depth < 1000:
        number, depth = planned[number].parent, depth + 1
    return depth


def _add_errors(ledger: Ledger, owner: Integers, found: list[TracedStatement]) -> None:
    c = ledger.calls
    failed = (owner[:-1] >= 0) & (c["sqlstate"] != 0) & (c["flags"] & FAILED != 0)
    for i in np.flatnonzero(failed).tolist():
        name, errors = sqlstate(int(c["sqlstate"][i])), found[owner[i]].errors
        errors[name] = errors.get(name, 0) + 1


def _add_unparsed(
    ledger: Ledger, wanted: npt.NDArray[np.bool_], found: list[TracedStatement]
) -> None:
    """Errors that no call tells: of statements that could not be parsed, which made none."""
    by_text = {s.text: s for s in found if not s.recursive}
    for p in np.flatnonzero(wanted).tolist():
        process = ledger.processes[p]
        own = process.calls
        failed = (own["flags"] & FAILED != 0) & (own["depth"] == 0)
        counted = Counter(own["text"][failed].tolist())
        for error in process.stream.errors:
            counted[error.text] -= 1
            if counted[error.text] >= 0:
                continue
            text = process.stream.texts.get(error.text)
            if text is None or text.suppressed:
                continue
            name = normalised(text.text)
            if name not in by_text:
                by_text[name] = TracedStatement(name, text.query_id, False)
                found.append(by_text[name])
            errors = by_text[name].errors
            errors[error.sqlstate] = errors.get(error.sqlstate, 0) + 1
