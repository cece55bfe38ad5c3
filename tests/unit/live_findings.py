"""Findings as an agent writes them, made up, with what would break out of a page."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

#: What would break out of a page.
HOSTILE_TEXT = "SELECT '<script>window.pwned = 1</script>' \"'><img src=x onerror='window.pwned=1'>"
HOSTILE_TITLE = "<img src=x onerror='window.pwned=1'> is set"
LOCK_KEY = "lock/100@2026-11-01T22:00:00"


def remedies(*found: dict[str, str]) -> str:
    """Remedies as they are stored."""
    return json.dumps(
        [{"command": "", "does": "", "risk": "", "privilege": "", **one} for one in found]
    )


def finding_row(ts: datetime, event: str, **given: Any) -> dict[str, Any]:
    """A row of a finding; what is not given is that of a setting."""
    usual = {
        "key": "setting/made-up",
        "kind": "made-up",
        "class": 3,
        "level": "info",
        "since": ts,
        "until": None,
        "episodes": 1,
        "victims": [],
        "title": HOSTILE_TITLE,
        "evidence": "seen",
        "why": "it matters",
        "remedy": remedies({"command": HOSTILE_TEXT, "does": HOSTILE_TEXT}),
        "sure": "certain",
        "because": "the server says so",
        "figures": "{}",
    }
    empty = dict.fromkeys(
        ("share", "aas", "active_s", "limit_left_s", "root", "gate", "query_id", "object")
    )
    return {"ts": ts, "event": event, **empty, **usual, "follows": None, "traces": None, **given}


def findings_of_shop(
    begin: datetime, end: datetime, deployed: datetime, story_end: datetime
) -> list[dict[str, Any]]:
    """A lock from one time to another, and a statement that is slower since a deployment."""
    holder = {"pid": 100, "role": "admin", "application": "nightly-job"}
    remedy = {
        "command": "SELECT pg_terminate_backend(100) FROM pg_stat_activity WHERE pid = 100;",
        "does": "ends the session, and so its transaction and locks",
        "risk": "its transaction is rolled back",
        "privilege": "pg_signal_backend",
    }
    lock = {
        "key": LOCK_KEY,
        "kind": "lock",
        "since": begin,
        "root": json.dumps(holder),
        "victims": [101, 102, 103, 104],
        "title": "nightly-job (pid 100) is idle in transaction and holds up others",
        "evidence": "4 sessions wait at once (Lock/transactionid)\nwaiting: «UPDATE stock»",
        "why": "what waits for a lock goes on when its holder's transaction ends, not before",
        "remedy": remedies(remedy, {"does": "find out why it idles"}),
        "traces": json.dumps(
            {
                "kept": [{"pid": 100, "id": 4, "file": "kept-4-findings.pgtrace"}],
                "missing": "no trace of 103: <b>the session is not traced",
            }
        ),
    }
    warned: dict[str, Any] = {"class": 1, "level": "warning"}
    shop = [
        finding_row(begin + timedelta(seconds=20), "open", **lock, share=0.45, aas=2.5, **warned),
        *(
            finding_row(
                begin + timedelta(seconds=80 + 60 * minute),
                "update",
                **{**lock, "class": 0, "level": "critical"},
                share=0.5 + 0.05 * minute,
                aas=4.0,
                active_s=240.0 * (minute + 1),
            )
            for minute in range(4)
        ),
        finding_row(end + timedelta(minutes=1), "close", **lock, until=end, share=0.3, **warned),
    ]
    slower = {
        "key": "statement/shop/6002",
        "kind": "statement",
        "query_id": 6002,
        "since": deployed,
        "title": "SELECT * FROM product takes twice as long as before",
    }
    minutes = range(1, (story_end - deployed) // timedelta(minutes=1) + 1)
    shop += [
        finding_row(
            deployed + timedelta(minutes=minute),
            "open" if minute == 1 else "update",
            **{**slower, **warned},
            share=0.3,
            aas=1.2,
            active_s=72.0 * minute,
        )
        for minute in minutes
    ]
    return shop
