"""A fleet's weighing estimated again from its raw data: `pgtare fleet report`."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import MeasurementError, PgtareError
from pgtare.interrupt import INTERRUPTED
from pgtare.kit.interpreter import spawning
from pgtare.weighing.fleet import raw_data
from pgtare.weighing.fleet.combination import combine_servers
from pgtare.weighing.fleet.documents import FleetWeighing
from pgtare.weighing.fleet.raw_data import SERVERS, LeftOut
from pgtare.weighing.fleet.server_estimate import ServerFigures, estimate_server

#: Called with the number of servers that are done, and words on where the work runs.
Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class _Task:
    """The servers of one fleet to estimate again; it can be sent to another process.

    margin: for their own verdicts, as a share; None: as before.
    """

    prefix: Path
    margin: float | None

    def estimate(self, server: str) -> ServerFigures | LeftOut:
        """Figures, or why there are none: data that are damaged are an outcome.

        What has nothing to do with the data is a MeasurementError, so that no server is left out
        because of it: too little memory, for example.
        """
        directory = self.prefix / SERVERS / server
        try:
            return estimate_server(server, directory, self.margin)
        except MeasurementError:
            raise
        except PgtareError as ex:
            return LeftOut(server, str(ex))
        except MemoryError as ex:
            raise MeasurementError(
                f"{directory} needs more memory than there is: give fewer --processes, or a "
                "machine with more"
            ) from ex


class Reestimation:
    """The servers of a prefix, which are listed at once, and estimated by `run`.

    Raises UsageError if there is no fleet weighing at the prefix.
    """

    def __init__(self, prefix: Path, margin: float | None = None) -> None:
        self.prefix, self.margin = prefix, margin
        self.records = raw_data.read_records(prefix)
        self.listing = raw_data.listing(prefix)

    def run(
        self, processes: int = 1, progress: Progress = lambda done, words: None
    ) -> FleetWeighing:
        """The fleet's result. A server whose data are damaged is left out of it, by name.

        Raises MeasurementError if no server is left, or a process is killed.
        """
        task, servers = _Task(self.prefix, self.margin), self.listing.servers
        number = min(processes, len(servers))
        words = "1 process" if number <= 1 else f"{number} processes"
        outcomes = []
        progress(0, words)
        for outcome in (
            map(task.estimate, servers) if number <= 1 else _in_processes(task, servers, number)
        ):
            outcomes.append(outcome)
            progress(len(outcomes), words)
        return combine_servers(
            [one for one in outcomes if isinstance(one, ServerFigures)],
            [*self.listing.left_out, *(one for one in outcomes if isinstance(one, LeftOut))],
            self.records,
            self.margin,
        )


def _in_processes(
    task: _Task, servers: tuple[str, ...], number: int
) -> Iterator[ServerFigures | LeftOut]:
    """Several servers at once, in new processes; outcomes in the order of the servers."""
    # a fork of a process in which libraries have threads may hang
    context = multiprocessing.get_context("spawn")
    with (
        spawning(),
        ProcessPoolExecutor(number, mp_context=context, initializer=_begin) as pool,
    ):
        try:
            yield from pool.map(task.estimate, servers)
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


def report(prefix: Path, margin: float | None = None) -> FleetWeighing:
    """A fleet's result from its raw data, in this process."""
    return Reestimation(prefix, margin).run()
