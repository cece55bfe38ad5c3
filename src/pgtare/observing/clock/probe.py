"""The C probe from Python: records a clock, weighs a reading, compares processors' clocks."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgtare.errors import MeasurementError, UsageError
from pgtare.observing.clock import build
from pgtare.observing.clock.clocks import Clock
from pgtare.observing.clock.cpuid import Leaves
from pgtare.observing.clock.cpuid import read as read_leaves
from pgtare.observing.clock.schema import Trust
from pgtare.postgres.build import source_dir
from pgtare.postgres.directories import locked, place

#: As in server/clock/probe.h.
DIRECT = 16384
KEPT = 32
_REASON = 160
#: Differences that no clock gives faster than this many ns each: an end to a run without a clock.
_FASTEST_NS = 0.5
_TICK_S = 0.1
_DEEP_NS = 200_000


class _Count(ctypes.Structure):
    _fields_ = (
        ("ticks", ctypes.c_int64),
        ("count", ctypes.c_uint64),
        ("switched", ctypes.c_uint64),
    )


class _Gap(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_int64),
        ("ticks", ctypes.c_int64),
        ("switches", ctypes.c_int64),
        ("waited_ns", ctypes.c_int64),
        ("stolen", ctypes.c_int64),
    )


class _Run(ctypes.Structure):
    _fields_ = (
        ("direct", ctypes.c_uint64 * DIRECT),
        ("far", ctypes.POINTER(_Count)),
        ("far_used", ctypes.c_uint64),
        ("far_size", ctypes.c_uint64),
        ("differences", ctypes.c_uint64),
        ("backward", ctypes.c_uint64),
        ("backward_largest", ctypes.c_int64),
        ("still_longest", ctypes.c_uint64),
        ("opened", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("last", ctypes.c_int64),
        ("closed", ctypes.c_int64),
        ("elapsed_ns", ctypes.c_int64),
        ("duration_ns", ctypes.c_int64),
        ("deep_ticks", ctypes.c_int64),
        ("most", ctypes.c_uint64),
        ("cpu", ctypes.c_int32),
        ("out_of_memory", ctypes.c_int32),
        ("stop", ctypes.c_int32),
        ("kept_n", ctypes.c_uint32),
        ("kept", _Gap * KEPT),
    )


class CorePair(ctypes.Structure):
    """Bounds in ticks of the second processor's clock minus the first's."""

    _fields_ = (
        ("lower", ctypes.c_int64),
        ("upper", ctypes.c_int64),
        ("rounds", ctypes.c_uint64),
        ("backward", ctypes.c_uint64),
        ("backward_largest", ctypes.c_int64),
        ("failed", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Gap:
    """A long difference: where it ended in ticks since the start, and what the kernel counted."""

    at: int
    ticks: int
    switches: int
    waited_ns: int | None
    stolen: int | None


@dataclass(frozen=True)
class ProbeRun:
    """A run: exact differences in ticks, ascending, and how often each occurred.

    switched: how many of each had a context switch in them; the kernel is asked from DIRECT ticks
    on. CLOCK_MONOTONIC was looked at between opened and first, and between last and closed.
    """

    ticks: NDArray[np.int64]
    counts: NDArray[np.uint64]
    switched: NDArray[np.uint64]
    differences: int
    backward: int
    backward_largest: int
    still_longest: int
    opened: int
    first: int
    last: int
    closed: int
    elapsed_ns: int
    interrupted: bool
    gaps: tuple[Gap, ...]


@dataclass(frozen=True)
class Pair:
    """Counter and CLOCK_MONOTONIC read together; the bracket's width bounds how much so."""

    ticks: int
    ns: int
    width: int


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled probe: the installed one, or one compiled now if the sources have changed.

    Raises UsageError if it has to be compiled and cannot be.
    """
    sources = source_dir()
    wanted = build.digest(sources)
    installed = _load(Path(__file__).with_name(build.LIBRARY), wanted)
    if installed is not None:
        return installed
    shelf = place("probe")
    path = shelf / f"{wanted}.so"
    with locked(shelf / ".lock"):
        found = _load(path, wanted)
        if found is not None:
            return found
        try:
            build.compile_probe(sources, path)
        except build.BuildError as ex:
            raise UsageError(str(ex)) from ex
    found = _load(path, wanted)
    if found is None:
        raise UsageError(f"the clock probe {path} cannot be loaded on this machine")
    return found


_ADDRESS, _INT, _INT64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_RUN = ctypes.POINTER(_Run)
#: What each function of the library returns and takes; those left out take nothing and return int.
_SIGNATURES: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "probe_new": (_RUN, ()),
    "probe_free": (None, (_RUN,)),
    "probe_record": (_INT, (_RUN, _INT)),
    "probe_replay": (None, (_RUN, _ADDRESS, ctypes.c_uint64)),
    "probe_cost": (_INT, (_INT, _INT, _INT, _ADDRESS, _ADDRESS)),
    "probe_cores": (None, (_ADDRESS, _INT, _INT, _INT, _INT64, ctypes.c_uint64, _INT64)),
    "probe_cpuid": (_INT, (ctypes.c_uint32, ctypes.c_uint32, _ADDRESS)),
    "probe_calibrate": (None, (_INT64, _ADDRESS)),
    "probe_pair": (None, (_ADDRESS,)),
    "probe_counter_trusted": (_INT, (_ADDRESS,)),
}


def _load(path: Path, wanted: str) -> ctypes.CDLL | None:
    """The library at `path`, if it is there, loads, and comes from the sources wanted."""
    try:
        found = ctypes.CDLL(str(path))
        found.probe_sources.restype = ctypes.c_char_p
        if found.probe_sources() != wanted.encode():
            return None
    except (OSError, AttributeError):
        return None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def record(
    clock: Clock,
    seconds: float,
    cpu: int | None,
    ticks_per_ns: float = 1.0,
    tick: Callable[[float], None] = lambda seconds: None,
) -> ProbeRun:
    """Read a clock over and over, pinned to one processor if `cpu` names it.

    `tick` is called about ten times a second with the seconds so far. After Ctrl-C what was
    recorded until then is returned, marked as interrupted. Raises MeasurementError.
    """
    lib = library()
    run = _new(lib)
    run.contents.duration_ns = round(seconds * 1e9)
    run.contents.deep_ticks = round(_DEEP_NS * ticks_per_ns)
    run.contents.most = int(seconds * 1e9 / _FASTEST_NS)
    run.contents.cpu = -1 if cpu is None else cpu
    failed: list[int] = []
    over = threading.Event()  # join() takes an interrupted thread for one that has ended

    def work() -> None:
        failed.append(lib.probe_record(run, clock.number))
        over.set()

    # Away from the main thread, which alone can be interrupted and tells the progress.
    threading.Thread(target=work, daemon=True).start()
    try:
        interrupted = False
        while not over.is_set():
            try:
                while not over.wait(_TICK_S):
                    tick(min(seconds, run.contents.elapsed_ns / 1e9))
            except KeyboardInterrupt:
                run.contents.stop, interrupted = 1, True
        if failed[0]:
            raise MeasurementError(
                f"the probe could not be pinned to processor {cpu}: {os.strerror(failed[0])}"
            )
        return _taken(run.contents, interrupted)
    finally:
        run.contents.stop = 1
        if over.is_set():  # else an interrupt came at a bad moment, and the thread still writes
            lib.probe_free(run)


def cost(clock: Clock, batches: int, reads: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """ns a reading by batch: in a loop that only reads, and in the one that counts as well."""
    only, loop = np.zeros(batches), np.zeros(batches)
    failed = library().probe_cost(clock.number, batches, reads, only.ctypes.data, loop.ctypes.data)
    if failed:
        raise MeasurementError(f"the probe got no memory: {os.strerror(failed)}")
    return only, loop


def cores(
    first: int, second: int, *, counter: bool, rounds: int, limit_ns: int, offset: int = 0
) -> CorePair:
    """Hand readings to and fro between two processors; `offset` is added to the second's.

    Raises MeasurementError if a thread cannot be pinned or no reading came back in time.
    """
    out = CorePair()
    library().probe_cores(ctypes.byref(out), first, second, counter, offset, rounds, limit_ns)
    if out.failed:
        raise MeasurementError(
            f"processors {first} and {second} could not be compared: {os.strerror(out.failed)}"
        )
    if not out.rounds:
        raise MeasurementError(
            f"processors {first} and {second} could not be compared: they were too busy"
        )
    return out


def calibrate(duration_ns: int) -> tuple[Pair, Pair]:
    """Two pairs this far apart, a busy wait between."""
    out = (ctypes.c_int64 * 6)()
    library().probe_calibrate(duration_ns, out)
    return Pair(*out[:3]), Pair(*out[3:])


def pair() -> Pair:
    """Counter and CLOCK_MONOTONIC, the tightest of 64 brackets."""
    out = (ctypes.c_int64 * 3)()
    library().probe_pair(out)
    return Pair(*out)


def leaves() -> Leaves:
    """What CPUID says here."""
    return read_leaves(_cpuid)


def _cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
    out = (ctypes.c_uint32 * 4)()
    if library().probe_cpuid(leaf, subleaf, out):
        return None
    return out[0], out[1], out[2], out[3]


def counter_usable() -> bool:
    """Whether the processor's counter runs at a constant rate."""
    return bool(library().probe_counter_usable())


