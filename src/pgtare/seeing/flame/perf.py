"""Runs perf as the collector: `perf record` into a pipe to `perf script`, nothing on disk."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import IO, Self

from pgtare.errors import MeasurementError
from pgtare.load.process import die_with
from pgtare.seeing.flame import permission, processes
from pgtare.seeing.flame.samples import Mode
from pgtare.server import signals

#: How a user stack is walked: by frame pointers, or from a copy of this many bytes of it.
FRAME_POINTERS, DWARF = "fp", "dwarf,8192"
_START_S = 30.0
_STOP_S = 20.0
#: Memory of the processors' buffers together, if we may have it locked, and of one at least and
#: at most, in MB; it has to be a power of two.
_BUFFERS_MB, _LEAST_MB, _MOST_MB = 128, 4, 16
_PRIORITY = -10
_RECORD = ["record", "-q", "-k", "CLOCK_MONOTONIC", "-D", "-1", "--no-buildid-cache", "-o", "-"]
_SCRIPT = ["script", "-i", "-", "--ns", "--no-inline", "--show-lost-events", "-F"]
_FIELDS = "comm,pid,tid,time,event,{}ip,sym,dso"
# Above this many counters (processes x processors) the whole machine is watched and sifted here.
_MOST_COUNTERS = 2048
FILTERED = 150  # pids in one filter of the kernel; above, by program name


def sampling(rate: int, walk: str, pids: Sequence[int], kernel: bool) -> list[str]:
    """Arguments that sample these processes and their children while they compute."""
    event = "cpu-clock" if kernel else "cpu-clock:u"
    arguments = ["-e", event, "-F", str(rate), "--call-graph", walk]
    if len(pids) * (os.cpu_count() or 1) > _MOST_COUNTERS and permission.capable():
        return [*arguments, "-a"]
    return [*arguments, "-p", ",".join(map(str, pids))]


def scheduling(mode: Mode, walk: str, pids: Sequence[int], *, by_name: bool) -> list[str]:
    """Arguments that record when processes leave the processor, come back, and are woken.

    by_name: every process of that program rather than these pids. The stack is that of the process
    that leaves, and for "wake" of the one that wakes it; no other stack is copied.
    """
    by_pid = not by_name and len(pids) <= FILTERED
    bare = "/call-graph=no/"
    arguments = ["-a", "--call-graph", walk]
    for event, number, name in (
        ("sched:sched_switch", "prev_pid", "prev_comm"),
        (f"sched:sched_switch{bare}", "next_pid", "next_comm"),
        (f"sched:sched_waking{'' if mode == 'wake' else bare}", "pid", "comm"),
    ):
        wanted = (
            [f"{number} == {pid}" for pid in pids]
            if by_pid
            else [f'{name} == "{program}"' for program in sorted(processes.PROGRAMS)]
        )
        arguments += ["-e", event, "--filter", " || ".join(wanted)]
    return arguments


class Collector:
    """Both programs of perf while its block runs; `lines` gives what they tell."""

    def __init__(self, mode: Mode, arguments: Sequence[str]) -> None:
        self._perf = permission.find_perf()
        self._arguments = arguments
        self._fields = _FIELDS.format("" if mode == "on" else "trace,")
        self.begin_ns = 0
        self._clean = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            with signals.deferred():
                self._start()
            self._enable()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def lines(self) -> Iterator[str]:
        """What perf prints, until it has ended, or is no longer read."""
        found: IO[str] | None = self._script.stdout
        assert found is not None
        with contextlib.suppress(ValueError):  # the stream was closed
            yield from found

    def stop(self) -> None:
        """Record no more; what was recorded still comes."""
        with contextlib.suppress(ProcessLookupError):
            self._record.send_signal(signal.SIGINT)

    @property
    def runs(self) -> bool:
        """Whether perf still records, and what it records is read."""
        return self._record.poll() is None and self._script.poll() is None

    def complaint(self) -> str:
        """What perf complained of, in one line."""
        self._complaints.seek(0)
        lines = [line.strip() for line in self._complaints.read().splitlines()]
        lines = [line for line in lines if line and "Ignoring" not in line and line != "Error:"]
        # what the second program says of the first one's silence comes last
        lines.sort(key=lambda line: "incompatible file format" in line)
        return lines[0] if lines else "it said nothing"

    def _start(self) -> None:
        command_in, command_out = os.pipe()
        answer_in, answer_out = os.pipe()
        self._command, self._answer = command_out, answer_in
        for fd in (command_out, answer_in):
            self._clean.callback(os.close, fd)
        self._complaints = self._clean.enter_context(
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        )
        control = f"--control=fd:{command_in},{answer_out}"
        buffer = ["-m", f"{_buffer_mb()}M"] if permission.capable() else []
        common = {
            "stderr": self._complaints,
            "env": {**os.environ, "LC_ALL": "C", "PERF_CONFIG": os.devnull},
            # Ctrl-C at the terminal is ours to act on
            "start_new_session": True,
            # with nothing to record they would never notice that we are gone
            "preexec_fn": die_with(os.getpid()),
        }
        try:
            self._record = subprocess.Popen(
                [self._perf, *_RECORD, control, *buffer, *self._arguments],
                stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                pass_fds=(command_in, answer_out),
                **common,  # type: ignore[call-overload]
            )
            self._script = subprocess.Popen(
                [self._perf, *_SCRIPT, self._fields],
                stdin=self._record.stdout,
                stdout=subprocess.PIPE,
                text=True,
                errors="replace",
                bufsize=1 << 20,
                **common,  # type: ignore[call-overload]
            )
        finally:
            os.close(command_in)
            os.close(answer_out)
        assert self._record.stdout is not None
        self._record.stdout.close()  # perf script has it
        for process in (self._record, self._script):
            hurry(process.pid)

    def _enable(self) -> None:
        """Let it record from now on, once it is ready."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._command, b"enable\n")
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if select.select([self._answer], [], [], 0.05)[0] and os.read(self._answer, 16):
                self.begin_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                return
            if self._record.poll() is not None:
                raise MeasurementError(f"perf could not record: {self.complaint()}")
        raise MeasurementError(f"perf was not ready within {_START_S:.0f} s: {self.complaint()}")

    def _close(self) -> None:
        for name in ("_record", "_script"):
            process: subprocess.Popen[str] | None = getattr(self, name, None)
            if process is None:
                continue
            if name == "_record":
                self.stop()
            assert process.stdout is not None
            process.stdout.close()  # what nobody reads ends
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._clean.close()


def hurry(task: int = 0) -> None:
    """Let a process or thread (0: this one) go before a server that wants every processor.

    What it reads is bounded; if it came too late, events would be lost. Needs the right to.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, task, _PRIORITY)


def _buffer_mb() -> int:
    """Memory of one processor's buffer."""
    share = _BUFFERS_MB // (os.cpu_count() or 1)
    return max(_LEAST_MB, min(_MOST_MB, 1 << max(0, share.bit_length() - 1)))
