"""A server under callgrind, which counts instructions from one event to the next."""

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pgtare.postgres import cluster as cluster_module
from pgtare.postgres.binaries import Binaries
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.settings import Value

VALGRIND = shutil.which("valgrind")


@dataclass
class Dump:
    """What was counted from one dump to the next."""

    trigger: str
    """The function whose end made the dump."""
    total: int = 0
    by_object: dict[str, int] = field(default_factory=dict)
    """Instructions of the code in each library and program, by the name of its file."""


@dataclass(frozen=True)
class Counted:
    """A server under callgrind."""

    cluster: Cluster
    outputs: Path

    def dumps(self, pid: int, trigger: str) -> list[Dump]:
        """The dumps of a process that the end of a function made, in order."""
        paths = sorted(self.outputs.glob(f"{pid}.*"), key=lambda path: int(path.suffix[1:]))
        return [dump for dump in map(_read, paths) if dump.trigger == trigger]


@contextlib.contextmanager
def counting(
    binaries: Binaries,
    settings: dict[str, Value],
    preload: Sequence[str],
    dump_after: Sequence[str],
    outputs: Path,
    within: Sequence[str] = (),
) -> Iterator[Counted]:
    """A server that counts instructions, and notes the count whenever one of the functions ends.

    Where `within` names functions it counts only in them and in what they call. They may not call
    each other, or leave by a jump into another.
    """
    outputs.chmod(0o777)
    options = ["--tool=callgrind", f"--callgrind-out-file={outputs}/%p"]
    options += [f"--toggle-collect={function}" for function in within]
    options += [f"--dump-after={function}" for function in dump_after]
    start_program = cluster_module.start_program

    def under_valgrind(program: Path, arguments: list[str], *rest: object) -> object:
        if program.name == "postgres":
            arguments = [*options, str(program), *arguments]
            program = Path(str(VALGRIND))
        return start_program(program, arguments, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_module, "start_program", under_valgrind)
        with Cluster(binaries, settings, preload, start_seconds=200) as cluster:
            yield Counted(cluster, outputs)


def _read(path: Path) -> Dump:
    """A file in callgrind's format: https://valgrind.org/docs/manual/cl-format.html"""
    dump = Dump("")
    names: dict[str, str] = {}
    current = ""
    inclusive = False  # the line after calls= counts what is called, once more
    for line in path.read_text().splitlines():
        if line.startswith("desc: Trigger: --dump-after="):
            dump.trigger = line.partition("=")[2]
        elif line.startswith("totals:"):
            dump.total = int(line.split()[1])
        elif found := re.match(r"(c?ob)=(\(\d+\))(?: (.*))?", line):
            kind, number, name = found.groups()
            if name is not None:
                names[number] = Path(name).name
            if kind == "ob":
                current = names[number]
        elif line.startswith("calls="):
            inclusive = True
        elif re.match(r"[\d+*-]", line):
            if not inclusive:
                cost = int(line.split()[1])
                dump.by_object[current] = dump.by_object.get(current, 0) + cost
            inclusive = False
    return dump
