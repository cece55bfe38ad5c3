"""Runs what users give to switch by: commands that return, and a process that runs for a while."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

import psutil

from pgtare.errors import MeasurementError
from pgtare.kit.interpreter import module_command
from pgtare.postgres.load.process import die_with
from pgtare.weighing.switches import COMMAND_S
from pgtare.weighing.whole_server import lasting_shell
from pgtare.weighing.whole_server.process_keeper import ENDS_S
from pgtare.weighing.whole_server.restore_file import RunningNote

#: A process that ends so soon after its start has failed, in s.
_STARTS_S = 0.5
#: After so long a watcher has ended, or cannot be ended, in s.
LONGEST_END_S = ENDS_S + 5.0
_KEEPER = "pgtare.weighing.whole_server.process_keeper"
_TAIL_BYTES = 300
#: Keeps up to 4 MiB, each line as it comes, and reads the rest.
_READ = "dd bs=512 count=8192; exec cat >/dev/null"
#: Ends a command with all that it has started when the process that runs us is gone: then this
#: input ends. It asks twice: a shell that has just been forked loses a signal while it sets up its
#: own. A shell around the command could do so, but what it runs meanwhile ignores Ctrl-C for good.
_WATCH = """read -r leader; read -r end; kill -0 "$leader" || exit
kill -s TERM -- -"$leader"; sleep 0.2; kill -s TERM -- -"$leader\""""
_POLL_S = 0.2
#: How often what is left is killed: a shell may start another process after we looked.
_KILLS = 3
#: How far a process's start may be from the time that was noted, in s.
_SAME_START_S = 5.0


class NotReturned(MeasurementError):
    """A command was ended, as it did not return."""


class CommandFailed(MeasurementError):
    """A command failed. printed: the end of what it printed, for the terminal only.

    It may hold a password, as commands may, and the sentence is kept in results.
    """

    def __init__(self, sentence: str, printed: str) -> None:
        super().__init__(sentence)
        self.printed = printed


def printed_by(ex: BaseException) -> str:
    """What the command printed that is to blame for an error; nothing if there is none."""
    return ex.printed if isinstance(ex, CommandFailed) else ""


def run(
    command: str,
    what: str,
    note: RunningNote | None = None,
    hurry: Callable[[], bool] = lambda: False,
    directory: str | None = None,
) -> None:
    """Run a command until it returns. what: for the sentence if it fails.

    note: where it is kept that it is under way.
    hurry: whether everything is to be put back: then it is ended soon if it does not return.
    directory: in which it runs; None: in ours.
    Raises MeasurementError if it fails, NotReturned.
    """
    started = Started(command, note, directory)
    popen, limit_s = started.popen, COMMAND_S
    until, hurries = time.monotonic() + limit_s, False
    while popen.poll() is None and time.monotonic() < until:
        if not hurries and hurry():
            hurries, limit_s = True, min(limit_s, ENDS_S)
            until = min(until, time.monotonic() + limit_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(_POLL_S)
    status = popen.poll()
    is_over = status is not None or started.end()
    started.close()
    if note is not None and (status is not None or not _of_session(popen.pid)):
        note.is_over()
    if status is None:
        limit = f"{limit_s:.0f} s" if limit_s < 60 else f"{limit_s / 60:.0f} min"
        then = "was ended" if is_over else f"cannot be ended: process {popen.pid} still runs"
        raise NotReturned(f"{what}: the command did not return in {limit}, and {then}")
    if status:
        raise CommandFailed(f"{what}: the command failed (status {status})", started.text())


def end_earlier(note: RunningNote) -> None:
    """Wait for the end of a command that a process ran which was killed; end it if it takes long.

    Raises MeasurementError if it cannot be ended: what it does last would undo what we do now.
    """
    found = note.read()
    if found is None:
        return
    session, began_s = found
    until = time.monotonic() + LONGEST_END_S
    while (left := _of_command(session, began_s)) and (rest_s := until - time.monotonic()) > 0:
        psutil.wait_procs(left, rest_s)
    for _ in range(_KILLS):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, 1)
        left = _of_command(session, began_s)
    if left:
        raise MeasurementError(
            f"the command that was under way still runs (process {left[0].pid}): end it, or wait"
        )
    note.is_over()


