"""Notes about many sessions in few lines: some are named, the others counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

#: So many processes a note names.
NAMED = 10

T = TypeVar("T")


def some(found: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Those to be named, and the others: none, or two at least."""
    named = NAMED if len(found) > NAMED + 1 else len(found)
    return found[:named], found[named:]


def who(word: str, pids: Sequence[int]) -> str:
    """As in "sessions 4711, 4712 and 20 more"."""
    named, others = some(pids)
    more = f" and {len(others):,} more" if others else ""
    if len(pids) > 1:
        word += "es" if word.endswith("s") else "s"
    return f"{word} {', '.join(map(str, named))}{more}"


def alike(word: str, notes: Iterable[tuple[int, str]]) -> list[str]:
    """Notes by process: one that several have is given once."""
    by_text: dict[str, dict[int, None]] = defaultdict(dict)
    for pid, text in notes:
        by_text[text][pid] = None
    return [f"{who(word, list(pids))}: {text}" for text, pids in by_text.items()]


def amounts(found: Iterable[tuple[int, int]], what: str) -> list[str]:
    """Amounts summed up by process, the largest named, 0 left out. what: follows the amount."""
    by_pid: Counter[int] = Counter()
    for pid, amount in found:
        if amount:
            by_pid[pid] += amount
    named, others = some(by_pid.most_common())
    lines = [f"process {pid}: {amount:,} {what}" for pid, amount in named]
    if others:
        lines.append(f"{len(others):,} more processes: {sum(a for _, a in others):,} {what}")
    return lines
