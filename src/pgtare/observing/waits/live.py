"""Watches a server: one profile after another, each over an interval."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from pgtare.postgres import run_queue
from pgtare.postgres.wait_counters.rates import (
    CountersReset,
    CpuSamples,
    ProcessUnread,
    WaitsProfile,
    carried_over,
    elapsed_s,
    profile,
)
from pgtare.postgres.wait_counters.reader import Reader

#: How often sessions on CPU are looked for, in s; waits are counted, not sampled.
SAMPLE_S = 0.05
_SHOWN_TEXTS = 50


def watch(
    reader: Reader, interval_s: float, iterations: int | None, *, idle: bool, background: bool
) -> Iterator[WaitsProfile]:
    """A profile after each interval; without end if iterations is None.

    An interval in which counters were reset, or of which an end lacks a process, is left out; the
    next profile says so. Raises ProcessUnread if both ends lack one.
    """
    here = run_queue.is_local(reader.conn.info.host, reader.pid)
    before = reader.snapshot(texts=False)
    notes: tuple[str, ...] = ()
    while iterations is None or iterations > 0:
        queue = run_queue.run_queue_ns(c.pid for c in before.clients or ()) if here else {}
        samples = _sample(reader, interval_s)
        after = reader.snapshot(texts=False)
        waited = _queued(queue, elapsed_s(before, after))
        try:
            found = profile(
                before, after, samples, run_queue=waited, idle=idle, background=background
            )
        except CountersReset:
            before, notes = after, ("counters were reset: the figures begin after that",)
            continue
        except ProcessUnread:
            if before.unread and after.unread:
                raise
            before, notes = after, ("a process was stopped: the figures begin after that",)
            continue
        texts = reader.texts(rate.statement.query_id for rate in found.statements[:_SHOWN_TEXTS])
        statements = tuple(
            rate.model_copy(update={"text": texts.get(rate.statement.query_id)})
            for rate in found.statements
        )
        yield found.model_copy(update={"statements": statements, "notes": (*notes, *found.notes)})
        before, notes = carried_over(before, after), ()
        iterations = None if iterations is None else iterations - 1


def _queued(before: dict[int, int], seconds: float) -> float | None:
    """Client sessions that waited for a processor since, on average; None: it is not known."""
    if not before:
        return None
    after = run_queue.run_queue_ns(before)
    return sum(max(0, ns - before[pid]) for pid, ns in after.items()) / 1e9 / seconds


def _sample(reader: Reader, seconds: float) -> CpuSamples | None:
    """Processes on CPU, looked at again and again for some seconds.

    None, after that time, if others' sessions cannot be seen and would count as idle.
    """
    if not reader.sees_all:
        time.sleep(seconds)
        return None
    end = time.monotonic() + seconds
    step = min(SAMPLE_S, seconds / 5)
    seen: Counter[int] = Counter()
    looks = 0
    while True:
        seen.update(reader.on_cpu())
        looks += 1
        left = end - time.monotonic()
        if left <= 0:
            return CpuSamples(looks, dict(seen))
        time.sleep(min(step, left))
