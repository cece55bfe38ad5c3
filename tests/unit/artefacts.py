"""The four kinds of results on disk: how each is written and read. Run as a program, it is killed.

`python -m tests.unit.artefacts KIND DIRECTORY` writes the kind again and again, each time in a new
directory, and each time a process is killed by SIGKILL one call of the system later than before.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgtare.observing.trace.file import blocks
from pgtare.observing.trace.file.reader import load as load_trace
from pgtare.weighing.fleet.directory import FleetDirectory
from pgtare.weighing.fleet.state import FLEET_FILE, FleetServerState, FleetState
from pgtare.weighing.ladder.directory import FACTS, Directory
from pgtare.weighing.weigh import store
from pgtare.weighing.weigh.measurement import Weighing
from tests.fleet_data import DESIGN
from tests.unit import made_traces, sample_result, simulated_study
from tests.unit.sample_result import save

#: What only DuckDB says, and Python of errors of the system.
_OTHERS = ("exception", "Error:", "{", "errno", "LINE 1", "[Errno", "Traceback")
#: What a writer calls on its way: it is killed before each of these calls.
CALLS = ("replace", "rename", "fsync", "fdatasync", "chmod", "unlink", "mkdir")
ROWS = 300


@dataclass(frozen=True)
class Made:
    """One kind. read gives something to compare; it raises what the program would tell.

    document: what describes it. grows: it can be read before it is complete.
    """

    what: str
    write: Callable[[Path], None]
    read: Callable[[Path], Any]
    document: str
    later: Callable[[bytes], bytes]
    grows: bool = False


def write_study(path: Path) -> None:
    found = simulated_study.study()
    directory = Directory(path)
    if not directory.begun:
        directory.begin(simulated_study.facts(found), lambda _: None)
    for run in list(simulated_study.runs(found, {}).values())[:2]:
        directory.keep(run, {"latency_us": np.arange(ROWS)})


def read_study(path: Path) -> Any:
    directory = Directory(path)
    return directory.facts(), directory.rates(), directory.runs()


def write_fleet(path: Path) -> None:
    servers = [FleetServerState(name=name, labels={}) for name in ("a", "b")]
    state = FleetState(command=["pgtare"], created="2026-01-01", design=DESIGN, servers=servers)
    directory = FleetDirectory.create(path, state)
    given = sample_result.sample(blocks=5)
    directory.keep("a", Weighing(given.result, given.observations, given.design))
    directory.state.of("a").state = "done"
    directory.save()
    directory.write_result("{}")


def read_fleet(path: Path) -> Any:
    directory = FleetDirectory.open(path)
    return directory.state, directory.usable()


def write_trace(path: Path) -> None:
    rows = [(0, i * 1000, 1 + i % 977) for i in range(ROWS)]
    stream = made_traces.StreamBuilder()
    stream.session()
    made_traces.write(path, stream.data, rows)


def read_trace(path: Path) -> Any:
    found = load_trace(path)
    return sorted(found.rings), found.end, len(found.damages)


def _later_schema(data: bytes) -> bytes:
    document = json.loads(data)
    family, _, version = document["schema"].rpartition("/")
    return json.dumps(document | {"schema": f"{family}/{int(version) + 1}"}).encode()


def _later_header(data: bytes) -> bytes:
    changed = bytearray(data)
    struct.pack_into("<H", changed, 8, blocks.VERSION + 1)
    end = blocks.FILE_HEADER - 4
    struct.pack_into("<I", changed, end, zlib.crc32(changed[:end]))
    return bytes(changed)


KINDS = {
    "weigh": Made(
        "result of `pgtare weigh`",
        lambda path: save(path, 10),
        lambda path: store.load(path).result,
        store.RESULT_FILE,
        _later_schema,
    ),
    "fleet": Made("fleet weighing", write_fleet, read_fleet, FLEET_FILE, _later_schema, grows=True),
    "ladder": Made(
        "study of `pgtare ladder`", write_study, read_study, FACTS, _later_schema, grows=True
    ),
    "trace": Made(
        "trace of `pgtare trace record`",
        write_trace,
        read_trace,
        "",  # it is a file itself
        _later_header,
        grows=True,
    ),
}


def clear(message: str) -> str:
    """One sentence, none of it from a library."""
    assert not [word for word in _OTHERS if word in message], message
    assert message.strip().count("\n") == 0
    return message


def _write_and_die(kind: Made, path: Path, at: int) -> None:
    """Write, and be killed at a call. Returns if there were not as many."""
    calls = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal calls
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return function(*args, **named)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    kind.write(path)


def main(name: str, directory: Path, every: int) -> None:
    """Write in directories called by the call at which it is killed, until a process is not."""
    at = 0
    while True:
        child = os.fork()
        if not child:
            try:
                _write_and_die(KINDS[name], directory / str(at) / "r", at)
            except BaseException as ex:
                print(f"{type(ex).__name__}: {ex}", file=sys.stderr)
                os._exit(1)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            print(at)
            return
        at += every


if __name__ == "__main__":
    for number in range(60):
        (Path(sys.argv[2]) / str(number)).mkdir(parents=True)
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
