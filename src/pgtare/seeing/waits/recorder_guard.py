"""Gives sessions back that a recorder of waits has traced, and does so for one that was killed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime

from pgtare.server.recorder_guard import Left, watch
from pgtare.server.wait_counters.reader import Reader, open_reader

#: As the guard's process is started.
MODULE = __name__

_GIVE_BACK = """
SELECT {waits}.wait_event_timing_set(pid, NULL) FROM pg_stat_activity WHERE (pid, backend_start) IN
(SELECT * FROM unnest(%s::int[], %s::timestamptz[])) AND backend_type = 'client backend'
"""


def give_back(reader: Reader, sessions: Mapping[int, datetime | str]) -> None:
    """Leave sessions (by when each began) to their own settings; those that have ended alone."""
    reader.rows(_GIVE_BACK, list(sessions), list(sessions.values()))


def _give_back(left: Left) -> None:
    with open_reader(left.dsn, any_version=True) as reader:
        give_back(reader, left.sessions)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        watch(_give_back)
