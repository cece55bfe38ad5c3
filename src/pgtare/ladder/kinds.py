"""The kinds of protocol: what each is called, and what of it counts as one in every test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["rounds", "duet", "units"]

#: Between a workload's name and its protocol's, where it is played by several.
BY = "@"


@dataclass(frozen=True)
class Words:
    """How results speak of a protocol.

    name: after "by"; block: what counts as one; blocks: several, told from other protocols';
    round: what is done, kept and dropped as one; part: what a variant has in it.
    """

    name: str
    block: str
    blocks: str
    round: str
    part: str


WORDS: dict[Kind, Words] = {
    "rounds": Words("rounds", "round", "rounds", "round", "run"),
    "duet": Words("duet", "set", "duet sets", "round", "server"),
    "units": Words("units in one server", "trial", "trials", "trial", "arm"),
}
