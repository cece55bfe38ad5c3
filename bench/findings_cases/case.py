"""What a case is, and SQL that proves that it happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bench.findings_judge import Expected
from bench.findings_stage.hands import Stage

#: A lock that blocks others, in whichever words.
LOCK = r"\block(s|ed)?\b|\bblock(s|ed|ing|er)?\b|idle in transaction"


@dataclass(frozen=True)
class Case:
    """Something that happens to a server, and how to tell whether it was understood.

    says: what a DBA would want to read. begin: makes it happen, and may return a pattern of its
    root if that is known only then (a pid). prepare: what must be there before it begins. proof:
    SQL that gives true while it happens, or a number that is larger than when it began. cause,
    root, remedy, also: as of `Expected`. needs: libraries, or a version. standby: whether it can
    happen on one, too, or only there.
    """

    name: str
    says: str
    begin: Callable[[Stage], str | None]
    proof: str
    cause: str = ""
    root: str = ""
    remedy: str = ""
    also: str = ""
    calm: bool = False
    prepare: Callable[[Stage], None] | None = None
    needs: frozenset[str] = frozenset()
    standby: Literal["no", "too", "only"] = "no"

    def expected(self, root: str | None) -> Expected:
        return Expected(self.cause, root or self.root, self.remedy, self.also, self.calm)


def alone(word: object) -> str:
    """A pattern of a name or number that is no part of another."""
    return rf"(?<!\w){re.escape(str(word))}(?!\w)"


def waiting(event: str, least: int = 2) -> str:
    """Proof that so many client sessions wait for an event, as `Lock/tuple`; a pattern."""
    return (
        f"SELECT count(*) >= {least} FROM pg_stat_activity WHERE backend_type = 'client backend' "
        f"AND state = 'active' AND wait_event_type || '/' || wait_event ~* '^({event})$'"
    )


def working(application: str, least: int = 1) -> str:
    """Proof that so many sessions of an application run statements on a processor."""
    return (
        f"SELECT count(*) >= {least} FROM pg_stat_activity WHERE application_name = "
        f"'{application}' AND state = 'active' AND wait_event IS NULL"
    )


def there(application: str, least: int = 1) -> str:
    """Proof that so many sessions of an application are connected."""
    return (
        f"SELECT count(*) >= {least} FROM pg_stat_activity WHERE application_name = '{application}'"
    )
