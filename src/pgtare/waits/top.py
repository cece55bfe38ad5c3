"""Watches a server: one profile after another, each over an interval."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from pgtare.waits.model import Snapshot
from pgtare.waits.rates import Profile, profile
from pgtare.waits.reader import Reader

#: How often sessions on CPU are looked for, in s; waits are counted, not sampled.
SAMPLE_S = 0.05
_SHOWN_TEXTS = 50


def watch(
    reader: Reader, interval_s: float, iterations: int | None, *, idle: bool, background: bool
) -> Iterator[Profile]:
    """A profile after each interval; without end where iterations is None."""
    before = reader.snapshot(texts=False)
    while iterations is None or iterations > 0:
        on_cpu = _sample(reader, interval_s)
        after = reader.snapshot(texts=False)
        found = profile(before, after, on_cpu, idle=idle, background=background)
        texts = reader.texts(rate.statement.queryid for rate in found.statements[:_SHOWN_TEXTS])
        if texts:
            named = _with_texts(after, texts)
            found = profile(before, named, on_cpu, idle=idle, background=background)
        yield found
        before = after
        iterations = None if iterations is None else iterations - 1


def _with_texts(snapshot: Snapshot, texts: dict[int, str]) -> Snapshot:
    return snapshot.model_copy(update={"texts": texts})


def _sample(reader: Reader, seconds: float) -> dict[int, float] | None:
    """Sessions on CPU on average over some seconds, by query identifier.

    None, after that time, where others' sessions cannot be seen and would count as idle.
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
            return {queryid: n / looks for queryid, n in seen.items()}
        time.sleep(min(step, left))
