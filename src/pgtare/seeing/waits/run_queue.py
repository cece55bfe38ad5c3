"""How long processes waited for a processor, from the kernel, if the server runs here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_LOCAL = ("localhost", "127.0.0.1", "::1")


def is_local(host: str, pid: int) -> bool:
    """Whether the server process `pid`, reached through `host`, is one of this machine's."""
    if not (host.startswith("/") or host in _LOCAL):
        return False
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"postgres:")
    except OSError:  # another machine's, or another container's
        return False


def run_queue_ns(pids: Iterable[int]) -> dict[int, int]:
    """Time each process has waited for a processor since its start; without those not there."""
    found = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
        except OSError:
            continue
        if len(fields) == 3:
            found[pid] = int(fields[1])
    return found
