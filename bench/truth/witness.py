"""The witness: every store into the words in which processes announce their waits.

A hardware watchpoint on each word makes the processor stop at every store, and a program in the
kernel (bpftrace) writes down what was stored and when; it does the same for the system calls that a
process makes while a wait is announced. Nothing of the server or of its modules takes part.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pgtare.errors import MeasurementError
from pgtare.postgres.binaries import Binaries

MAX_WORDS = 4  # debug registers of x86-64
START_SECONDS = 20.0
SETTLE_NS = 150_000_000
# pages of buffer a CPU; a full buffer loses lines, which are counted
ENVIRONMENT = {"BPFTRACE_PERF_RB_PAGES": "2048"}

# The kernel silently turns an event off until its next tick if it comes too often: stores
# would be missing. So the limit is raised while we watch.
SAMPLE_LIMIT = Path("/proc/sys/kernel/perf_event_max_sample_rate")
UNLIMITED = "100000000"

# Where the kernel lists its tracepoints; not every system mounts it
TRACING = Path("/sys/kernel/tracing")

# System calls of x86-64 in which the server waits, by number
CALLS = {
    0: "read",
    1: "write",
    7: "poll",
    17: "pread64",
    18: "pwrite64",
    23: "select",
    26: "msync",
    35: "nanosleep",
    61: "wait4",
    65: "semop",
    74: "fsync",
    75: "fdatasync",
    76: "truncate",
    77: "ftruncate",
    82: "rename",
    202: "futex",
    221: "fadvise64",
    230: "clock_nanosleep",
    232: "epoll_wait",
    257: "openat",
    270: "pselect6",
    277: "sync_file_range",
    281: "epoll_pwait",
    285: "fallocate",
    295: "preadv",
    296: "pwritev",
    326: "copy_file_range",
}

# What a signal handler does while the process waits: kill (of itself, for the latch), setitimer,
# getpid, rt_sigaction, rt_sigprocmask, rt_sigreturn, which leaves with -1
SIGNALS = (62, 38, 39, 13, 14, 15, -1)

# A line is written after a wait has ended, never within one: to write takes an interrupt itself.
_STORE = """
watchpoint:{address:#x}:4:w /{whose}/ {{
  $value = *(uint32 *) uptr({address:#x});
  if (@event[tid]) {{
    printf("W %d %u %lu %lu %d %d %lu %lu %d\\n", tid, @event[tid], @begin[tid], nsecs,
           @waits[tid], @calls[tid], @ns[tid], @off[tid], @kind[tid]);
  }}
  if ($value && $value != @before[tid]) {{ @again[tid] = 0; }}
  if ($value) {{ @before[tid] = $value; }}
  @event[tid] = $value; @begin[tid] = nsecs; @waits[tid] = 0; @calls[tid] = 0; @ns[tid] = 0;
  @off[tid] = 0; @kind[tid] = -1; @last[tid] = 0; @since[tid] = 0;
}}
"""
# Which calls make up one wait is said in docs/wait-events.md: a call goes on with the wait of the
# one before it after EINTR, even when the same wait was announced anew, as the next try at a
# semaphore (futex, 202), or as the read (0) of the signal descriptor after epoll_wait (232).
# @last and @again hold the number of the call that would go on, plus 1. A process that is taken off
# the processor between the end of a call and that of the wait, as happens on the way out of the
# kernel, waits on.
_CALLS = """
tracepoint:raw_syscalls:sys_enter /@event[tid]/ { @since[tid] = nsecs; }
tracepoint:raw_syscalls:sys_exit /@since[tid]/ {
  $took = (uint64) (nsecs - @since[tid]);
  @since[tid] = 0;
  if (IS_WAIT) {
    if (args->id + 1 != @last[tid] && args->id + 1 != @again[tid]) { @waits[tid]++; }
    @calls[tid]++;
    @ns[tid] += $took;
    if (@kind[tid] == -1) { @kind[tid] = args->id; }
    @last[tid] = 0; @again[tid] = 0;
    if (args->id == 232 || args->id == 281) { @last[tid] = 1; }
    if (args->id == 202) { @last[tid] = 203; }
    if (args->ret == -4 || (args->ret <= -512 && args->ret >= -516)) { @again[tid] = args->id + 1; }
  }
}
tracepoint:sched:sched_switch /@calls[args->prev_pid] && !@since[args->prev_pid]/ {
  @gone[args->prev_pid] = nsecs;
}
tracepoint:sched:sched_switch /@gone[args->next_pid]/ {
  @off[args->next_pid] += (uint64) (nsecs - @gone[args->next_pid]);
  delete(@gone[args->next_pid]);
}
interval:ms:50 { printf("BEAT %lu\\n", nsecs); }
END {
  print(@begin); print(@event);
  clear(@event); clear(@begin); clear(@waits); clear(@calls); clear(@ns); clear(@off);
  clear(@kind); clear(@last); clear(@gone); clear(@before); clear(@again); clear(@since);
  printf("END\\n");
}
""".replace("IS_WAIT", " && ".join(f"args->id != {number}" for number in SIGNALS))


@dataclass(frozen=True)
class Word:
    """Where a process announces its waits; pid 0 is any server process."""

    address: int
    pid: int = 0


@dataclass(frozen=True)
class Announcement:
    """From a store of an event to the next store. Times are of CLOCK_MONOTONIC."""

    pid: int
    event: int
    begin_ns: int
    end_ns: int
    waits: int  # by the rule of docs/wait-events.md; 0: the process never went into the kernel
    calls: int
    call_ns: int  # in all of them, as the kernel sees it
    off_ns: int  # off the processor, outside of calls
    kind: str  # of the first call

    @property
    def ns(self) -> int:
        """Between the traps, each of which takes long itself."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Log:
    """What the witness saw."""

    announcements: tuple[Announcement, ...]  # that have ended, by process and time
    open: dict[int, tuple[int, int]]  # by process: event and begin of the last
    lost: int


def missing() -> str | None:
    """Why the witness cannot be heard here, or None."""
    if platform.machine() != "x86_64":
        return "on this architecture a watchpoint stops before the store, not after it"
    for program in ("bpftrace", "nm"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if os.geteuid() != 0:
        return "bpftrace needs root"
    return None


def word_of(binaries: Binaries, pid: int) -> int:
    """The address that my_wait_event_info holds in this process."""
    listed = subprocess.run(
        ["nm", "-D", str(binaries.postgres)], capture_output=True, text=True, check=True
    )
    found = re.search(r"^([0-9a-f]+) \w my_wait_event_info$", listed.stdout, re.MULTILINE)
    if not found:
        raise MeasurementError(f"{binaries.postgres} does not export my_wait_event_info")
    symbol = int(found[1], 16)
    with open(binaries.postgres, "rb") as program:
        (kind,) = struct.unpack("<H", program.read(18)[16:])
    if kind == 3:  # ET_DYN: position independent
        first = Path(f"/proc/{pid}/maps").read_text().split("-", 1)[0]
        symbol += int(first, 16)
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(symbol)
        (address,) = struct.unpack("<Q", memory.read(8))
    return int(address)


class Witness:
    """Records while its block runs; `log` then has what was seen."""

    def __init__(self, words: Sequence[Word], program: str = "postgres") -> None:
        if len(words) > MAX_WORDS:
            raise ValueError(f"the processor watches {MAX_WORDS} words, not {len(words)}")
        self._script = "".join(
            _STORE.format(
                address=word.address,
                whose=f"pid == {word.pid}" if word.pid else f'comm == "{program}"',
            )
            for word in words
        )
        self._script += _CALLS
        self._log: Log | None = None

    @property
    def log(self) -> Log:
        """After the block."""
        assert self._log is not None
        return self._log

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="pgtare-witness-")
        self._output = Path(self._directory.name) / "log"
        if not (TRACING / "events").exists():
            subprocess.run(
                ["mount", "-t", "tracefs", "nodev", TRACING], check=False, capture_output=True
            )
        self._limit = SAMPLE_LIMIT.read_text()
        SAMPLE_LIMIT.write_text(UNLIMITED)
        deadline = time.monotonic() + START_SECONDS
        while not self._started(deadline):
            lines = self._output.read_text().strip().splitlines()
            # another may hold the processor's registers for a while
            if "No more HW registers" in " ".join(lines) and time.monotonic() < deadline:
                time.sleep(0.5)
                continue
            self._end()
            self._directory.cleanup()
            why = lines[-1] if lines else "bpftrace said nothing"
            raise MeasurementError(f"hardware watchpoints do not work here: {why}")
        return self

    def _started(self, deadline: float) -> bool:
        with open(self._output, "wb") as output:
            self._popen = subprocess.Popen(
                ["bpftrace", "-e", self._script],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT},
            )
        while self._popen.poll() is None and time.monotonic() < deadline:
            if "BEAT " in self._output.read_text():
                return True
            time.sleep(0.02)
        return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end()
            if kind is None:
                self._log = parse(self._output.read_text())
        finally:
            self._directory.cleanup()

    def _end(self) -> None:
        SAMPLE_LIMIT.write_text(self._limit)
        # what is still in its buffers when it is interrupted would be lost
        begin = time.monotonic_ns()
        while self._popen.poll() is None and self._heard_ns() < begin + SETTLE_NS:
            if time.monotonic_ns() > begin + START_SECONDS * 1e9:
                break
            time.sleep(0.05)
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGINT)
        try:
            self._popen.wait(30)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _heard_ns(self) -> int:
        """How far the log has come; it beats even when nothing is stored."""
        with open(self._output, "rb") as log:
            log.seek(max(0, self._output.stat().st_size - 10_000))
            beats = re.findall(rb"^BEAT (\d+)$", log.read(), re.MULTILINE)
        return int(beats[-1]) if beats else 0


def parse(text: str) -> Log:
    """The log that bpftrace wrote. Raises MeasurementError if its end is missing."""
    if "\nEND\n" not in text:
        raise MeasurementError(f"bpftrace did not end as it should: {text[-500:].strip()}")
    found = []
    state: dict[str, dict[int, int]] = {"begin": {}, "event": {}}
    lost = 0
    for line in text.splitlines():
        if line.startswith("W "):
            pid, event, begin, end, waits, calls, ns, off, kind = map(int, line.split(" ")[1:])
            called = CALLS.get(kind, f"system call {kind}")
            found.append(Announcement(pid, event, begin, end, waits, calls, ns, off, called))
        elif at := re.match(r"@(begin|event)\[(\d+)\]: (\d+)", line):
            state[at[1]][int(at[2])] = int(at[3])
        elif at := re.match(r"Lost (\d+) events", line):
            lost += int(at[1])
    # buffers are one a CPU: lines of a process that moved come out of order
    found.sort(key=lambda seen: (seen.pid, seen.begin_ns))
    still = {pid: (event, state["begin"][pid]) for pid, event in state["event"].items() if event}
    return Log(tuple(found), still, lost)