def counter_trust() -> Trust:
    """Whether the server modules take the processor's counter as a clock, and why."""
    reason = ctypes.create_string_buffer(_REASON)
    counter = bool(library().probe_counter_trusted(reason))
    return Trust(counter=counter, reason=reason.value.decode())


def _new(lib: ctypes.CDLL) -> ctypes._Pointer[_Run]:
    run: ctypes._Pointer[_Run] = lib.probe_new()
    if not run:
        raise MeasurementError(f"the probe got no memory: {os.strerror(errno.ENOMEM)}")
    return run


#: What is named alike in the structure and in the value.
_SAME = (
    *("differences", "backward", "backward_largest", "still_longest"),
    *("opened", "first", "last", "closed", "elapsed_ns"),
)


def _taken(run: _Run, interrupted: bool) -> ProbeRun:
    """The run as values; small and far differences in one ascending list."""
    direct = np.ctypeslib.as_array(run.direct)
    near = np.flatnonzero(direct)
    small = [(t, n, 0) for t, n in zip(near.tolist(), direct[near].tolist(), strict=True)]
    far = [(one.ticks, one.count, one.switched) for one in run.far[: run.far_used]]
    below = [one for one in far if one[0] < 0]
    above = [one for one in far if one[0] >= 0]
    found = [*below, *small, *above]
    return ProbeRun(
        ticks=np.array([one[0] for one in found], np.int64),
        counts=np.array([one[1] for one in found], np.uint64),
        switched=np.array([one[2] for one in found], np.uint64),
        **{name: getattr(run, name) for name in _SAME},
        interrupted=interrupted,
        gaps=tuple(
            Gap(
                gap.at,
                gap.ticks,
                gap.switches,
                gap.waited_ns if gap.waited_ns >= 0 else None,
                gap.stolen if gap.stolen >= 0 else None,
            )
            for gap in sorted(run.kept[: run.kept_n], key=lambda g: -g.ticks)
        ),
    )
