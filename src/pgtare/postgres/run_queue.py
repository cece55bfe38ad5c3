"""How long processes waited for a processor, from the kernel, if the server runs here."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from pgtare.kit import machine

_LOCAL = ("localhost", "127.0.0.1", "::1")


def is_local(host: str, pid: int) -> bool:
    """Whether the server process `pid`, reached through `host`, is one of this machine's."""
    if not (host.startswith("/") or host in _LOCAL):
        return False
    try:
        return " ".join(psutil.Process(pid).cmdline()).startswith("postgres:")
    except psutil.Error:  # another machine's, or another container's
        return False


def run_queue_ns(pids: Iterable[int]) -> dict[int, int]:
    """Time each process has waited for a processor since its start; without those not there."""
    found = ((pid, machine.schedstat(pid)) for pid in pids)
    return {pid: times[1] for pid, times in found if times is not None}
