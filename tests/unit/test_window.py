"""The window around a measured stretch: whose processor time it was, read at both ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pgtare.kit import machine
from pgtare.kit.window import Window

BUSY_S = 0.4
SPIN = f"import time\nend = time.process_time() + {BUSY_S}\nwhile time.process_time() < end: pass\n"


def spin() -> None:
    end = time.process_time() + BUSY_S
    while time.process_time() < end:
        pass


def test_processor_time_goes_to_whoever_had_it() -> None:
    asleep = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    busy = subprocess.Popen(
        [sys.executable, "-c", f"input()\n{SPIN}print(flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert busy.stdin is not None
    assert busy.stdout is not None
    try:
        with Window((asleep.pid, busy.pid), read=lambda: None) as window:
            subprocess.run([sys.executable, "-c", SPIN], check=True)  # ours, ended inside
            busy.stdin.write("\n")
            busy.stdin.flush()
            busy.stdout.readline()
    finally:
        for process in (asleep, busy):
            process.kill()
            process.communicate()
    idle_ticks, busy_ticks = window.ticks
    assert idle_ticks * machine.tick_s() < BUSY_S / 2
    assert busy_ticks * machine.tick_s() >= BUSY_S - 0.05
    assert window.own_s >= BUSY_S
    assert window.run_delay_ns[0] > 0
    shares = window.shares
    assert 0 <= shares.idle <= 1
    assert 0 <= shares.other <= 1
    assert window.steal_pct == pytest.approx(100 * shares.steal)


def test_readings_are_outside_of_the_stretch() -> None:
    """What `read` itself takes counts as nobody's, and it sees what settled after the block."""
    seen: list[str] = []
    began: list[float] = []

    def read() -> int:
        began.append(time.monotonic())
        spin()
        seen.append("read")
        return len(seen)

    with Window((os.getpid(),), read, settle_s=0.2) as window:
        seen.append("block")
    assert seen == ["read", "block", "read"]
    assert (window.first, window.last) == (1, 3)
    assert window.own_s < BUSY_S / 2
    assert began[1] - window.after.monotonic_s >= 0.2


def test_a_block_that_raises_has_no_second_end() -> None:
    reads: list[int] = []
    with (
        pytest.raises(ZeroDivisionError),
        Window((), read=lambda: reads.append(1)) as window,
    ):
        _ = 1 / 0
    assert reads == [1]
    assert not hasattr(window, "after")
