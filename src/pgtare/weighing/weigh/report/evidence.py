"""States of proofs of activity in words."""

from __future__ import annotations

from pgtare.weighing.weigh.schema import ArmResult

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
