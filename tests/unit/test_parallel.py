"""Jobs side by side: all their outcomes, in order, and none that hangs."""

from __future__ import annotations

import threading
import time

import pytest

from pgtare.errors import UsageError
from pgtare.postgres.parallel import for_each


def test_outcomes_in_the_order_of_the_names() -> None:
    found = for_each(["b", "a", "c"], str.upper, at_once=2, limit_s=100)
    assert list(found) == ["b", "a", "c"]
    assert [outcome.answer for outcome in found.values()] == ["B", "A", "C"]


def test_a_failure_is_an_outcome_and_a_fault_of_ours_is_raised() -> None:
    def job(name: str) -> int:
        if name == "x":
            raise UsageError("no such server")
        return int(name)

    found = for_each(["1", "x"], job, at_once=2, limit_s=100)
    assert (found["1"].answer, found["x"].problem) == (1, "no such server")
    with pytest.raises(ValueError, match="invalid literal"):
        for_each(["1", "y"], job, at_once=2, limit_s=100)


def test_one_that_hangs_is_given_up_and_delays_no_other() -> None:
    hang = threading.Event()

    def job(name: str) -> str:
        if name == "hangs":
            hang.wait(120)
        return name

    began = time.monotonic()
    # the others have as long, and may have to wait for a processor
    found = for_each(["hangs", "x", "y"], job, at_once=1, limit_s=3)
    assert time.monotonic() - began < 60
    assert (found["hangs"].late, found["hangs"].answer) == (True, None)
    assert (found["x"].answer, found["y"].answer) == ("x", "y")
    hang.set()


@pytest.mark.parametrize("at_once", [1, 3])
def test_so_many_run_at_one_time(at_once: int) -> None:
    change, now, most = threading.Condition(), 0, 0

    def job(name: str) -> None:
        nonlocal now, most
        with change:
            now += 1
            most = max(most, now)
            change.notify_all()
            change.wait_for(lambda: most >= at_once, 60)  # a thread may begin late
        time.sleep(0.05)
        with change:
            now -= 1

    for_each(list("abcdef"), job, at_once=at_once, limit_s=100)
    assert most == at_once
