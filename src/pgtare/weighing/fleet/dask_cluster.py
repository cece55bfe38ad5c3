"""Estimates servers on a Dask cluster that runs already: `--scheduler tcp://HOST:8786`.

A worker's process has the data of one server at a time, however many threads it has. If a worker is
killed, the scheduler gives its servers to others. What Dask adds is in this file alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.kit import numbers
from pgtare.weighing.fleet.server_task import Progress, ServerOutcome, ServerTask, estimate

if TYPE_CHECKING:
    from distributed import Client, Future

EXTRA = "pip install 'pgtare[dask]'"
#: How long a scheduler may take to answer, and a cluster may be without a worker.
_CONNECT_S = 10.0
_NO_WORKER_S = 60.0

_one_at_a_time = threading.Lock()


def on_cluster(
    tasks: Sequence[ServerTask], scheduler: str, progress: Progress
) -> list[ServerOutcome]:
    """Outcomes in the order of the tasks.

    Raises UsageError if no scheduler answers at that address, or it has no worker, and
    MeasurementError if the cluster fails.
    """
    client = _connected(scheduler)
    try:
        if not _workers(client):
            raise UsageError(
                f"the cluster at {scheduler} has no worker: start one by "
                f"`dask worker {scheduler} --nthreads 1`"
            )
        futures = client.map(_on_worker, tasks, pure=False)
        try:
            return _collected(client, scheduler, futures, progress)
        finally:
            client.cancel(futures, force=True)
    finally:
        client.close()


def _connected(scheduler: str) -> Client:
    try:
        from distributed import Client
    except ImportError as ex:
        raise UsageError(f"--scheduler needs more packages: {EXTRA}") from ex
    try:
        return Client(scheduler, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError) as ex:
        raise UsageError(
            f"no Dask scheduler answers at {scheduler}: check the address, and that it runs"
        ) from ex
    except (ValueError, TypeError) as ex:
        raise UsageError(
            f"--scheduler {scheduler}: give the address of a Dask scheduler, as tcp://HOST:8786"
        ) from ex


def _workers(client: Client) -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


def _collected(
    client: Client, scheduler: str, futures: Sequence[Future], progress: Progress
) -> list[ServerOutcome]:
    from distributed import wait

    outcomes: dict[int, ServerOutcome] = {}
    left = dict(enumerate(futures))
    alive = time.monotonic()
    while left:
        workers = _workers(client)
        if workers:
            alive = time.monotonic()
        elif time.monotonic() - alive > _NO_WORKER_S:
            raise MeasurementError(
                f"the cluster at {scheduler} has had no worker for a minute: start some, and "
                "try again"
            )
        progress(len(outcomes), numbers.counted(workers, "worker"))
        try:
            with client.as_current():
                wait(list(left.values()), timeout=1, return_when="FIRST_COMPLETED")
        except TimeoutError:
            continue
        for index in [index for index, future in left.items() if future.done()]:
            outcomes[index] = _outcome(left.pop(index))
    return [outcomes[index] for index in range(len(futures))]


def _outcome(future: Future) -> ServerOutcome:
    try:
        found: ServerOutcome = future.result()
    except PgtareError:
        raise
    except Exception as ex:
        raise MeasurementError(f"the cluster failed: {_why(ex)}") from ex
    return found


def _why(ex: Exception) -> str:
    if isinstance(ex, ModuleNotFoundError):
        return f"a worker lacks the module {ex.name}; install pgtare of this version on every one"
    if type(ex).__name__ == "KilledWorker":
        return (
            "several workers died of the same server, perhaps because memory ran out; give workers "
            "more, or fewer on a machine"
        )
    lines = str(ex).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(ex).__name__


def _on_worker(task: ServerTask) -> ServerOutcome:
    """In a thread of a worker's process: threads of the linear algebra could change last digits."""
    from threadpoolctl import threadpool_limits

    with _one_at_a_time, threadpool_limits(1):
        return estimate(task)
