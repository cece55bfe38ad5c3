"""Which C files need each other in circles, read from their object files.

A file depends on another if it uses a function or a variable that is defined there. What is a
file's own does not count. `python -m tests.c_cycles DIRECTORY` prints the circles in the object
files below a directory, as a build leaves them there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Files that may depend on each other in a circle.
MOST = 2

#: How `nm` marks what a file offers: functions, and variables with a value, zero, constant, common.
OFFERED = "TWDBRCV"


def symbols(path: Path) -> tuple[set[str], set[str]]:
    """The names that an object file offers to others, and those that it looks for."""
    done = subprocess.run(["nm", "-P", path], capture_output=True, text=True, check=True)
    pairs = [line.split()[:2] for line in done.stdout.splitlines()]
    return (
        {name for name, kind in pairs if kind in OFFERED},
        {name for name, kind in pairs if kind == "U"},
    )


def dependencies(objects: Iterable[Path]) -> dict[Path, set[Path]]:
    """For each object file, those whose functions or variables it uses."""
    found = {path: symbols(path) for path in objects}
    place = {name: path for path, (offered, _) in found.items() for name in offered}
    return {
        path: {place[name] for name in wanted if name in place} - {path}
        for path, (_, wanted) in found.items()
    }


def circles(graph: Mapping[Path, set[Path]]) -> list[list[Path]]:
    """The strongly connected components of more than one file, the largest first."""
    reached = {path: _reached(graph, path) for path in graph}
    found = {
        frozenset({path, *(other for other in reached[path] if path in reached[other])})
        for path in graph
    }
    return sorted((sorted(one) for one in found if len(one) > 1), key=len, reverse=True)


def _reached(graph: Mapping[Path, set[Path]], start: Path) -> set[Path]:
    """All that a file depends on, by way of others too."""
    seen: set[Path] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - seen
        seen |= new
        ahead += new
    return seen


def circles_below(directory: Path) -> list[list[str]]:
    """The circles in the object files below a directory, by the names of their sources."""
    graph = dependencies(directory.rglob("*.o"))
    return [
        [str(path.relative_to(directory).with_suffix(".c")) for path in one]
        for one in circles(graph)
    ]


def main() -> int:
    """Exit status: 0 if no circle is too long."""
    found = circles_below(Path(sys.argv[1]))
    for one in found:
        print(len(one), "files need each other:", ", ".join(one))
    return 0 if all(len(one) <= MOST for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
