"""What a kept trace says of itself: why it was kept, and what its session did at that moment."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from pgtare.observing.trace.documents import SessionState
from pgtare.observing.trace.file.reader import Trace, moment
from pgtare.observing.trace.file.records import CALL, ESTIMATED, CallKind

#: What comes before an execution of the same statement.
_BEFORE_IT = (CallKind.PARSE, CallKind.BIND, CallKind.PLAN)


def kept_because(trace: Trace) -> Mapping[str, Any] | None:
    """What a kept trace says of its trigger; None: it is of another kind."""
    found = trace.recording.get("kept")
    return found if isinstance(found, Mapping) else None


def kept_at(trace: Trace) -> int | None:
    """When it was kept, ns since 1970; None: it was not, or the file is damaged."""
    return moment((kept_because(trace) or {}).get("at")) or None


def state_then(trace: Trace) -> SessionState | None:
    """What the server said that the session did; None: it was not asked, its request was over."""
    found, at = (kept_because(trace) or {}).get("doing"), kept_at(trace)
    if not isinstance(found, Mapping) or at is None:
        return None
    try:
        since = moment(found["since"])
        if not since:
            return None
        for_ns = at - since
        return SessionState(
            state=str(found["state"]),
            # it was asked a moment later
            running=bool(found["running"]) == (for_ns >= 0),
            started=datetime.fromtimestamp(since / 1e9, UTC),
            for_ns=max(for_ns, 0),
            event=str(found["event"]) if "event" in found else None,
        )
    except (KeyError, TypeError, ValueError):  # a damaged file
        return None


def with_call_under_way(
    calls: npt.NDArray[np.void], answered: int, until: int
) -> npt.NDArray[np.void]:
    """Calls, and the one that the session was in until `until`.

    answered: when its last request was. The call is of the statement that was parsed, bound or
    planned last since then. Of a request that is not traced nothing is known, nor is what comes
    after an execution.
    """
    top = calls[calls["depth"] == 0]
    if not len(top):
        return calls
    last = top[int(np.argmax(top["end"]))]
    if not answered < int(last["end"]) < until or last["kind"] not in _BEFORE_IT:
        return calls
    # those within it have ended, and name it
    within = calls[(calls["depth"] == 1) & (calls["parent"] > last["call"])]
    call = np.zeros(1, CALL)
    call["call"] = int(within["parent"].min()) if len(within) else int(calls["call"].max()) + 1
    call["kind"], call["flags"] = CallKind.EXECUTE, ESTIMATED
    call["text"], call["query_id"], call["plan"] = last["text"], last["query_id"], last["plan"]
    call["start"], call["end"], call["cpu"] = last["end"], until, -1
    call["busy"] = call["end"] - call["start"]
    return np.concatenate([calls, call])
