"""Locks of the modules by their names, which are all that tells waits for them apart."""

from __future__ import annotations

import re
from collections import Counter

from pgtare.postgres.build import source_dir

#: The name of a memory, and that of its lock's tranche.
_MEMORY = re.compile(r'ModuleShmem \w+\s*=\s*\{\s*"([^"]+)",\s*"([^"]+)"')


def test_each_memory_has_a_lock_of_a_name_of_its_own() -> None:
    """Two of one name are one entry of the counters, whose reset of one looks like a loss."""
    found = [
        pair
        for path in sorted(source_dir().rglob("*.c"))
        for pair in _MEMORY.findall(path.read_text())
    ]
    assert len(found) >= 7
    for names in zip(*found, strict=True):
        assert [name for name, times in Counter(names).items() if times > 1] == []
