"""Runs what users give to switch by: commands that return, and a process that runs for a while."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile

import psutil

from pgtare.errors import MeasurementError
from pgtare.weighing.switches import COMMAND_S

#: A process that ends so soon after its start has failed, in s.
_STARTS_S = 0.5
#: How long a process may take to end when asked to, in s.
ENDS_S = 10.0
_TAIL_BYTES = 300
#: Keeps up to 4 MiB, each line as it comes, and reads the rest.
_READ = "dd bs=4096 count=1024 2>/dev/null; exec cat >/dev/null"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: A command with its shell, which takes all that it has started with it when it is ended. It asks
#: twice: a shell that has just been forked loses a signal while it sets up its own.
_LED = """trap 'trap "" TERM; kill 0; sleep 0.2; kill 0' TERM
(
{}
) &
wait $!"""
_libc = ctypes.CDLL(None)


def adopt() -> None:
    """From now on what commands start and leave behind belongs to this process."""
    with contextlib.suppress(OSError, AttributeError):
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def run(command: str, what: str) -> None:
    """Run a command until it returns. what: for the sentence if it fails.

    Raises MeasurementError.
    """
    popen, output = _started(command)
    try:
        status = popen.wait(COMMAND_S)
    except subprocess.TimeoutExpired:
        signal_group(popen.pid, signal.SIGKILL)
        popen.wait()
        minutes = COMMAND_S / 60
        raise MeasurementError(f"{what}: the command did not return in {minutes:.0f} min") from None
    if status:
        raise MeasurementError(f"{what}: the command failed (status {status}){output.text()}")


class Process:
    """A command that runs while its switch is on, with all that it starts."""

    def __init__(self, command: str, what: str) -> None:
        self._what = what
        self._there_before = _descendants()
        self._popen, self._output = _started(command)
        self.pid = self._popen.pid
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_STARTS_S)
            raise self._ended()

    def end(self) -> None:
        """End it. Raises MeasurementError if it has ended by itself."""
        ended = self._ended() if self._popen.poll() is not None else None
        end_group(self.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(1)
        for process in _descendants() - self._there_before:  # some left its group
            with contextlib.suppress(psutil.Error, ChildProcessError):
                process.kill()
                os.waitpid(process.pid, 0)
        if ended is not None:
            raise ended

    def _ended(self) -> MeasurementError:
        returned = self._popen.returncode == 0
        advice = "; one that returns needs a second one that switches off" if returned else ""
        return MeasurementError(
            f"{self._what}: the command ended by itself (status {self._popen.returncode})"
            f"{self._output.text()}{advice}"
        )


def end_group(group: int) -> None:
    """End a process group, and wait until it has ended."""
    signal_group(group, signal.SIGTERM)
    left = [process for process in psutil.process_iter() if _group(process) == group]
    _, alive = psutil.wait_procs(left, ENDS_S)
    if alive:
        signal_group(group, signal.SIGKILL)
        psutil.wait_procs(alive, 1)


def signal_group(group: int, signum: signal.Signals) -> None:
    """Send a signal to a process group, if it is there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def _group(process: psutil.Process) -> int | None:
    try:
        running = process.status() != psutil.STATUS_ZOMBIE
        return os.getpgid(process.pid) if running else None
    except (psutil.Error, ProcessLookupError):
        return None


def _descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _started(command: str) -> tuple[subprocess.Popen[bytes], _Output]:
    output = _Output()
    popen = subprocess.Popen(  # noqa: S602 the user's own command
        _LED.format(command),
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=output.pipe,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    os.close(output.pipe)
    return popen, output


def _end_with_parent() -> None:
    """In the new process: end if the guardian is killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Output:
    """What a command prints: its beginning is kept, and the end of that shown if it fails.

    Another process reads it for as long as anybody writes. So what a command leaves running may
    outlive us, and does not fill a disk.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()
        reads, self.pipe = os.pipe()
        self._reader = subprocess.Popen(
            ["/bin/sh", "-c", _READ],
            stdin=reads,
            stdout=self._file,
            cwd="/",
            start_new_session=True,
        )
        os.close(reads)

    def text(self) -> str:
        """As the end of a sentence; nothing if nothing was printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reader.wait(_STARTS_S)  # what it has started may go on writing
        end = os.fstat(self._file.fileno()).st_size
        last = os.pread(self._file.fileno(), _TAIL_BYTES, max(end - _TAIL_BYTES, 0))
        text = " ".join(last.decode(errors="replace").split())
        return f": {text}" if text else ""
