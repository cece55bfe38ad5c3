"""What the server module draws for each session (assign.c), computed again."""

from __future__ import annotations

from pgtare.estimate.trial.design import _MASK64, Design, _shuffled, _splitmix64

#: A session's first transactions, of whole blocks, are in no run: short sessions have only blocks.
RUNS_AFTER = 64


def permuted_block(design: Design, backend: int, block: int) -> tuple[int, ...]:
    """The arms of one block of one backend, in order.

    Each (seed, backend, block) has a SplitMix64 stream of its own (Steele, Lea, Flood 2014), which
    drives a Fisher-Yates shuffle.
    """
    state = (design.seed ^ (((backend << 32) | block) * 0xD1342543DE82EF95)) & _MASK64
    return _shuffled(design.block, state)


def filler(design: Design, backend: int, block: int) -> int | None:
    """The arm of the unit of no block that comes before this block, None if there is none.

    One block in ten has a filler before it, drawn from a stream of its own, so that blocks do not
    march in step with an application that repeats the same few transactions.
    """
    state = (design.seed ^ (((backend << 32) | block) * 0xA0761D6478BD642F)) & _MASK64
    state, draw = _splitmix64(state)
    if draw >= _MASK64 // 10:
        return None
    state, draw = _splitmix64(state)
    return design.block[(draw * len(design.block)) >> 64]


def run_before(design: Design, backend: int, block: int) -> bool:
    """Whether a pair of runs comes before this block, and before its filler; as in assign.c."""
    if design.runs is None or block * len(design.block) < RUNS_AFTER:
        return False
    state = (design.seed ^ (((backend << 32) | block) * 0xE7037ED1A0B428DB)) & _MASK64
    _, draw = _splitmix64(state)
    return draw < _MASK64 // design.runs.every


def run_drawn(design: Design, backend: int, run: int) -> tuple[int, int]:
    """The arm and the length of a backend's run, numbered from 0; assign.c computes the same.

    Runs 2 k and 2 k + 1 are pair k: the base and another arm, in random order. The other arms come
    in permuted rounds.
    """
    assert design.runs is not None
    turns, pair = design.runs.turns, run // 2
    number, turn = divmod(pair, len(turns))
    state = (design.seed ^ (((backend << 32) | number) * 0x8EBC6AF09C88C6E3)) & _MASK64
    other = _shuffled(turns, state)[turn]
    state = (design.seed ^ (((backend << 32) | pair) * 0x589965CC75374CC3)) & _MASK64
    state, draw = _splitmix64(state)
    base_first = draw >> 63 == 1
    _, draw = _splitmix64(state)
    lengths = design.runs.longest - design.runs.shortest + 1
    length = design.runs.shortest + ((draw * lengths) >> 64)
    return 0 if base_first == (run % 2 == 0) else other, length
