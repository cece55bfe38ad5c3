"""What a piece of work takes of a processor that others want, too."""

import time
from collections.abc import Callable


def least_s(work: Callable[[], object]) -> float:
    """Processor time of the fastest of three: a collection of garbage is in one of them, s."""
    took = []
    for _ in range(3):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)
