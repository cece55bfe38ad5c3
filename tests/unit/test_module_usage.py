"""Who still uses a module's library."""

import mmap
import os
import shutil
from pathlib import Path

from pgtare.postgres.module_usage import loaded_by


def test_a_process_with_a_replaced_library_still_counts(tmp_path: Path) -> None:
    library = tmp_path / "tiny.so"
    library.write_bytes(bytes(mmap.PAGESIZE))
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert loaded_by(library) == [os.getpid()]
        shutil.copy(library, tmp_path / "new")
        os.replace(tmp_path / "new", library)
        assert loaded_by(library) == [os.getpid()]
    assert loaded_by(library) == []
