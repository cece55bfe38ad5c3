"""A trace as Parquet files or JSON lines for other tools; docs/trace-format.md has the columns."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pgtare.errors import UsageError
from pgtare.kit import artefact, files
from pgtare.observing.trace.analysis.ledger import Ledger
from pgtare.observing.trace.analysis.plan_nodes import of_plan
from pgtare.observing.trace.file.records import (
    ABORT,
    BEGIN,
    BUFFERS,
    COMMITTED,
    PREPARE,
    SUBABORT,
    call_name,
    sqlstate,
)

Format = Literal["parquet", "jsonl"]
_ROWS = 1 << 16
_EVENTS = {
    BEGIN: "begin",
    COMMITTED: "commit",
    ABORT: "abort",
    PREPARE: "prepare",
    SUBABORT: "subtransaction abort",
}

Columns = dict[str, np.ndarray[Any, Any]]


def check(directory: Path, format_: Format) -> None:
    """Raise UsageError if something is there already.

    Parquet needs a package that not everybody has: ModuleNotFoundError.
    """
    if format_ == "parquet":
        import pyarrow  # noqa: F401  # before anything is read that is to be written
    files.check_directory(directory)
    artefact.check_new(directory, renamed=False)


def write(ledger: Ledger, directory: Path, format_: Format) -> dict[str, int]:
    """One file for each table, in a new directory; how many rows each has.

    Raises UsageError if the directory cannot be used, MeasurementError if a file cannot be
    written; then, and if it is interrupted, none of them stays.
    """
    check(directory, format_)
    made = not directory.exists()
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as ex:
        raise UsageError(f"{directory} cannot be made: {ex.strerror}") from ex
    try:
        return _write_tables(ledger, directory, format_)
    except BaseException:
        _remove(directory, format_, made=made)
        raise


def _write_tables(ledger: Ledger, directory: Path, format_: str) -> dict[str, int]:
    written: dict[str, int] = {}
    for name, columns in tables(ledger).items():
        rows = len(next(iter(columns.values())))
        if not rows:
            continue
        path = directory / f"{name}.{format_}"
        try:
            if format_ == "parquet":
                write_parquet(path, columns)
            else:
                private = functools.partial(os.open, mode=0o600)
                with open(path, "x", encoding="utf-8", opener=private) as file:
                    file.writelines(_lines(columns, rows))
        except OSError as ex:
            raise files.failure(f"{path} could not be written", ex) from ex
        written[path.name] = rows
    return written


def _remove(directory: Path, format_: str, *, made: bool) -> None:
    """Leave nothing of an export, which would look complete. made: the directory is ours, too."""
    with contextlib.suppress(OSError):  # what ended the export is the error to report
        for path in directory.glob(f"*.{format_}"):  # it was empty
            path.unlink()
        if made:
            directory.rmdir()


def write_parquet(path: Path, columns: Columns) -> None:
    """Write equally long columns, whole or not at all, synced, for the owner only.

    Raises OSError with the system's number of the cause.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with files.staged(path) as staging, staging.open("wb") as file:
        pq.write_table(pa.table(columns), file, compression="zstd")


def _lines(columns: Columns, rows: int) -> Iterator[str]:
    for begin in range(0, rows, _ROWS):
        some = {name: values[begin : begin + _ROWS].tolist() for name, values in columns.items()}
        for row in zip(*some.values(), strict=True):
            yield json.dumps(dict(zip(some, row, strict=True)), ensure_ascii=False) + "\n"


def tables(ledger: Ledger) -> dict[str, Columns]:
    """Every table by name; times are ns since 1970, lengths ns, `process` numbers sessions."""
    return {
        "processes": _processes(ledger),
        "calls": _calls(ledger),
        "waits": _waits(ledger),
        "bookings": _bookings(ledger),
        "requests": _requests(ledger),
        "transactions": _transactions(ledger),
        "plans": _plans(ledger),
        "rowsources": _rowsources(ledger),
        "errors": _errors(ledger),
        "binds": _binds(ledger),
    }


def _texts(values: list[str | None]) -> np.ndarray[Any, Any]:
    return np.array([value or "" for value in values], object)


def _ints(values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.int64)


def _unsigned(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.uint64)


def _in_bounds(number: int) -> int:
    """Numbers in JSON have no limit."""
    return max(min(number, 2**31), -1)


def _table(
    rows: Sequence[tuple[Any, ...]], /, **columns: Callable[[Any], np.ndarray[Any, Any]]
) -> Columns:
    """The columns of rows, each made by its function."""
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    return {name: of(list(v)) for (name, of), v in zip(columns.items(), values, strict=True)}


def _processes(ledger: Ledger) -> Columns:
    rows = [
        (i, r.pid, r.leader_pid or 0, r.user, r.database, r.application, r.client, p.begin, p.end)
        for i, p, r in ((i, p, p.ring) for i, p in enumerate(ledger.processes))
    ]
    numbers = {"process": _ints, "pid": _ints, "leader_pid": _ints}
    names = dict.fromkeys(("user", "database", "application", "client"), _texts)
    return _table(rows, **numbers, **names, begin=_ints, end=_ints)


