"""Rows that a node fetches from scattered memory, where a fenced clock lays each stall bare.

clock_gettime and RDTSCP wait until all earlier loads are done. A sort that returns its rows in an
order that memory does not have misses the cache at each of them; without the clock the processor
works on past the miss, with it the misses come one after the other. Whether the order really is
scattered no plan tells, so these counts are ranges down to none.
"""

from __future__ import annotations

from collections.abc import Mapping

from pgtare.seeing.clock.node_calls import Calls, Range

#: Below this the rows stay in a core's own cache (level 2: 1 or 2 MB on current servers), in kB.
CACHE_KB = 2048.0
#: What a tuple takes in memory besides its data, in bytes.
_TUPLE_BYTES = 48
#: A row of one short column is sorted without being fetched at all.
_DATUM_BYTES = 8
_SIDES = ("Outer", "Inner")

_NONE = Range.exactly(0)


def stalls(calls: Calls, below: Mapping[int, Calls]) -> Range:
    """Stalls that appear when this node's calls are timed, in all processes.

    below: the calls of its children, by id() of the node. The likely shares were measured (`make
    bench-explain`), the bounds are what could be.
    """
    node = calls.node
    if calls.loops == 0:
        return _NONE
    if node.kind == "Sort" and _sorted_in_memory(calls):
        return Range(0, calls.rows, calls.rows)
    if node.kind == "Aggregate" and node.text("Strategy") == "Hashed" and _large(calls):
        return Range(0, 0.5 * calls.rows, calls.rows)
    if node.kind == "Hash Join":
        sides = [below[id(child)] for child in node.children if id(child) in below]
        if any(side.node.kind == "Hash" and _large(side) for side in sides):
            # each row is put into the table or looked up there
            rows = sum(side.rows for side in sides if side.node.relationship in _SIDES)
            return Range(0, 0.5 * rows, rows)
    if node.kind == "Index Scan" and node.relationship == "Inner" and _large(calls):
        # the heap, and the leaf of the index
        return Range(0, calls.rows, 2 * calls.rows)
    return _NONE


def _sorted_in_memory(calls: Calls) -> bool:
    node = calls.node
    columns = node.properties.get("Output")
    single = len(columns) == 1 if isinstance(columns, list) else True
    if single and node.number("Plan Width") <= _DATUM_BYTES:
        return False
    if "Sort Method" in node.properties:
        in_memory = node.text("Sort Space Type") == "Memory"
        return in_memory and node.number("Sort Space Used") > CACHE_KB
    return _large(calls)


def _large(calls: Calls) -> bool:
    """Whether what the node keeps, or fetches, outgrows the cache."""
    node = calls.node
    kept = node.number("Peak Memory Usage")
    # looked up in turn, the rows of all loops are what the cache would have to hold
    loops = 1 if node.kind == "Index Scan" else max(calls.loops, 1)
    fetched = calls.rows / loops * (node.number("Plan Width") + _TUPLE_BYTES) / 1024
    return (kept or fetched) > CACHE_KB
