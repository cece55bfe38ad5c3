"""The work on one server, wherever it is done: here, in another process, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pgtare
from pgtare.errors import MeasurementError, PgtareError
from pgtare.weighing.fleet.raw_data import RawData
from pgtare.weighing.fleet.server_estimate import ServerFigures, estimate_server

#: Called with the number of servers that are done, and words on where the work runs.
Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class ServerTask:
    """A server to estimate again. margin: for its own verdicts, as a share; None: as before."""

    data: RawData
    server: str
    margin: float | None = None
    pgtare_version: str = pgtare.__version__


@dataclass(frozen=True)
class ServerOutcome:
    """The outcome of a task: figures, or why there are none."""

    server: str
    figures: ServerFigures | None
    reason: str = ""


def estimate(task: ServerTask) -> ServerOutcome:
    """Estimate a server. Data that are damaged are an outcome.

    What has nothing to do with the data is an error, so that no server is left out because of it:
    MeasurementError if a store does not answer, or memory is too small.
    """
    if task.pgtare_version != pgtare.__version__:
        raise MeasurementError(
            f"pgtare {task.pgtare_version} sent the work and pgtare {pgtare.__version__} is to do "
            "it: install one version everywhere"
        )
    try:
        with task.data.fetched(task.server) as directory:
            try:
                figures = estimate_server(task.server, directory, task.margin)
            except PgtareError as ex:
                if isinstance(ex, MeasurementError):
                    raise
                place = task.data.place(task.server)
                return ServerOutcome(task.server, None, str(ex).replace(str(directory), place))
    except MemoryError as ex:
        raise MeasurementError(
            f"{task.data.place(task.server)} needs more memory than there is: give fewer "
            "--processes, or a machine with more"
        ) from ex
    return ServerOutcome(task.server, figures)