def _of_command(session: int, began_s: float) -> list[psutil.Process]:
    """What runs of a command that began then: another session may have the number by now.

    It has if its leader began at another time, or any of it before that.
    """
    found = []
    for process in _of_session(session):
        with contextlib.suppress(psutil.Error):
            after_s = process.create_time() - began_s
            if process.pid == session and abs(after_s) > _SAME_START_S:
                return []
            if after_s > -_SAME_START_S:
                found.append(process)
    return found


class Process:
    """A command that runs while its switch is on, with all that it starts."""

    def __init__(self, command: str, what: str) -> None:
        self._what, self._output = what, _Output()
        self._left: str | None = None
        self._by_itself = False
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
        self._has_begun = bool(self._popen.stdout.readline())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_STARTS_S)
            self.end()

    def end(self) -> None:
        """End it. Raises MeasurementError if it has ended by itself, or cannot be ended."""
        ended = self._popen.poll() is not None
        if left := self.stop():
            raise MeasurementError(left)
        if ended or self._by_itself or self._popen.returncode > 0:
            returned = self._popen.returncode == 0
            advice = "; one that returns needs a second one that switches off" if returned else ""
            raise CommandFailed(
                f"{self._what}: the command ended by itself (status {self._popen.returncode})"
                f"{advice}",
                self._output.text(),
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
        last: dict[str, Any] = json.loads(said) if said else {"left": [], "by_itself": False}
        left, self._by_itself = last["left"], last["by_itself"]
        if self._has_begun and not said:
            self._left = (
                f"{self._what}: its keeper was killed, and what it started may still run: look, "
                "and end it"
            )
        elif left:
            self._left = (
                f"{self._what}: process {', '.join(left)} cannot be ended: end it; then run pgtare "
                "as that user, or give two commands, ON | OFF"
            )
        else:
            self._left = ""
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


def _of_session(session: int) -> list[psutil.Process]:
    """What runs in a session."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            of_it = os.getsid(process.pid) == session
            if of_it and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class Started:
    """A command under way, which ends with the process that runs us."""

    def __init__(
        self, command: str, note: RunningNote | None = None, directory: str | None = None
    ) -> None:
        self._output, self._note = _Output(), note
        self._watch, self._pipe = lasting_shell.start(_WATCH, subprocess.DEVNULL)
        try:
            self.popen = subprocess.Popen(  # noqa: S602 the user's own command
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=self._output.pipe,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=directory,
                preexec_fn=self._begin,
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(self._output.pipe)

    def _begin(self) -> None:
        """In the shell, before its command: whoever is killed from now on leaves a trace of it."""
        for signum in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_DFL)
        os.write(self._pipe, f"{os.getpid()}\n".encode())
        if self._note is not None:
            self._note.begins()

    def end(self) -> bool:
        """End it with all that it has started; whether that was possible: one may be root's."""
        signal_group(self.popen.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(_STARTS_S)
        end_group(self.popen.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(_STARTS_S)
        return self.popen.returncode is not None

    def close(self) -> None:
        """What it has left running may outlive us."""
        self._watch.kill()
        self._watch.wait()
        os.close(self._pipe)

    def text(self) -> str:
        """The end of what it has printed."""
        return self._output.text()


class _Output:
    """What a command prints: its beginning is kept, and the end of that shown if it fails.

    Another process reads it for as long as anybody writes. So what a command leaves running may
    outlive us, and does not fill a disk.
    """

    def __init__(self) -> None:
        self._file = _temporary_file()
        self._reader, self.pipe = lasting_shell.start(_READ, self._file)

    def text(self) -> str:
        """The end of what was printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reader.wait(_STARTS_S)  # what it has started may go on writing
        end = os.fstat(self._file.fileno()).st_size
        last = os.pread(self._file.fileno(), _TAIL_BYTES, max(end - _TAIL_BYTES, 0))
        return " ".join(last.decode(errors="replace").split())


def _temporary_file() -> IO[bytes]:
    """For as long as we are. Without a place for it what is printed is lost, and nothing else."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.devnull, "w+b")
