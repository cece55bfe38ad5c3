"""Estimates servers in processes of this machine; each has the data of one server at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from pgtare.errors import MeasurementError
from pgtare.interrupt import INTERRUPTED
from pgtare.weighing.fleet.server_task import Progress, ServerOutcome, ServerTask, estimate


def in_this_process(tasks: Sequence[ServerTask], progress: Progress) -> list[ServerOutcome]:
    """One server after the other."""
    outcomes = []
    for done, task in enumerate(tasks):
        progress(done, "1 process")
        outcomes.append(estimate(task))
    return outcomes


def in_processes(
    tasks: Sequence[ServerTask], processes: int, progress: Progress
) -> list[ServerOutcome]:
    """Several servers at once, in new processes; outcomes in the order of the tasks.

    Raises MeasurementError if one of the processes is killed.
    """
    # a fork of a process in which libraries have threads may hang
    context = multiprocessing.get_context("spawn")
    number = min(processes, len(tasks))
    words = f"{number} processes"
    with ProcessPoolExecutor(number, mp_context=context, initializer=_begin) as pool:
        try:
            futures = [pool.submit(estimate, task) for task in tasks]
            left: set[Future[ServerOutcome]] = set(futures)
            while left:
                progress(len(futures) - len(left), words)
                done, left = wait(left, timeout=1, return_when=FIRST_COMPLETED)
                for one in done:
                    one.result()  # an error ends it all at once
            return [one.result() for one in futures]
        except BrokenProcessPool as ex:
            raise MeasurementError(
                "a process that estimated a server was killed, perhaps because memory ran out: "
                "give fewer --processes"
            ) from ex
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _begin() -> None:
    """Ctrl-C reaches all processes of a terminal; the first one says so for all."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
