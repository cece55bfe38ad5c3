"""Which workloads may be played by duet: those that servers side by side do not spoil."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pgtare.load.duet_plan import MAX_CLUSTERS

_SHARED = ("IO/", "LWLock/", "Lock/", "BufferPin/", "Buffer/")


class _Expected(Protocol):
    @property
    def events(self) -> Sequence[str]: ...
    @property
    def at_least(self) -> float | None: ...


class _Workload(Protocol):
    @property
    def builtin(self) -> str | None: ...
    @property
    def clients(self) -> int: ...
    @property
    def writes(self) -> bool: ...
    @property
    def profile(self) -> Sequence[_Expected]: ...
    @property
    def figure(self) -> Sequence[object]: ...


def why_not_by_duet(workload: _Workload, variants: int, cores: int) -> str:
    """Why a duet must not play a workload of `variants` variants on `cores` processors, or "".

    Each server gets a share of the concurrency only, and all share page cache, disk and its queue:
    a load that is about one of these would be another load.
    """
    if variants >= MAX_CLUSTERS:
        return f"its {variants} variants and the floor again need more than {MAX_CLUSTERS} servers"
    if workload.clients > cores:
        return (
            f"it has more clients ({workload.clients}) than the machine has processors ({cores}) "
            "and each server would get a share of the concurrency only"
        )
    if workload.writes or workload.builtin in ("simple-update", "tpcb-like"):
        return "it writes and the servers would share the disk's queue"
    if workload.figure:
        return "its figures are counted in whole runs of one server"
    for expected in workload.profile:
        if expected.at_least is None:
            continue
        for event in expected.events:
            if event.startswith(_SHARED):
                shared = "the page cache and the disk" if event.startswith("IO/") else "the load"
                return f"it is about waits of {event} and the servers would share {shared}"
    return ""
