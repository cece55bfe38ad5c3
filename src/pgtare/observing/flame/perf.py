"""Runs perf as the collector: `perf record` into a pipe to `perf script`, nothing on disk.

What perf lacks here to do so is reported in one sentence.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from pgtare.errors import MeasurementError, UsageError
from pgtare.observing.flame import processes
from pgtare.observing.flame.recording import Mode
from pgtare.postgres import signals
from pgtare.postgres.load.process import die_with

#: How a user stack is walked: by frame pointers, or from a copy of this many bytes of it.
FRAME_POINTERS, DWARF = "fp", "dwarf,8192"
_START_S = 30.0
_STOP_S = 20.0
#: Memory of the processors' buffers together, if we may have it locked, and of one at least and
#: at most, in MB; it has to be a power of two.
_BUFFERS_MB, _LEAST_MB, _MOST_MB = 128, 4, 16
_PRIORITY = -10
_RECORD = ["record", "-k", "CLOCK_MONOTONIC", "-D", "-1", "--no-buildid-cache", "-o", "-"]
_SCRIPT = ["script", "-i", "-", "--ns", "--no-inline", "--show-lost-events"]
_SCRIPT += ["--show-task-events", "-F"]
_FIELDS = "comm,pid,tid,time,event,{}ip,sym,dso"
# What perf says of itself, of processes that it does without, and above what it means.
_NO_COMPLAINT = ("[ perf record:", "Ignor", "Error:", "Warning:", "WARNING:")
# Above this many counters (processes x processors) the whole machine is watched and sifted here.
_MOST_COUNTERS = 2048
FILTERED = 150  # pids in one filter of the kernel

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_MOST_RATE = Path("/proc/sys/kernel/perf_event_max_sample_rate")
_TRACING = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
# capabilities by number: CAP_SYS_ADMIN, CAP_PERFMON
_ENOUGH = (1 << 21) | (1 << 38)
_ALL_USERS = str((1 << 32) - 1)


def find_perf() -> str:
    """The path of perf. Raises UsageError if it is not installed."""
    found = shutil.which("perf")
    if found is None:
        raise UsageError(
            "perf is not installed, and collects the samples: install it (Debian: apt-get install "
            "linux-perf; Ubuntu: linux-tools-generic; Fedora: perf)"
        )
    return found


def check_allowed(mode: Mode, pids: Sequence[int]) -> None:
    """Raise UsageError if these processes cannot be recorded in this mode."""
    level = paranoid()
    events = any(os.access(place / "events/sched/sched_switch/id", os.R_OK) for place in _TRACING)
    if mode != "on" and capable() and not events:
        raise UsageError(
            "the kernel's scheduler events are not there: mount tracefs "
            "(mount -t tracefs nodev /sys/kernel/tracing)"
        )
    if mode != "on" and not capable() and (level > -1 or not events):
        raise UsageError(
            "waits are seen through scheduler events of the whole machine, which needs root, "
            f"or CAP_PERFMON and a readable tracefs (perf_event_paranoid is {level}"
            + ("" if _machines_users() else "; root of a user namespace is not enough")
            + ")"
        )
    if mode != "on" or capable():
        return
    if level > 2:
        raise UsageError(
            f"perf_event_paranoid is {level}, so only root may sample: run pgtare as root, or let "
            "root run sysctl kernel.perf_event_paranoid=2"
        )
    for pid in pids:
        uid = processes.owner(pid)
        if uid is not None and uid != os.geteuid():
            raise UsageError(
                f"process {pid} belongs to {_name(uid)}, and with perf_event_paranoid at {level} "
                "only root and its owner may sample it: run pgtare as one of them"
            )


def sees_kernel() -> bool:
    """Whether the kernel's part of stacks can be recorded."""
    return capable() or paranoid() < 2


def sees_everything() -> bool:
    """Whether the whole machine may be sampled."""
    return capable() or paranoid() < 1


