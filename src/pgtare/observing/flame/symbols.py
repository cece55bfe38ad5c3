"""What a program file says of its functions: names, frame pointers, and where they begin."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

# endbr64; push %rbp; mov %rsp,%rbp: how a function begins that keeps the frame pointer. Other
# instructions may be in between.
_PUSH, _MOVE = b"\x55", b"\x48\x89\xe5"
_PROLOGUE = 24
# Pointers of 4 bytes relative to the table, as every linker of Linux writes it.
_TABLE_ENCODING = 0x3B
_LOOKED_AT = 2000


@dataclass(frozen=True)
class Program:
    """An ELF file's facts. starts: file offsets at which its functions begin, ascending."""

    name: str
    stripped: bool = True
    starts: tuple[int, ...] = ()
    frame_pointers: bool = False

    def unnamed(self, offset: int) -> str:
        """What to call the function around a file offset that has no name: the same every time."""
        i = bisect.bisect_right(self.starts, offset) - 1
        return f"{self.name}+0x{self.starts[i] if i >= 0 else offset:x}"


@lru_cache(maxsize=64)
def read(path: str, shown: str = "") -> Program:
    """The facts of the file at `path`, called `shown` if that differs.

    What cannot be read counts as stripped, without frame pointers.
    """
    name = Path(shown or path).name
    try:
        with open(path, "rb") as file:
            elf = ELFFile(file)
            starts = _starts(elf)
            named = elf.get_section_by_name(".symtab") is not None or _has_debug_package(elf)
            return Program(name, not named, starts, _keeps_frames(elf, starts))
    except Exception:  # of a damaged file the parser raises anything
        return Program(name)


def _starts(elf: ELFFile) -> tuple[int, ...]:
    """Where functions begin, by the search table of .eh_frame_hdr: there when names are not."""
    section = elf.get_section_by_name(".eh_frame_hdr")
    if section is None:
        return ()
    data = section.data()
    if len(data) < 12 or data[3] != _TABLE_ENCODING:
        return ()
    table = np.frombuffer(data, "<i4", 2 * int.from_bytes(data[8:12], "little"), offset=12)
    addresses = section["sh_addr"] + table[::2].astype(np.int64)
    found: list[int] = []
    for load in elf.iter_segments("PT_LOAD"):
        within = addresses - load["p_vaddr"]
        within = within[(within >= 0) & (within < load["p_filesz"])]
        found += (within + load["p_offset"]).tolist()
    return tuple(sorted(found))


def _keeps_frames(elf: ELFFile, starts: tuple[int, ...]) -> bool:
    if elf["e_machine"] != "EM_X86_64":
        return True  # the usual calling sequence elsewhere
    looked = starts[:: max(1, len(starts) // _LOOKED_AT)]
    kept = 0
    for start in looked:
        elf.stream.seek(start)
        head = elf.stream.read(_PROLOGUE)
        kept += _PUSH in head and _MOVE in head
    return kept > len(looked) / 2


def _has_debug_package(elf: ELFFile) -> bool:
    notes = elf.get_section_by_name(".note.gnu.build-id")
    if not isinstance(notes, NoteSection):
        return False
    build_id = next(iter(notes.iter_notes()))["n_desc"]
    return Path(f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug").exists()
