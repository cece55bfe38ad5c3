"""Which rows answer a question exactly, and which only as samples."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pgtare.errors import UsageError
from pgtare.postgres.wait_counters.active_sessions import CPU_TYPE

#: What a page can be divided by: the words in addresses, and for readers.
DIMENSION_WORDS = {
    "type": "wait class",
    "event": "event",
    "query_id": "statement",
    "role": "role",
    "database": "database",
    "backend_type": "type of process",
    "application": "application",
    "server": "server",
}
#: What a page can be filtered by.
FILTERS = (*DIMENSION_WORDS, "kind")

_WAITS = frozenset({"server", "backend_type", "type", "event"})
_STATEMENTS = frozenset({"server", "role", "database", "query_id", "kind", "type", "event"})


@dataclass(frozen=True)
class RowSource:
    """Rows, and the ticks that say how long they cover. note: what a reader must know of them."""

    rows: str
    ticks: str
    quality: str
    note: str

    @property
    def exact(self) -> bool:
        """Whether all time was counted."""
        return self.rows != "samples"

    @property
    def cut_note(self) -> str:
        """What a reader must know if the rows do not go back to the start of the window."""
        if self.exact:
            why = "Earlier rows were dropped, because they were old or room was short"
            return f"{why}: they are not in this table."
        return (
            "Samples are kept for two days, or less if agent.toml says so or room is short: "
            "earlier ones are not in this table."
        )

    @property
    def finest_s(self) -> int:
        """How far its rows are apart, s."""
        return 60 if self.rows == "statements" else 10


COUNTED = RowSource("waits", "waits", "exact", "All waits and the time on processors were counted.")
BY_STATEMENT = RowSource(
    "statements",
    "statements",
    "exact",
    "All waits were counted, by statement. Time on processors (CPU) is not included; samples "
    "have it.",
)
SAMPLED = RowSource(
    "samples",
    "sessions",
    "sampled",
    "An estimate from samples of active sessions, one a second, without background processes.",
)


def row_source(
    dimensions: Collection[str], only: Collection[str], wanted: str, counted: bool
) -> RowSource:
    """The rows that have all of these dimensions.

    dimensions: what is shown by; only: what it is filtered by, as `type=CPU` or a dimension's name.
    wanted: "sampled" to have samples in any case. counted: whether the module counted at all.
    Raises UsageError.
    """
    if wanted not in ("", "sampled"):
        raise UsageError("source is 'sampled' or left out")
    names = {one.partition("=")[0] for one in (*dimensions, *only)}
    if unknown := names - set(FILTERS):
        raise UsageError(f"{min(unknown)} is not one of {', '.join(FILTERS)}")
    if wanted == "sampled" or not counted:
        return SAMPLED
    if names <= _WAITS:
        return COUNTED
    if names <= _STATEMENTS and f"type={CPU_TYPE}" not in only:
        return BY_STATEMENT
    return SAMPLED
