"""A server that the linker makes load a library of ours, which maps a file."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pgtare.postgres.binaries import Binaries
from tests.places import files_directory


@contextlib.contextmanager
def preloaded(
    binaries: Binaries, source: str, variable: str, size: int
) -> Iterator[tuple[Binaries, mmap.mmap]]:
    """Binaries of such a server, and the file's bytes; the variable tells the library its path."""
    directory = Path(tempfile.mkdtemp(prefix="pgtare-test-", dir=files_directory()))
    try:
        directory.chmod(0o755)
        library, path = directory / "preloaded.so", directory / "mapped"
        subprocess.run(
            [
                *(os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC"),
                *(Path(__file__).with_name(source), "-o", library),
            ],
            check=True,
        )
        path.write_bytes(bytes(size))
        path.chmod(0o666)
        programs = directory / "bin"
        programs.mkdir(mode=0o755)
        wrapper = programs / "postgres"
        wrapper.write_text(
            f'#!/bin/sh\n{variable}={path} LD_PRELOAD={library} exec {binaries.postgres} "$@"\n'
        )
        wrapper.chmod(0o755)
        (programs / "initdb").symlink_to(binaries.initdb)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            yield replace(binaries, bindir=programs), mapped
    finally:
        shutil.rmtree(directory)
