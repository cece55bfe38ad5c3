"""Runs what users give to switch by: commands that return, and a process that runs for a while."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile

import psutil

from pgtare.errors import MeasurementError
from pgtare.kit.interpreter import module_command
from pgtare.postgres.load.process import die_with
from pgtare.weighing.switches import COMMAND_S
from pgtare.weighing.whole_server.process_keeper import ENDS_S

#: A process that ends so soon after its start has failed, in s.
_STARTS_S = 0.5
#: After so long a watcher has ended, or cannot be ended, in s.
LONGEST_END_S = ENDS_S + 5.0
_KEEPER = "pgtare.weighing.whole_server.process_keeper"
_TAIL_BYTES = 300
#: Keeps up to 4 MiB, each line as it comes, and reads the rest.
_READ = "dd bs=512 count=8192; exec cat >/dev/null"
#: A command with its shell, which takes all that it has started with it when it is ended. It asks
#: twice: a shell that has just been forked loses a signal while it sets up its own.
_LED = """trap 'trap "" TERM; kill 0; sleep 0.2; kill 0' TERM
(
{}
) &
wait $!"""


class NotReturned(MeasurementError):
    """A command was ended, as it did not return."""


def run(command: str, what: str) -> None:
    """Run a command until it returns. what: for the sentence if it fails.

    Raises MeasurementError if it fails, NotReturned.
    """
    popen, output = _started(command)
    try:
        status = popen.wait(COMMAND_S)
    except subprocess.TimeoutExpired:
        signal_group(popen.pid, signal.SIGKILL)
        popen.wait()
        minutes = COMMAND_S / 60
        raise NotReturned(f"{what}: the command did not return in {minutes:.0f} min") from None
    if status:
        raise MeasurementError(f"{what}: the command failed (status {status}){output.text()}")


class Process:
    """A command that runs while its switch is on, with all that it starts."""

    def __init__(self, command: str, what: str) -> None:
        self._what, self._output = what, _Output()
        self._left: str | None = None
        self._popen = subprocess.Popen(
            module_command(_KEEPER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            stderr=self._output.pipe,
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )
        os.close(self._output.pipe)
        #: Of the session, in which all is that does not detach itself.
        self.pid = self._popen.pid
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with contextlib.suppress(BrokenPipeError), self._popen.stdin as pipe:
            pipe.write(command.encode())
        self._popen.stdout.readline()  # it has begun
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_STARTS_S)
            self.end()

    def end(self) -> None:
        """End it. Raises MeasurementError if it has ended by itself, or cannot be ended."""
        ended = self._popen.poll() is not None
        if left := self.stop():
            raise MeasurementError(
                f"{left}: end it; then run pgtare as that user, or give two commands, ON | OFF"
            )
        if ended or self._popen.returncode > 0:
            returned = self._popen.returncode == 0
            advice = "; one that returns needs a second one that switches off" if returned else ""
            raise MeasurementError(
                f"{self._what}: the command ended by itself (status {self._popen.returncode})"
                f"{self._output.text()}{advice}"
            )

    def stop(self) -> str:
        """End it; in words what could not be ended, nothing if there is no such process.

        Says the same if it is called again.
        """
        if self._left is not None:
            return self._left
        assert self._popen.stdout is not None
        self._popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(LONGEST_END_S)
        if self._popen.returncode is None or self._popen.returncode < 0:  # its keeper was killed
            end_group(self.pid)
            self._popen.wait()
        said = self._popen.stdout.read()
        left = json.loads(said)["left"] if said else []
        self._left = f"{self._what}: process {', '.join(left)} cannot be ended" if left else ""
        return self._left


def end_group(group: int) -> None:
    """End what is left of a process group, and wait until it has ended."""
    signal_group(group, signal.SIGKILL)
    left = [process for process in psutil.process_iter() if _group(process) == group]
    psutil.wait_procs(left, 1)


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


def _started(command: str) -> tuple[subprocess.Popen[bytes], _Output]:
    output = _Output()
    popen = subprocess.Popen(  # noqa: S602 the user's own command
        _LED.format(command),
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=output.pipe,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with(os.getpid()),
    )
    os.close(output.pipe)
    return popen, output


class _Output:
    """What a command prints: its beginning is kept, and the end of that shown if it fails.

    Another process reads it for as long as anybody writes. So what a command leaves running may
    outlive us, and does not fill a disk.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 for as long as we are
        reads, self.pipe = os.pipe()
        self._reader = subprocess.Popen(
            ["/bin/sh", "-c", _READ],
            stdin=reads,
            stdout=self._file,
            stderr=subprocess.DEVNULL,
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
