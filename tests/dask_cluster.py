"""A real Dask cluster on this machine: a scheduler, and workers that are processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any


class DaskCluster:
    """Stopped at the end of `with`."""

    def __init__(self, directory: Path, workers: int, environment: dict[str, str] | None = None):
        self._directory, self._workers = directory, workers
        self._environment = {**os.environ, **(environment or {})}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> DaskCluster:
        try:
            self._begin()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait(30)

    def _begin(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / "scheduler.json"
        self._start("scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard")
        deadline = time.monotonic() + 120
        while not file.exists() or not file.stat().st_size:
            assert time.monotonic() < deadline, "the scheduler does not start"
            assert self._processes[0].poll() is None, (self._directory / "log").read_text()
            time.sleep(0.1)
        self.address = str(json.loads(file.read_text())["address"])
        for _ in range(self._workers):
            self._start("worker", "--nthreads", "2", "--no-nanny", "--no-dashboard")
        if self._workers:
            with self.client() as client:
                client.wait_for_workers(self._workers, timeout=120)

    def _start(self, what: str, *options: str) -> None:
        command = [sys.executable, "-m", "dask", what, *options]
        command += ["--scheduler-file", str(self._directory / "scheduler.json")]
        with (self._directory / "log").open("a") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._directory, env=self._environment
            )
        self._processes.append(process)

    @property
    def workers(self) -> list[subprocess.Popen[bytes]]:
        """The processes of the workers."""
        return self._processes[1:]

    def client(self) -> Any:
        """A client of its own, not for what is tested."""
        from distributed import Client

        return Client(self.address, set_as_default=False)

    def kill_a_busy_worker(self) -> int:
        """Kill -9 a worker that is at work. Returns how many servers it was estimating."""
        with self.client() as client:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                busy = {at: keys for at, keys in client.processing().items() if keys}
                if busy:
                    address, keys = sorted(busy.items())[0]
                    pid = client.run(os.getpid, workers=[address])[address]
                    os.kill(pid, signal.SIGKILL)
                    return len(keys)
        raise AssertionError("no worker was busy")
