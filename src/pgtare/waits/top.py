"""Watches a server: one profile after another, each over an interval."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pgtare.profile.model import Snapshot
from pgtare.profile.rates import CountersReset, Profile, counted_on_cpu, profile
from pgtare.profile.reader import Reader
from pgtare.waits import processor

#: How often sessions on CPU are looked for, in s; waits are counted, not sampled.
SAMPLE_S = 0.05
_SHOWN_TEXTS = 50


def watch(
    reader: Reader, interval_s: float, iterations: int | None, *, idle: bool, background: bool
) -> Iterator[Profile]:
    """A profile after each interval; without end where iterations is None.

    An interval in which counters were reset is left out; the next profile says so.
    """
    queue = _RunQueue(reader)
    before = reader.snapshot(texts=False)
    notes: tuple[str, ...] = ()
    while iterations is None or iterations > 0:
        queued = queue.begin(before)
        samples = _sample(reader, interval_s)
        after = reader.snapshot(texts=False)
        waited = queue.end(queued, (after.taken - before.taken).total_seconds())
        try:
            counted = counted_on_cpu(before, after)
            on_cpu = None if samples is None else _split(samples, counted)
            compare = partial(
                profile, before, on_cpu=on_cpu, run_queue=waited, idle=idle, background=background,
                on_cpu_by="sampled" if counted is None else "counted",
            )  # fmt: skip
            found = compare(after=after)
        except CountersReset:
            before, notes = after, ("counters were reset: the figures begin after that",)
            continue
        texts = reader.texts(rate.statement.queryid for rate in found.statements[:_SHOWN_TEXTS])
        if texts:
            found = compare(after=_with_texts(after, texts))
        yield replace(found, notes=(*notes, *found.notes))
        before, notes = after, ()
        iterations = None if iterations is None else iterations - 1


class _RunQueue:
    """Time that client sessions wait for a processor, where the kernel can be asked."""

    def __init__(self, reader: Reader) -> None:
        self.here = processor.is_local(reader.conn.info.host, reader.pid)

    def begin(self, snapshot: Snapshot) -> dict[int, int] | None:
        """The time of each client session so far; None where it is not known."""
        if not self.here or not snapshot.clients:
            return None
        return processor.run_queue_ns(c.pid for c in snapshot.clients) or None

    def end(self, before: dict[int, int] | None, seconds: float) -> float | None:
        """Sessions that waited for a processor since, on average."""
        if before is None:
            return None
        after = processor.run_queue_ns(before)
        return sum(max(0, ns - before[pid]) for pid, ns in after.items()) / 1e9 / seconds


def _split(samples: dict[tuple[bool, int], float], counted: float | None) -> dict[int, float]:
    """Sessions on CPU by query identifier: as counted, where it is, and split as sampled.

    Parallel workers come and go, so they are always sampled.
    """
    found: dict[int, float] = defaultdict(float)
    sampled = sum(n for (worker, _), n in samples.items() if not worker)
    for (worker, queryid), n in samples.items():
        factor = 1.0 if worker or counted is None else counted / sampled
        found[queryid] += n * factor
    if counted and not sampled:
        found[0] += counted
    return dict(found)


def _with_texts(snapshot: Snapshot, texts: dict[int, str]) -> Snapshot:
    return snapshot.model_copy(update={"texts": texts})


def _sample(reader: Reader, seconds: float) -> dict[tuple[bool, int], float] | None:
    """Processes on CPU on average over some seconds, by kind and query identifier.

    None, after that time, where others' sessions cannot be seen and would count as idle.
    """
    if not reader.sees_all:
        time.sleep(seconds)
        return None
    end = time.monotonic() + seconds
    step = min(SAMPLE_S, seconds / 5)
    seen: Counter[tuple[bool, int]] = Counter()
    looks = 0
    while True:
        seen.update(reader.on_cpu())
        looks += 1
        left = end - time.monotonic()
        if left <= 0:
            return {key: n / looks for key, n in seen.items()}
        time.sleep(min(step, left))
