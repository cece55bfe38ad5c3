"""A stand-in for a network: passes on what client and server send, each piece late by chance."""

from __future__ import annotations

import asyncio
import random
import signal


async def _pass_on(
    source: asyncio.StreamReader, to: asyncio.StreamWriter, late_ms: tuple[float, float]
) -> None:
    """Pieces arrive in order, each after a delay drawn uniformly."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            to.write(piece)
            if not piece:
                to.close()
                return

    delivering = asyncio.create_task(deliver())
    latest = 0.0
    while piece := await source.read(65_536):
        latest = max(latest, loop.time() + random.uniform(*late_ms) / 1000)
        pieces.put_nowait((latest, piece))
    pieces.put_nowait((loop.time(), b""))
    await delivering


async def _serve(port: int, to_port: int, late_ms: tuple[float, float]) -> None:
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", to_port)
        await asyncio.gather(_pass_on(reader, back, late_ms), _pass_on(there, writer, late_ms))

    server = await asyncio.start_server(meet, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def run(port: int, to_port: int, late_ms: tuple[float, float]) -> None:
    """Serve until the process is ended. late_ms: shortest and longest delay each way."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not what the command's own process does
    asyncio.run(_serve(port, to_port, late_ms))
