"""What a program file says of its functions: names, frame pointers, and where they begin."""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

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

    path: str
    stripped: bool
    debug_package: bool
    starts: tuple[int, ...]
    frame_pointers: bool

    @cached_property
    def name(self) -> str:
        """The file's name."""
        return Path(self.path).name

    def unnamed(self, offset: int) -> str:
        """What to call the function around a file offset that has no name: the same every time."""
        i = bisect.bisect_right(self.starts, offset) - 1
        return f"{self.name}+0x{self.starts[i] if i >= 0 else offset:x}"


@lru_cache(maxsize=64)
def read(path: str, shown: str = "") -> Program:
    """The facts of the file at `path`, called `shown` if that differs.

    What cannot be read counts as stripped, without frame pointers.
    """
    shown = shown or path
    try:
        with open(path, "rb") as file:
            elf = ELFFile(file)
            text = elf.get_section_by_name(".text")
            starts = _starts(elf)
            has_table = elf.get_section_by_name(".symtab") is not None
            notes = elf.get_section_by_name(".note.gnu.build-id")
            debug = isinstance(notes, NoteSection) and _has_debug_file(
                next(iter(notes.iter_notes()))["n_desc"]
            )
            kept = _keeps_frames(elf, text, starts)
    except Exception:  # of a damaged file the parser raises anything
        return Program(shown, True, False, (), False)
    return Program(shown, not has_table and not debug, debug, starts, kept)


def _starts(elf: ELFFile) -> tuple[int, ...]:
    """Where functions begin, by the search table of .eh_frame_hdr: there when names are not."""
    section = elf.get_section_by_name(".eh_frame_hdr")
    if section is None:
        return ()
    data = section.data()
    if len(data) < 12 or data[3] != _TABLE_ENCODING:
        return ()
    (count,) = struct.unpack_from("<I", data, 8)
    base = section["sh_addr"]
    places = struct.unpack_from(f"<{2 * count}i", data, 12)[::2]
    loads = [s for s in elf.iter_segments("PT_LOAD")]
    starts = []
    for place in places:
        address = base + place
        for load in loads:
            if load["p_vaddr"] <= address < load["p_vaddr"] + load["p_filesz"]:
                starts.append(address - load["p_vaddr"] + load["p_offset"])
                break
    return tuple(sorted(starts))


def _keeps_frames(elf: ELFFile, text: object, starts: tuple[int, ...]) -> bool:
    if elf["e_machine"] != "EM_X86_64":
        return True  # the usual calling sequence elsewhere
    step = max(1, len(starts) // _LOOKED_AT)
    looked = kept = 0
    file = elf.stream
    for start in starts[::step]:
        file.seek(start)
        head = file.read(_PROLOGUE)
        looked += 1
        kept += _PUSH in head and _MOVE in head
    return looked > 0 and kept > looked / 2


def _has_debug_file(build_id: str) -> bool:
    return Path(f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug").exists()
