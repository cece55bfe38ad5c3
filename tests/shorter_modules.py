"""Modules of which constants are small, so that a test need not wait for minutes or megabytes."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from pgtare.postgres.binaries import Binaries
from pgtare.postgres.build import build_cached, is_artefact, source_dir, sql_without_extension
from pgtare.postgres.modules import Loadable

#: For how many seconds these keep the ring of a process that has ended.
KEEP_ENDED_S = 2
#: Files, names and values of constants
_CONSTANTS = {
    "common/ring_memory.h": ("KEEP_ENDED_S", str(KEEP_ENDED_S)),
}


def shorter(binaries: Binaries, module: str) -> Loadable:
    """A module with small constants, which is preloaded from where it was built."""
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "server")
        shutil.copytree(source_dir(), source, ignore=_artefacts)
        for place, (name, value) in _CONSTANTS.items():
            text, found = re.subn(rf"(#define {name}) .*", rf"\1 {value}", _read(source / place))
            assert found == 1, name
            (source / place).write_text(text)
        built = build_cached(binaries, module, source)
    return Loadable(built.library, sql_without_extension(built, module))


def _read(path: Path) -> str:
    return path.read_text()


def _artefacts(directory: str, names: list[str]) -> set[str]:
    return {name for name in names if is_artefact(name)}