def _calls(ledger: Ledger) -> Columns:
    c = ledger.calls
    text, buffers = [], np.zeros((len(c), len(BUFFERS)), np.int64)
    for i, process in enumerate(ledger.call_process.tolist()):
        stream = ledger.processes[process].stream
        found = stream.texts.get(int(c["text"][i]))
        stated = ledger.trace.texts.get(int(c["query_id"][i]))
        text.append(found.text if found else stated)
        counted = stream.buffers.get(int(c["call"][i]))
        if counted:
            buffers[i] = np.minimum(np.array(counted, np.float64), 2.0**62).astype(np.int64)
    return {
        "process": ledger.call_process,
        "call": c["call"],
        "parent": c["parent"],
        "execution": c["execution"],
        "depth": _ints(c["depth"]),
        "kind": _texts([call_name(kind) for kind in c["kind"].tolist()]),
        "text": _texts(text),
        "query_id": c["query_id"],
        "plan": c["plan"],
        "start": c["start"],
        "end": c["end"],
        "busy": c["busy"],
        "cpu_so_far": c["cpu"],
        "rows": c["rows"],
        "failed": _ints(c["flags"] & 1),
        "sqlstate": _texts([sqlstate(s) for s in c["sqlstate"].tolist()]),
        **{name: buffers[:, i] for i, name in enumerate(BUFFERS)},
    }


def _waits(ledger: Ledger) -> Columns:
    parts = [p.waits for p in ledger.processes]

    def joined(name: str) -> np.ndarray[Any, Any]:
        return np.concatenate([_ints([]), *(getattr(waits, name) for waits in parts)])

    return {
        "process": np.repeat(_ints(range(len(parts))), [len(w.event) for w in parts]),
        "event": _names(ledger, joined("event")),
        **{name: joined(name) for name in ("start", "length", "calls")},
    }


def _names(ledger: Ledger, components: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    met, which = np.unique(components, return_inverse=True)
    return _texts([ledger.name(int(c)) for c in met])[np.asarray(which).ravel()]


def _bookings(ledger: Ledger) -> Columns:
    e = ledger.entries
    numbers = np.append(ledger.calls["call"], 0)
    return {
        "process": e.process,
        "call": numbers[e.call],
        "top_call": numbers[e.top],
        "component": _names(ledger, e.component),
        "ns": e.ns,
        "times": e.times,
    }


def _requests(ledger: Ledger) -> Columns:
    spans = [p.requests for p in ledger.processes]
    joined = np.concatenate(spans) if spans else np.zeros((0, 2), np.int64)
    return {
        "process": np.repeat(_ints(range(len(spans))), [len(s) for s in spans]),
        "start": joined[:, 0],
        "end": joined[:, 1],
    }


def _transactions(ledger: Ledger) -> Columns:
    rows = [
        (i, _EVENTS.get(event), xid, p.zero + start, p.zero + when)
        for i, p in enumerate(ledger.processes)
        for event, when, xid, start in p.stream.transactions.tolist()
    ]
    return _table(rows, process=_ints, event=_texts, xid=_unsigned, start=_ints, when=_ints)


def _plans(ledger: Ledger) -> Columns:
    """Each plan once, by node; sessions share the numbers of their plans."""
    found = {plan: raw for p in ledger.processes for plan, raw in p.stream.plans.items()}
    rows = [
        (plan, _in_bounds(node.id), _in_bounds(node.parent), node.kind, node.relation, node.index)
        for plan, raw in found.items()
        for node in of_plan(raw).values()
    ]
    numbers = {"plan": _unsigned, "node": _ints, "parent": _ints}
    return _table(rows, **numbers, kind=_texts, relation=_texts, index=_texts)


def _rowsources(ledger: Ledger) -> Columns:
    limit = 2**63 - 1
    names = ("node", "flags", "calls", "rows", "loops", "time", "low", "high")
    rows = [
        (
            *(i, run.plan, min(run.call, limit), run.sampling),
            *(min(getattr(node, name), limit) for name in names),
        )
        for i, p in enumerate(ledger.processes)
        for run in p.stream.rowsources
        for node in run.nodes
    ]
    numbers = dict.fromkeys(("call", "sampling", *names), _ints)
    return _table(rows, process=_ints, plan=_unsigned, **numbers)


def _errors(ledger: Ledger) -> Columns:
    rows = [
        (i, p.zero + e.when, e.call, e.sqlstate, e.severity, e.message)
        for i, p in enumerate(ledger.processes)
        for e in p.stream.errors
    ]
    numbers = {"process": _ints, "when": _ints, "call": _ints}
    return _table(rows, **numbers, sqlstate=_texts, severity=_texts, message=_texts)


def _binds(ledger: Ledger) -> Columns:
    rows = [
        (i, call, n, bind.type, bind.state, bind.length, bind.data.hex())
        for i, p in enumerate(ledger.processes)
        for call, binds in p.stream.binds.items()
        for n, bind in enumerate(binds, 1)
    ]
    numbers = {"process": _ints, "call": _ints, "parameter": _ints, "type": _ints}
    return _table(rows, **numbers, state=_texts, length=_ints, hex=_texts)
