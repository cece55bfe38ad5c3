"""A fleet's weighing estimated again from its raw data: `pgtare fleet report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgtare.errors import UsageError
from pgtare.weighing.fleet.combination import combine_servers
from pgtare.weighing.fleet.documents import FleetWeighing
from pgtare.weighing.fleet.inventory_labels import read_records
from pgtare.weighing.fleet.local_processes import in_processes, in_this_process
from pgtare.weighing.fleet.prefix import open_prefix
from pgtare.weighing.fleet.raw_data import LeftOut
from pgtare.weighing.fleet.server_task import Progress, ServerOutcome, ServerTask


@dataclass(frozen=True)
class Workers:
    """Where to estimate: in processes of this machine, or on the cluster of a Dask scheduler."""

    processes: int = 1
    scheduler: str | None = None

    def estimate(self, tasks: Sequence[ServerTask], progress: Progress) -> list[ServerOutcome]:
        """The outcomes, in the order of the tasks."""
        if self.scheduler is not None and tasks:
            from pgtare.weighing.fleet.dask_cluster import on_cluster

            return on_cluster(tasks, self.scheduler, progress)
        if self.processes > 1 and len(tasks) > 1:
            return in_processes(tasks, self.processes, progress)
        return in_this_process(tasks, progress)


def _silent(done: int, words: str) -> None:
    pass


class Reestimation:
    """The servers of a prefix, which are listed at once, and estimated by `run`.

    Raises UsageError if there is no fleet weighing at the prefix.
    """

    def __init__(self, prefix: str, margin: float | None = None) -> None:
        self.margin = margin
        self.data = open_prefix(prefix)
        self.records = read_records(self.data)
        self.listing = self.data.listing()

    def run(self, workers: Workers, progress: Progress = _silent) -> FleetWeighing:
        """The fleet's result. A server whose data are damaged is left out of it, by name.

        Raises MeasurementError if no server is left, or the workers fail.
        """
        tasks = [ServerTask(self.data, name, self.margin) for name in self.listing.servers]
        outcomes = workers.estimate(tasks, progress)
        damaged = [LeftOut(one.server, one.reason) for one in outcomes if one.figures is None]
        return combine_servers(
            [one.figures for one in outcomes if one.figures is not None],
            [*self.listing.left_out, *damaged],
            self.records,
            self.margin,
        )


def report(
    prefix: str, margin: float | None = None, workers: Workers | None = None
) -> FleetWeighing:
    """A fleet's result from its raw data, by default in this process."""
    return Reestimation(prefix, margin).run(workers or Workers())


def check_workers(processes: int, scheduler: str | None) -> Workers:
    """What --processes and --scheduler request. Raises UsageError."""
    if processes < 1:
        raise UsageError("--processes: give a number of at least 1")
    if scheduler is not None and processes > 1:
        raise UsageError("--processes are of this machine, --scheduler names a cluster: choose one")
    return Workers(processes, scheduler)
