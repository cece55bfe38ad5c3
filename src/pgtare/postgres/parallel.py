"""The same job on many servers at once, each with a limit of time: one may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import psycopg

from pgtare.errors import PgtareError
from pgtare.postgres.own_session import first_line

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class JobOutcome(Generic[Answer]):
    """What a job gave: an answer, or in words why there is none; late if it was given up."""

    answer: Answer | None = None
    problem: str = ""
    late: bool = False


def for_each(
    names: Iterable[str], job: Callable[[str], Answer], *, at_once: int, limit_s: float
) -> dict[str, JobOutcome[Answer]]:
    """The outcome of job(name) for each name, in their order.

    At most `at_once` run at a time. One that takes longer than limit_s is given up: its thread is
    left to itself, and does not keep the process from ending. Raises what a job raised, unless that
    is a PgtareError or the server's error.
    """
    failures: list[BaseException] = []
    found: dict[str, JobOutcome[Answer]] = {}
    waiting = list(names)
    order = list(waiting)
    running: dict[str, tuple[threading.Thread, float]] = {}

    def work(name: str) -> None:
        try:
            done = JobOutcome(job(name))
        except (PgtareError, psycopg.Error) as ex:
            done = JobOutcome(problem=first_line(ex))
        except BaseException as ex:
            failures.append(ex)
            return
        found.setdefault(name, done)

    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            thread = threading.Thread(target=work, args=(name,), daemon=True)
            running[name] = thread, time.monotonic() + limit_s
            thread.start()
        for name, (thread, deadline) in list(running.items()):
            thread.join(0.01)
            if not thread.is_alive():
                del running[name]
            elif time.monotonic() > deadline:
                problem = f"no answer within {limit_s:g} s"
                found.setdefault(name, JobOutcome(problem=problem, late=True))
                del running[name]
        if failures:
            raise failures[0]
    return {name: found[name] for name in order}
