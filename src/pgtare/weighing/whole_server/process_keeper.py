"""A process that runs one watcher, and ends it with all that the watcher has started.

It adopts what detaches itself, so all of that is found below it, and nothing else is. The command
comes by standard input; what could not be ended, and whether the command ended by itself, goes to
standard output. The end comes by SIGTERM, by which the kernel also tells that the guardian was
killed, or as the command ends by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time

import psutil

from pgtare.weighing.whole_server import lasting_shell

#: How long processes may take to end when asked to, in s.
ENDS_S = 10.0
#: What they get, and the time that they have for it, in s. They are asked twice: a shell that has
#: just been forked loses a signal while it sets up its own. They may fork while they are ended.
_ENDING = (
    (signal.SIGTERM, 0.2),
    (signal.SIGTERM, ENDS_S),
    *((signal.SIGKILL, 0.2) for _ in range(5)),
)
#: Ends the keeper's process group when the keeper is killed: then this input ends.
_WATCH = """read -r group; read -r end
for name in TERM TERM; do kill -s $name -- -"$group"; sleep 0.2; done
sleep 10; kill -s KILL -- -"$group\""""
_POLL_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36
_AWAITED = (signal.SIGTERM, signal.SIGCHLD)


def keep() -> int:
    """Run the command until the end; its exit status, or 0 if it was ended."""
    watch, pipe = lasting_shell.start(_WATCH, subprocess.DEVNULL)  # it must hear signals
    os.write(pipe, f"{os.getpgrp()}\n".encode())
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    command = sys.stdin.buffer.read()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    leader = subprocess.Popen(  # noqa: S602 the user's own command
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),
    )
    _say({"started": True})
    while leader.returncode is None and signal.sigwait(_AWAITED) != signal.SIGTERM:
        _reap(leader)
    _reap(leader)  # both signals may have come at once
    status = leader.returncode
    by_itself = status is not None
    left = [_named(process) for process in _end(leader, watch.pid)]
    _say({"left": left, "by_itself": by_itself})
    watch.kill()
    watch.wait()
    return 0 if status is None else status if status >= 0 else 128 - status


def _reap(leader: subprocess.Popen[bytes]) -> None:
    """Take note of all that has ended: until then it looks as if it was there."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == leader.pid:
                leader.returncode = os.waitstatus_to_exitcode(ended[1])


def _end(leader: subprocess.Popen[bytes], watch: int) -> list[psutil.Process]:
    """End all but our watch; what is still there afterwards."""
    left = _left(leader, watch)
    for signum, wait_s in _ENDING:
        if not any([_sent(process, signum) for process in left]):
            break
        until = time.monotonic() + wait_s
        while left and time.monotonic() < until:
            time.sleep(_POLL_S)
            left = _left(leader, watch)
    return left


def _left(leader: subprocess.Popen[bytes], watch: int) -> list[psutil.Process]:
    _reap(leader)
    return [each for each in psutil.Process().children(recursive=True) if each.pid != watch]


def _sent(process: psutil.Process, signum: signal.Signals) -> bool:
    """False if the process is another user's."""
    with contextlib.suppress(psutil.NoSuchProcess):
        try:
            process.send_signal(signum)
        except psutil.AccessDenied:
            return False
    return True


def _named(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} ({process.name()}, of {process.username()})"
    return str(process.pid)


def _say(said: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the guardian was killed
        os.write(1, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(keep())
