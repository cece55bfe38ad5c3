"""Starts the page's query workers, asks them, and kills them if an answer takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgtare.errors import MeasurementError
from pgtare.keeping.spool import manifest
from pgtare.keeping.store.address import StoreAddress
from pgtare.kit.interpreter import module_command

#: The longest time that an answer may take, s.
TIME_LIMIT_S = 15.0
#: The longest answer that is read, bytes.
_MOST_BYTES = 256 << 20
#: A store is assumed to have new rows this often, s: agents send about once a minute.
_NEWS_S = 30

LiveRow = dict[str, Any]


class WorkerProcess:
    """One process that answers queries, one at a time; a new one after it was killed.

    source: a spool on this machine, or a store of many agents; kind: which of the two.
    """

    def __init__(self, source: Path | StoreAddress, limit_s: float = TIME_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._directory = source if isinstance(source, Path) else None
        if isinstance(source, StoreAddress):
            self.kind, worker = "store", ("pgtare.keeping.live.store_worker", source.url)
        else:
            self.kind, worker = "spool", ("pgtare.keeping.live.query_worker", str(source))
        self._command = module_command(*worker)
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self.texts: dict[tuple[str, int], str] = {}
        """texts of statements that were asked for, by server and identifier; they never change"""

    def news(self) -> int:
        """A number that changes when there may be new rows."""
        if self._directory is None:
            return int(time.time() // _NEWS_S)
        try:
            return (self._directory / manifest.NEWEST).stat().st_mtime_ns
        except OSError:
            return 0

    async def answer(self, request: Mapping[str, Any]) -> tuple[list[LiveRow], list[str]]:
        """Rows of a query, and the segments whose rows these lack. Raises MeasurementError.

        request: query (its name), window (after and up to, µs since 1970), grain, identifiers, only
        (values of dimensions that are filtered by), values.
        """
        found = await self.ask(request)
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]], found[
            "damaged"
        ]

    async def state(self) -> dict[str, Any]:
        """What the spool holds: seq, and spans by table: first and last time, µs, and rows.

        Of a spool also dropped_us, of a store left_out.
        """
        return await self.ask({"state": True})

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One answer. Raises MeasurementError."""
        async with self._lock:
            try:
                process = await self._running()
                found = await asyncio.wait_for(self._exchange(process, request), self._limit_s)
            except TimeoutError:
                await self._kill()
                raise MeasurementError(
                    f"this took longer than {self._limit_s:g} s and was stopped: choose a shorter "
                    "window, or one server"
                ) from None
            except asyncio.CancelledError:
                await self._kill()  # its answer would be taken for the next one's
                raise
            except (OSError, ValueError) as ex:
                await self._kill()
                raise MeasurementError("the query worker ended: load the page again") from ex
        if "error" in found:
            raise MeasurementError(str(found["error"]))
        return found

    async def _exchange(
        self, process: asyncio.subprocess.Process, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        found: dict[str, Any] = json.loads(line)  # an empty line is none: the worker ended
        return found

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_MOST_BYTES,
            )
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """End the process."""
        await self._kill()
