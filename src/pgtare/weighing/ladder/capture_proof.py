"""What shows that the arms of a trial inside one server captured what their variants say."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import psycopg

from pgtare.errors import PgtareError
from pgtare.server.wait_counters.model import EventRow
from pgtare.server.wait_counters.reader import Reader, open_reader
from pgtare.weighing.ladder import evidence
from pgtare.weighing.ladder.bench import Serving

_SWITCHED = frozenset({"off", "stats", "trace"})
#: So many sessions looked at miss a level that every fourth transaction has once in 10⁷ trials.
_ENOUGH = 60


@dataclass
class Levels:
    """Looks at the load's sessions while a trial lasts: each of its levels must be met.

    captures: by arm, what its variant states.
    """

    captures: Mapping[str, str]
    serving: Serving
    _reader: Reader | None = None
    _first: tuple[EventRow, ...] = ()
    _seen: Counter[str] = field(default_factory=Counter)
    _rings: int = 0
    _trouble: str = ""

    @classmethod
    @contextlib.contextmanager
    def open(cls, captures: Mapping[str, str], serving: Serving) -> Iterator[Levels]:
        """With a session of its own if there is something to look at."""
        if not set(captures.values()) <= _SWITCHED:
            yield cls(captures, serving)
            return
        with open_reader(serving.cluster.dsn()) as reader:
            yield cls(captures, serving, reader, reader.events())

    def look(self) -> None:
        """Look once, unless enough has been seen."""
        if self._reader is None or self._trouble or self._seen.total() >= _ENOUGH:
            return
        try:
            for session in self._reader.sessions():
                if (session.application or "").startswith(evidence.LOAD_NAME):
                    self._seen[session.capture] += 1
            self._rings = max(self._rings, evidence.rings(self._reader))
        except (PgtareError, psycopg.Error, OSError) as ex:
            self._trouble = str(ex).strip() or type(ex).__name__

    def judge(self) -> tuple[dict[str, list[str]], list[str]]:
        """What shows it, by arm, and what speaks against it."""
        if self._reader is None:
            shown, against = evidence.judge_capture(self.serving, evidence.Halfway(), None)
            return {arm: shown for arm in self.captures}, against
        if lacking := evidence.lacking_calls(self._reader):
            return {}, [lacking]
        if self._trouble:
            return {}, [f"the views did not answer: {self._trouble}"]
        waits = evidence.waits_between(self._first, self._reader.events())
        return self._judge_levels(waits)

    def _judge_levels(self, waits: int) -> tuple[dict[str, list[str]], list[str]]:
        stated = set(self.captures.values())
        against = [
            f"{arm}: capture was never {level} in the load's sessions, in "
            f"{self._seen.total()} looks at them"
            for arm, level in self.captures.items()
            if not self._seen[level]
        ]
        against += [
            f"capture was {level} in the load's sessions, which no variant states"
            for level in sorted(self._seen.keys() - stated)
        ]
        if stated - {"off"} and not waits:
            against.append("no wait was counted")
        if "trace" in stated and not self._rings:
            against.append("no session has a trace ring")
        shown = {
            arm: [
                f"capture was {level} in {self._seen[level]} of {self._seen.total()} looks at the "
                f"load's sessions; all arms: {waits:,} waits counted"
            ]
            for arm, level in self.captures.items()
        }
        return shown, against
