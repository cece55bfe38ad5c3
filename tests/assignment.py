"""What the server module draws for each session (draw_arms.c), computed again."""

from __future__ import annotations

from pgtare.estimate.trial.design import _MASK64, Design, _shuffled, _splitmix64

#: The stream of sessions that begin during the trial, and the block of their first run.
NOBODY = 0xFFFFFFFF


def permuted_block(design: Design, backend: int, block: int) -> tuple[int, ...]:
    """The arms of the runs of one block of one backend, in order.

    Each (seed, backend, block) has a SplitMix64 stream of its own (Steele, Lea, Flood 2014), which
    drives a Fisher-Yates shuffle.
    """
    state = (design.seed ^ (((backend << 32) | block) * 0xD1342543DE82EF95)) & _MASK64
    return _shuffled(design.block, state)


def first_arm(design: Design, session: int) -> int:
    """The arm of the first run of the trial's nth new session, from 0."""
    number, place = divmod(session, len(design.block))
    return permuted_block(design, NOBODY, number)[place]


def run_length(design: Design, backend: int, block: int) -> int:
    """Transactions of each run of a block; block NOBODY: of a session's first run."""
    state = (design.seed ^ (((backend << 32) | block) * 0x589965CC75374CC3)) & _MASK64
    _, draw = _splitmix64(state)
    lengths = design.runs.longest - design.runs.shortest + 1
    return design.runs.shortest + ((draw * lengths) >> 64)


def mixed_arm(design: Design, backend: int, slice_number: int) -> int:
    """The arm of a backend in a mixed slice."""
    stream = ((backend // 2) << 32) | slice_number
    state = (design.seed ^ (stream * 0xA0761D6478BD642F)) & _MASK64
    _, draw = _splitmix64(state)
    return (draw >> 63) ^ (backend & 1)
