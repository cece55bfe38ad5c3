"""Time by plan node: the time of an execution, divided as its row sources measured their nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.observing.trace.analysis.ledger import CLIENT, MISSING, Ledger, LedgerEntries
from pgtare.observing.trace.file.records import (
    EXACT,
    UNTIMED,
    WORKERS,
    CallKind,
    NodeRun,
    RowSources,
    call_name,
)

NOT_BY_NODE = "not in a measured node"
#: The kind of nodes that change rows.
_CHANGES = "ModifyTable"
#: What is added up over several executions.
_SUMMED = ("calls", "rows", "loops", "time", "low", "high")

#: Names, and of each part of the time: the number of its name, its ns and how often it counts.
Bookings = tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Node:
    """A node of a plan as it was planned."""

    id: int
    parent: int
    kind: str
    relation: str | None
    index: str | None
    within: tuple[int, ...] | None = None
    """Of an init plan's root: the nodes in whose calls it runs. Others run in their parent's."""


def of_plan(plan: list[dict[str, Any]]) -> dict[int, Node]:
    """The nodes of a plan by identifier; what is not understood is left out."""
    found = {}
    for raw in plan:
        number, parent = raw.get("id"), raw.get("parent", -1)
        if isinstance(number, int) and isinstance(parent, int):
            texts = {k: str(raw[k]) for k in ("relation", "index") if raw.get(k)}
            within = raw.get("within")
            found[number] = Node(
                number,
                parent,
                str(raw.get("kind", "?")),
                texts.get("relation"),
                texts.get("index"),
                tuple(n for n in within if isinstance(n, int))
                if isinstance(within, list)
                else None,
            )
    return found


def kind_label(node: Node) -> str:
    """A node by kind and relation: Index Scan on public.t."""
    return f"{node.kind} on {node.relation}" if node.relation else node.kind


def relation_label(node: Node) -> str:
    """The relation a node reads, or that it reads none."""
    return node.relation or "no relation"


def own_times(run: RowSources, plan: dict[int, Node]) -> dict[int, float]:
    """The time of each node without that of the nodes that ran in its calls, ns; none below 0.

    An init plan that several nodes need ran in the calls of one of them, and nothing tells in
    which: its time is taken from all, in proportion to their own.
    """
    times = {node.node: float(max(node.time, 0)) for node in run.nodes if not node.flags & UNTIMED}
    own = dict(times)

    def timed(number: int) -> int:
        steps = 0
        while number >= 0 and number not in times and number in plan and steps < len(plan):
            number, steps = plan[number].parent, steps + 1
        return number

    asked: list[tuple[float, set[int]]] = []
    for number, time in times.items():
        node = plan.get(number)
        if node is not None and node.within is not None:
            asked.append((time, {timed(asker) for asker in node.within} & own.keys() - {number}))
        elif node is not None and (above := timed(node.parent)) in own:
            own[above] -= time
    for time, askers in asked:
        most = sum(max(own[asker], 0.0) for asker in askers)
        for asker in askers:
            own[asker] -= min(time, most) * max(own[asker], 0.0) / most if most > 0 else 0.0
    return {number: max(time, 0.0) for number, time in own.items()}


def merged(runs: list[RowSources]) -> dict[int, NodeRun]:
    """The nodes of several executions of one plan, added up."""
    sums: dict[int, NodeRun] = {}
    for run in runs:
        for node in run.nodes:
            have = sums.get(node.node)
            if have is None:
                sums[node.node] = node
                continue
            added = {name: getattr(have, name) + getattr(node, name) for name in _SUMMED}
            sums[node.node] = replace(have, flags=_joined(have.flags, node.flags), **added)
    return sums


def _joined(flags: int, more: int) -> int:
    """Of several executions: exact only if each is, and untimed only if none was timed."""
    both = EXACT | UNTIMED
    return (flags & more & both) | ((flags | more) & ~both)


def _own_of(run: RowSources, plan: dict[int, Node], inner: float, most: float) -> dict[int, float]:
    """What the nodes took themselves, ns: without inner statements, and no more than `most`.

    Nothing tells in which node inner statements ran; triggers that fire at the end run in none, so
    of a plan that changes rows only what is too much is taken for theirs. What parallel workers did
    next to their leader gives way first.
    """
    own = own_times(run, plan)
    if not any(node.kind == _CHANGES for node in plan.values()):
        own = _lowered(own, sum(own.values()) - inner)
    parallel = {node.node for node in run.nodes if node.flags & WORKERS}
    leaders = sum(ns for number, ns in own.items() if number not in parallel)
    workers = sum(own.values()) - leaders
    scale = min(1.0, max(most - leaders, 0.0) / workers) if workers > 0 else 1.0
    return _lowered(
        {number: ns * scale if number in parallel else ns for number, ns in own.items()}, most
    )


def _lowered(own: dict[int, float], most: float) -> dict[int, float]:
    """No more than so much together: the longest give way first, to nothing if need be."""
    found, excess = dict(own), sum(own.values()) - max(most, 0.0)
    for number in sorted(own, key=lambda number: -own[number]):
        if excess <= 0:
            break
        given = min(found[number], excess)
        found[number] -= given
        excess -= given
    return found


def grouped(ledger: Ledger, entries: LedgerEntries, label: Callable[[Node], str]) -> Bookings:
    """All time, that of measured executions by node; it adds up to what was given.

    Time outside of executions is under the kind of its call. An execution counts once, with
    all its fetches, however many nodes have one label; calls that were not measured count as calls.
    """
    spent = np.bincount(
        entries.call[entries.call >= 0], entries.ns[entries.call >= 0], minlength=len(ledger.calls)
    )
    many = ledger.fetches()
    booked: list[tuple[str, float, int]] = []  # name, ns, and how often it counts

    def book_rest(call: int, ns: float) -> None:
        name = call_name(int(ledger.calls["kind"][call]))
        if ns > 1e-3:
            booked.append((f"{name}, {NOT_BY_NODE}", ns, int(many[call])))

    runs = {
        (i, run.call): run
        for i, process in enumerate(ledger.processes)
        for run in process.stream.rowsources
    }
    measured: dict[tuple[int, int], list[int]] = defaultdict(list)
    for call in np.flatnonzero(spent).tolist():
        execution = _execution(ledger, call, runs)
        if execution is None:
            book_rest(call, float(spent[call]))
        else:
            measured[execution].append(call)
    inner = _inner(ledger) if measured else np.zeros(0)
    for execution, calls in measured.items():
        run, process = runs[execution], ledger.processes[execution[0]]
        plan = of_plan(process.stream.plans.get(run.plan, []))
        took = float(spent[calls].sum())
        own = _own_of(run, plan, float(inner[calls].sum()), took)
        by_label: dict[str, float] = defaultdict(float)
        for number, ns in own.items():
            node = plan.get(number)
            by_label[label(node) if node else f"node {number}"] += ns
        begun = bool((ledger.calls["kind"][calls] != CallKind.FETCH).any())
        booked += [(name, ns, int(begun)) for name, ns in by_label.items()]
        left = 1.0 - sum(own.values()) / took
        for call in calls:
            book_rest(call, float(spent[call]) * left)
    outside = entries.call < 0
    for component, name in ((CLIENT, "client"), (MISSING, "not recorded")):
        ns = float(entries.ns[outside & (entries.component == component)].sum())
        booked.append((name, ns, 0))
    rest = outside & ~np.isin(entries.component, [CLIENT, MISSING])
    booked.append(("between calls", float(entries.ns[rest].sum()), 0))
    booked = [booking for booking in booked if booking[1] > 0]
    names = {name: i for i, name in enumerate(dict.fromkeys(name for name, _, _ in booked))}
    return (
        list(names),
        np.array([names[name] for name, _, _ in booked], np.int64),
        np.array([ns for _, ns, _ in booked], np.float64),
        np.array([count for *_, count in booked], np.int64),
    )


def _execution(
    ledger: Ledger, call: int, runs: dict[tuple[int, int], RowSources]
) -> tuple[int, int] | None:
    """The measured execution that a call is, or fetches from."""
    process = int(ledger.call_process[call])
    execution = process, int(ledger.calls["call"][call])
    if execution not in runs and ledger.calls["kind"][call] == CallKind.FETCH:
        execution = process, int(ledger.calls["execution"][call])
    return execution if execution in runs else None


def _inner(ledger: Ledger) -> npt.NDArray[np.float64]:
    """How long the calls within each call took, ns."""
    found, offset = np.zeros(len(ledger.calls)), 0
    for process in ledger.processes:
        calls = process.calls
        if len(calls):
            order = np.argsort(calls["call"], kind="stable")
            at = np.searchsorted(calls["call"][order], calls["parent"])
            outer = order[np.minimum(at, len(calls) - 1)]
            within = (calls["call"][outer] == calls["parent"]) & (calls["parent"] > 0)
            np.add.at(found, offset + outer[within], calls["busy"][within])
        offset += len(calls)
    return found