def capable() -> bool:
    """Whether we hold CAP_PERFMON or CAP_SYS_ADMIN, of the machine's own user namespace.

    In another one, as in a rootless container, the kernel takes us for any user.
    """
    if not _machines_users():
        return False
    for line in processes.read(os.getpid(), "status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _ENOUGH)
    return False


def _machines_users() -> bool:
    """Whether our user namespace is the machine's own."""
    return processes.read(os.getpid(), "uid_map").split() == ["0", "0", _ALL_USERS]


def paranoid() -> int:
    """The kernel's setting; 4 (nothing allowed) if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return int(_PARANOID.read_text())
    return 4


def possible_rate(rate: int) -> int:
    """What the kernel allows of a rate, in samples a second; perf lowers it without an error."""
    with contextlib.suppress(OSError, ValueError):
        return max(1, min(rate, int(_MOST_RATE.read_text())))
    return rate


def _name(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"user {uid}"


def too_many(pids: Sequence[int]) -> bool:
    """Whether these are too many processes to sample each for itself."""
    return len(pids) * (os.cpu_count() or 1) > _MOST_COUNTERS


def sampling(rate: int, walk: str, pids: Sequence[int] | None) -> list[str]:
    """Arguments that sample these processes and their children while they compute; None: all."""
    arguments = ["-F", str(rate), "--call-graph", walk]
    if pids is None:
        return ["-e", "cpu-clock:I", *arguments, "-a"]  # a processor that idles is no process
    event = "cpu-clock" if sees_kernel() else "cpu-clock:u"
    return ["-e", event, *arguments, "-p", ",".join(map(str, pids))]


def scheduling(mode: Mode, walk: str, pids: Sequence[int], *, by_name: bool) -> list[str]:
    """Arguments that record when processes leave the processor, come back, and are woken.

    by_name: every process of that program rather than these pids, FILTERED at most. The stack is
    that of the process that leaves, and for "wake" of the one that wakes it; no other stack is
    copied.
    """
    bare = "/call-graph=no/"
    arguments = ["-a", "--call-graph", walk]
    for event, number, name in (
        ("sched:sched_switch", "prev_pid", "prev_comm"),
        (f"sched:sched_switch{bare}", "next_pid", "next_comm"),
        (f"sched:sched_waking{'' if mode == 'wake' else bare}", "pid", "comm"),
    ):
        wanted = (
            [f'{name} == "{program}"' for program in sorted(processes.PROGRAMS)]
            if by_name
            else [f"{number} == {pid}" for pid in pids]
        )
        arguments += ["-e", event, "--filter", " || ".join(wanted)]
    return arguments


@contextlib.contextmanager
def collecting(mode: Mode, arguments: Sequence[str]) -> Iterator[Collector]:
    """Both programs of perf at work while the block runs. Raises MeasurementError if they fail."""
    with contextlib.ExitStack() as clean:
        with signals.deferred():
            collector = Collector(mode, arguments, clean)
        collector.enable()
        yield collector


class Collector:
    """Both programs of perf; `lines` gives what they tell. `clean` ends them."""

    def __init__(self, mode: Mode, arguments: Sequence[str], clean: contextlib.ExitStack) -> None:
        perf = find_perf()
        self._started: list[subprocess.Popen[bytes]] = []
        self._early = bytearray()
        self._complaints = clean.enter_context(
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        )
        command_in, self._command = os.pipe()
        self._answer, answer_out = os.pipe()
        for fd in (self._command, self._answer):
            clean.callback(os.close, fd)
        clean.callback(self._close)
        control = f"--control=fd:{command_in},{answer_out}"
        buffer = ["-m", f"{_buffer_mb()}M"] if capable() else []
        fields = _FIELDS.format("" if mode == "on" else "trace,")
        # its stacks of other programs would be walked for nothing
        sift = (
            ["--comms", ",".join(processes.PROGRAMS)] if mode == "on" and "-a" in arguments else []
        )
        try:
            self._record = self._start(
                [perf, *_RECORD, control, *buffer, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=(command_in, answer_out),
            )
            self._script = self._start(
                [perf, *_SCRIPT, fields, *sift], stdin=self._record.stdout, bufsize=1 << 20
            )
        finally:
            os.close(command_in)
            os.close(answer_out)
        assert self._record.stdout is not None
        self._record.stdout.close()  # perf script has it

    def _start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, "LC_ALL": "C", "PERF_CONFIG": os.devnull},
            # Ctrl-C at the terminal is ours to act on
            start_new_session=True,
            # with nothing to record they would never notice that we are gone
            preexec_fn=die_with(os.getpid()),
            **options,
        )
        self._started.append(process)
        hurry(process.pid)
        return process

    def enable(self) -> None:
        """Let it record from now on, once it is ready.

        Before that it tells of all processes of the machine, which is read meanwhile: else it
        would wait for us.
        """
        with contextlib.suppress(BrokenPipeError):
            os.write(self._command, b"enable\n")
        assert self._script.stdout is not None
        told = self._script.stdout.fileno()
        wanted = [self._answer, told]
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            ready = select.select(wanted, [], [], 0.05)[0]
            if told in ready:
                self._early += (found := os.read(told, 1 << 16))
                if not found:
                    wanted.remove(told)
            if self._answer in ready and os.read(self._answer, 16):
                self.begin_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                return
            if self._record.poll() is not None:
                raise MeasurementError(f"perf could not record: {self.complaint()}")
        raise MeasurementError(f"perf was not ready within {_START_S:.0f} s: {self.complaint()}")

    def lines(self) -> Iterator[str]:
        """What perf prints, until it has ended, or is no longer read."""
        found: IO[bytes] | None = self._script.stdout
        assert found is not None
        *early, cut = bytes(self._early).split(b"\n")
        for line in early:
            yield line.decode(errors="replace") + "\n"
        with contextlib.suppress(ValueError):  # the stream was closed
            for line in found:
                yield (cut + line).decode(errors="replace")
                cut = b""

    def stop(self) -> None:
        """Record no more; what was recorded still comes."""
        self._record.send_signal(signal.SIGINT)

    @property
    def runs(self) -> bool:
        """Whether perf still records, and what it records is read."""
        return self._record.poll() is None and self._script.poll() is None

    def complaint(self) -> str:
        """What perf complained of, in one line."""
        self._complaints.seek(0)
        lines = [line.strip() for line in self._complaints.read().splitlines()]
        lines = [line for line in lines if line and not any(no in line for no in _NO_COMPLAINT)]
        # what the second program says of the first one's silence comes last
        lines.sort(key=lambda line: "incompatible file format" in line)
        return lines[0] if lines else "it said nothing"

    def _close(self) -> None:
        for process in self._started:
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            process.stdout.close()  # what nobody reads ends
        for process in self._started:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def hurry(task: int) -> None:
    """Let a process or thread go before a server that wants every processor.

    What it reads is bounded; if it came too late, events would be lost. Needs the right to.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, task, _PRIORITY)


def _buffer_mb() -> int:
    """Memory of one processor's buffer."""
    share = _BUFFERS_MB // (os.cpu_count() or 1)
    return max(_LEAST_MB, min(_MOST_MB, 1 << max(0, share.bit_length() - 1)))
