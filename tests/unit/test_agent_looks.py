"""What the looks make of what a server answers; the answers are made up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pgtare.watching.agent import queries
from pgtare.watching.agent.rows import Batch
from pgtare.watching.agent.server_looks import ACTIVITY, ServerLooks
from pgtare.watching.agent.server_session import ServerSession

SECOND_US = 1_000_000
BOOT_US = 1_790_000_000 * SECOND_US


class AnsweredSession:
    """Answers each query with the rows that are set."""

    def __init__(self, system_identifier: int = 1) -> None:
        self.seconds: dict[str, float] = {}
        self.offer = SimpleNamespace(
            system_identifier=system_identifier, module=None, texts=None, exact_statements=True
        )
        self.answers: dict[str, list[tuple[Any, ...]]] = {}

    @contextlib.contextmanager
    def look(self, name: str) -> Iterator[None]:
        yield

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return self.answers[query]


def new_looks(stored: dict[str, pa.Table] | None = None) -> ServerLooks:
    return ServerLooks("shop", "agent", (stored or {}).get, 10)


def activity(
    looks: ServerLooks, commits: int, *, at_s: int, booted_s: int = 0, system_identifier: int = 1
) -> Batch:
    """A look at a server whose only database has so many commits."""
    session = AnsweredSession(system_identifier)
    session.answers = {
        queries.STARTED: [(BOOT_US + booted_s * SECOND_US, BOOT_US + at_s * SECOND_US)],
        queries.ACTIVITY: [(np.array([[5, 0, commits, *[0] * 12]], np.int64),)],
        queries.SETTINGS: [("{}",)],
        queries.DATABASES: [(5, "app")],
    }
    looks.begin(cast(ServerSession, session))
    return looks.activity(cast(ServerSession, session), 60)


def column(batch: Batch, table: str, name: str) -> list[Any]:
    return [value for part in batch.rows.get(table, []) for value in part[name].to_pylist()]


def test_activity_is_what_databases_did_since_the_last_look() -> None:
    looks = new_looks()
    assert activity(looks, 1000, at_s=3600).rows == {}
    assert column(activity(looks, 1007, at_s=3660), ACTIVITY, "commits") == [7]


def test_activity_of_another_server_is_a_new_baseline() -> None:
    looks = new_looks()
    activity(looks, 1000, at_s=3600)
    other = activity(looks, 900_000, at_s=3660, system_identifier=2)
    assert column(other, ACTIVITY, "commits") == []
    assert column(other, "gaps", "kind") == ["restart"]
    after = activity(looks, 900_003, at_s=3720, system_identifier=2)
    assert column(after, ACTIVITY, "commits") == [3]
    assert column(after, ACTIVITY, "settings") == ["{}"]


def test_activity_of_another_copy_is_a_new_baseline_also_after_the_agents_restart() -> None:
    stored = activity(new_looks(), 1000, at_s=3600).readings
    copy = activity(new_looks(stored), 900_000, at_s=3660, booted_s=-500)
    assert column(copy, ACTIVITY, "commits") == []
    assert column(copy, "gaps", "kind") == ["restart"]


def test_activity_goes_on_after_a_restart() -> None:
    stored = activity(new_looks(), 1000, at_s=3600).readings
    again = activity(new_looks(stored), 1004, at_s=3660, booted_s=3630)
    assert column(again, ACTIVITY, "commits") == [4]


def test_names_are_read_again_in_a_new_session() -> None:
    looks = new_looks()
    looks._roles, looks._databases, looks._names_read = {10: "old"}, {5: "old"}, 1e12
    session = AnsweredSession()
    session.answers = {queries.STARTED: [(BOOT_US, BOOT_US)]}
    looks.begin(cast(ServerSession, session))
    assert (looks._roles, looks._databases, looks._names_read) == ({}, {}, 0.0)
