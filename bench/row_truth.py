"""How often a row source's interval holds the time that was really spent in the node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.row_loads import Connection, Load, RowSource, found_in, idled, root_of, run


@dataclass
class Truth:
    """What was seen of one node of one load, one entry a repetition.

    slack: how far the truth may lie from the middle of its range, as a share of that middle.
    """

    node: str
    share: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    width: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)
    slack: list[float] = field(default_factory=list)

    @property
    def coverage(self) -> float:
        """Of the repetitions, in how many the interval held the truth."""
        return sum(self.covered) / len(self.covered)


def repeat(
    connection: Connection, load: Load, every: int, repetitions: int
) -> dict[tuple[str, str | None], Truth]:
    """Run a load again and again.

    The truth is known except for what the nodes' own work takes: all of it together is the exact
    time of the root less all delays, and a node's is between nothing and that. An interval covers
    if it meets this range; the error is that against its middle.
    """
    truths = {key: Truth(" ".join(filter(None, key))) for key in load.nodes}
    everywhere = sorted({place for places in load.nodes.values() for place in places})
    for _ in range(repetitions):
        connection.execute("SELECT idled_reset()")
        sources = run(connection, load.query, every, load.settings)
        whole = root_of(sources).time
        own = max(whole - idled(connection, everywhere), 0.0)
        for key, places in load.nodes.items():
            add(truths[key], found_in(sources, *key), idled(connection, places), own, whole)
    return truths


def add(truth: Truth, source: RowSource, delays: float, own: float, whole: float) -> None:
    """Compare one interval with the truth."""
    low, time, high = source.low, source.time, source.high
    middle = delays + own / 2
    # what the conversion of the clock's ticks may be off
    rounding = 1e-4 * middle
    truth.share.append(middle / whole)
    truth.error.append(time / middle - 1)
    truth.width.append((high - low) / 2 / middle)
    truth.slack.append(own / 2 / middle)
    truth.covered.append(low <= delays + own + rounding and high >= delays - rounding)


def timed_by_explain(connection: Connection, load: Load) -> dict[tuple[str, str | None], float]:
    """The relative error of EXPLAIN (ANALYZE, TIMING) on the same nodes, in one repetition."""
    everywhere = sorted({place for places in load.nodes.values() for place in places})
    with connection.transaction():
        if load.settings:
            connection.execute(load.settings.encode())
        connection.execute("SELECT idled_reset()")
        ((plan,),) = connection.execute(
            f"EXPLAIN (ANALYZE, TIMING, FORMAT json) {load.query}".encode()
        ).fetchall()
    root = plan[0]["Plan"]
    own = max(root["Actual Total Time"] - idled(connection, everywhere), 0.0)
    nodes = list(walk(root))
    errors = {}
    for kind, relation in load.nodes:
        (node,) = [
            n for n in nodes if n["Node Type"] == kind and relation in (None, n.get("Alias"))
        ]
        middle = idled(connection, load.nodes[kind, relation]) + own / 2
        errors[kind, relation] = node["Actual Total Time"] * node["Actual Loops"] / middle - 1
    return errors


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A node of a plan in JSON, and all below it."""
    yield node
    for child in node.get("Plans", []):
        yield from walk(child)
