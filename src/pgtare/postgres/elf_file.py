"""What a library or program says of itself: its architecture, and the C library that it uses."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from elftools.elf.segments import InterpSegment

Found = TypeVar("Found")

#: As a header names it, and as a compiler does.
_ARCHITECTURES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_USUAL_LOADERS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
#: What pyelftools raises of a file that is damaged.
_BROKEN = (OSError, ELFError, ValueError, KeyError, IndexError, AttributeError, AssertionError)


def _seen(path: Path, look: Callable[[ELFFile], Found], damaged: Found) -> Found:
    """What is found in a file; `damaged` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return look(ELFFile(file))
    except _BROKEN:
        return damaged


def architecture(path: Path) -> str | None:
    """The architecture of a library or program; None if it is neither."""
    name = _seen(path, lambda elf: str(elf.header["e_machine"]), None)
    return None if name is None else _ARCHITECTURES.get(name, name)


def is_module(library: Path) -> bool:
    """Whether it is a shared library for PostgreSQL to load, none of whose parts are cut off."""

    def look(elf: ELFFile) -> bool:
        ends = [one["p_offset"] + one["p_filesz"] for one in elf.iter_segments()]
        symbols = elf.get_section_by_name(".dynsym")
        return (
            elf.header["e_type"] == "ET_DYN"
            and max(ends, default=0) <= library.stat().st_size
            and isinstance(symbols, SymbolTableSection)
            and bool(symbols.get_symbol_by_name("Pg_magic_func"))
        )

    return _seen(library, look, damaged=False)


def _loaders(elf: ELFFile) -> list[str]:
    parts = elf.iter_segments()
    return [one.get_interp_name() for one in parts if isinstance(one, InterpSegment)]


def libc(program: Path) -> str | None:
    """The C library that a program uses on this machine, as "glibc 2.36"; None: not known."""
    none: list[str] = []
    loaders = _seen(program, _loaders, none)
    if not loaders:
        return None
    if "musl" in loaders[0]:
        return "musl"
    if not loaders[0].startswith(_USUAL_LOADERS):
        return None  # a C library of the server's own
    found = None
    with contextlib.suppress(ValueError, OSError):
        found = os.confstr("CS_GNU_LIBC_VERSION")
    return found if found and re.match(r"glibc \d+\.\d+", found) else None
