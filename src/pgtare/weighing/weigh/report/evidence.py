"""Proofs of activity in plain words; the result itself keeps the names of the flags."""

from __future__ import annotations

import re

from pgtare.weighing.weigh.schema import ArmResult

#: What a transaction with the flag did, for "12 of 12 transactions ...".
_DID = {
    "LOGGED": "wrote to the log",
    "INSTRUMENTED": "ran with per-node instrumentation",
    "TOTAL_TIMED": "ran with whole-query timing",
    "QUERY_ID": "carried a query id",
    "BLOCKS_READ": "read a block from outside shared buffers",
    "IO_TIMED": "timed their reads and writes",
    "SYSTEM_CLOCK": "took times from the system's clock",
    "EXECUTED": "ran a plan",
}
_FLAG = "|".join(_DID)
_COUNTED = re.compile(
    rf"\b({_FLAG}) in (\d+) of (\d+) transactions(?: with ({_FLAG}))? "
    r"\(([\d.e+-]+ %|none)\), base ([\d.e+-]+ %|none)"
)
_OF = re.compile(r"(?<![\d.])(\d+) of (\d+)(?![\d.]*\d)")

STATES = {
    "active": "seen at work",
    "idle": "in force, with nothing to do",
    "own": "in force, but no proof is known for arms of your own",
    "unknown": "in force, but no proof is known",
    "unseen": "in force, but nothing shows from outside that it worked",
    "missing": "not seen at work",
}


def state(arm: ArmResult) -> str:
    """The proof's state, a key of STATES, where an unproven one is not idle; "" without a proof."""
    if arm.proof is None:
        return ""
    return arm.proof.unproven or arm.proof.state


def word(arm: ArmResult) -> str:
    """The state for a cell of the table, "" if there is no proof."""
    found = state(arm)
    return "in force" if found in ("own", "unknown", "unseen") else found


def of(arm: ArmResult) -> str:
    """The arm's evidence in plain words, "" if there is none."""
    return plain(arm.proof.evidence) if arm.proof else ""


def plain(evidence: str) -> str:
    """The evidence without names of flags, and with thousands apart."""
    text = _COUNTED.sub(_counted, evidence)
    text = re.sub(rf"\bhad ({_FLAG})\b", lambda found: _DID[found[1]], text)
    text = re.sub(rf"\bwith ({_FLAG})\b", lambda found: f"that {_DID[found[1]]}", text)
    text = re.sub(rf"\b({_FLAG})\b", lambda found: _DID[found[1]], text)
    return _OF.sub(lambda found: f"{int(found[1]):,} of {int(found[2]):,}", text)


def _counted(found: re.Match[str]) -> str:
    flag, k, n, where, share, base = found.groups()
    others = "none" if base in ("0 %", "none") else base
    if where:
        some = "all" if k == n else f"{int(k):,} ({share})"
        return (
            f"of {int(n):,} transactions that {_DID[where]}, {some} {_DID[flag]} (base: {others})"
        )
    some = f"all {int(n):,}" if k == n else f"{int(k):,} of {int(n):,}"
    share = "" if k == n else f"{share}; "
    return f"{some} transactions {_DID[flag]} ({share}base: {others})"
