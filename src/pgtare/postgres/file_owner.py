"""Which package of the system a file belongs to: dpkg's, or rpm's."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 20.0


@dataclass(frozen=True)
class SystemPackage:
    """A package of the system, and the command that takes it out."""

    name: str
    version: str
    removal: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def package_of(path: Path) -> SystemPackage | None:
    """The package that installed a file; None if none did, or no package manager is there."""
    # dpkg knows a file by the path of its package, which may lead through a link (/lib, /usr/lib)
    for name in dict.fromkeys((str(path), str(path.resolve()))):
        if found := _dpkg(name) or _rpm(name):
            return found
    return None


def _dpkg(path: str) -> SystemPackage | None:
    # its argument is a pattern
    pattern = "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in path)
    for line in _lines(["dpkg-query", "--search", pattern]):
        owner, _, there = line.partition(": ")
        if there == path and not owner.startswith("diversion "):
            name = owner.partition(",")[0].partition(":")[0]
            shown = _lines(["dpkg-query", "--show", "--showformat=${Version}\\n", name])
            return SystemPackage(name, shown[0] if shown else "", f"apt-get remove {name}")
    return None


def _rpm(path: str) -> SystemPackage | None:
    shown = _lines(["rpm", "-qf", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\\n", path])
    if not shown:
        return None
    name, _, version = shown[0].partition(" ")
    return SystemPackage(name, version, f"dnf remove {name}")


def _lines(command: Sequence[str]) -> list[str]:
    """What a command prints; nothing if it fails, is not there or hangs."""
    if shutil.which(command[0]) is None:
        return []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=True
        )
        return done.stdout.splitlines()
    return []
