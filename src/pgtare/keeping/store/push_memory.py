"""What was sent to the store, in a small file of the spool that is replaced by one rename.

If it is lost, the store is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pgtare.keeping.spool.volume import Volume

FILE = "pushed.json"
_FORMAT = "pgtare.spool.pushed/1"


@dataclass(frozen=True)
class PartialPush:
    """Commits of which the store has some rows of a table and day, but not all."""

    table: str
    day: str
    seqs: tuple[int, ...]


@dataclass(frozen=True)
class PushMemory:
    """What was sent of a spool: all commits up to sent_seq, except those that are partial.

    sending_to: the window that was begun. rolled_us: up to which ts the rolled-up tables were sent.
    replica: the server that has it. rewound_to: the spool went back to this commit, and the store
    has later ones that it lost.
    """

    spool: str
    sent_seq: int = 0
    sending_to: int | None = None
    rolled_us: Mapping[str, int] = field(default_factory=dict)
    partial: tuple[PartialPush, ...] = ()
    replica: str | None = None
    rewound_to: int | None = None

    @property
    def kept_seq(self) -> int:
        """Rows of commits after this one are still needed."""
        return min([self.sent_seq, *(min(one.seqs) - 1 for one in self.partial)])


def read(root: Path) -> PushMemory | None:
    """What a spool's file says; None if there is none that can be read."""
    try:
        found = json.loads((root / FILE).read_text(encoding="utf-8"))
        if found.pop("format") != _FORMAT:
            return None
        partial = tuple(
            PartialPush(one["table"], one["day"], tuple(one["seqs"]))
            for one in found.pop("partial")
        )
        return PushMemory(**found, partial=partial)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(volume: Volume, memory: PushMemory) -> None:
    """Replace the file. Errors are OSErrors."""
    text = json.dumps({"format": _FORMAT, **asdict(memory)}) + "\n"
    volume.write(f"{FILE}.new", text.encode())
    volume.replace(f"{FILE}.new", FILE)
    volume.sync()
