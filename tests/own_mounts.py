"""Mounts that only this thread sees, and the servers that it starts."""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forked import forking

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLOCKS = Path("/sys/devices/system/clocksource/clocksource0")


@contextlib.contextmanager
def own_mounts() -> Iterator[Callable[..., None]]:
    """What mounts by the arguments of mount(2), source and target first, until the end.

    Needs root; a test that cannot have mounts of its own is skipped.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root")
    forking()  # it is for other tests as well, whose mounts it has to see
    home = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    where = os.getcwd()
    try:
        _done(_LIBC.unshare(_CLONE_NEWNS))
        try:
            _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
            yield _mount
        finally:
            _done(_LIBC.setns(home, _CLONE_NEWNS))
            os.chdir(where)
    finally:
        os.close(home)


@contextlib.contextmanager
def kernel_clock(directory: Path) -> Iterator[Callable[..., None]]:
    """What has the kernel name another clock source, and those that there are; needs root."""
    if not _CLOCKS.exists() or " constant_tsc" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("the kernel has no choice of clocks here")

    def name(current: str, available: str = "tsc hpet") -> None:
        (directory / "current").write_text(current + "\n")
        (directory / "available").write_text(available + " \n")

    name("tsc")
    with own_mounts() as mount:
        for kind in ("current", "available"):
            mount(str(directory / kind), str(_CLOCKS / f"{kind}_clocksource"), None, _MS_BIND)
        yield name


def _mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None
) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind, options)]
    _done(_LIBC.mount(*words[:3], flags, words[3]))


def _done(result: int) -> None:
    if result != 0:
        pytest.skip(f"cannot have mounts of one's own: {os.strerror(ctypes.get_errno())}")
