"""Starts pgtare, or a module of tests, by a fork of a process that has loaded what takes a second.

The fork is a child of the test's process, as one that was started the usual way would be: clone(2)
with CLONE_PARENT. What Python reads from the environment before anything else (PYTHON..., the
locale) has been read by then, so a command with another one of these is started the usual way.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import platform
import runpy
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_LENGTH = struct.Struct("=I")

#: The usual way
PGTARE = [sys.executable, "-m", "pgtare"]


def can_start(environment: dict[str, str]) -> bool:
    """Whether a fork behaves as a process with this environment."""
    if platform.machine() not in _SYS_CLONE:
        return False
    return _read_at_start(environment) == _read_at_start(dict(os.environ))


def _read_at_start(environment: dict[str, str]) -> dict[str, str]:
    first = ("PYTHON", "LANG", "LC_", "LD_")
    return {name: value for name, value in environment.items() if name.startswith(first)}


def popen(
    words: Sequence[str], environment: dict[str, str], *, new_session: bool
) -> subprocess.Popen[str]:
    """Start a program that is a module of Python, with pipes to read. words: as of PGTARE."""
    return (Forked if can_start(environment) else subprocess.Popen)(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=new_session,
    )


class Forked(subprocess.Popen[str]):
    """`Popen` of `python -m MODULE` and its words."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        # in the order of Popen's own: cwd and env, the ends of three pipes, start_new_session
        (folder, environment), pipes, new_session = rest[4:6], rest[9:15], rest[20]
        asked = {
            "module": args[2],
            "words": args[3:],
            "environment": environment or dict(os.environ),
            "folder": os.fspath(folder or os.getcwd()),
            "session": new_session,
        }
        mine: Any = self
        theirs = (pipes[0], pipes[3], pipes[5])
        mine.pid = _start(asked, [fd if fd >= 0 else n for n, fd in enumerate(theirs)])
        mine._child_created = True
        mine._close_pipe_fds(*pipes)


def _start(asked: dict[str, Any], fds: list[int]) -> int:
    place = forking()
    text = json.dumps(asked).encode()
    socket.send_fds(place, [_LENGTH.pack(len(text))], fds)
    place.sendall(text)
    return int(_LENGTH.unpack(place.recv(_LENGTH.size))[0])


@functools.cache
def forking() -> socket.socket:
    """The process that forks, one for each that tests, begun if need be; it ends with this one."""
    mine, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    atexit.register(process.wait, 10)
    atexit.register(mine.close)
    return mine


def _serve(place: socket.socket) -> None:
    from pgtare.cli import commands

    for name in commands.ORDER:
        importlib.import_module(commands.module_of(name))
    importlib.import_module("pgtare.weighing.whole_server.run")
    gc.collect()
    gc.freeze()
    # Ctrl-C is for the tests, and for what is started here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        head, fds, _, _ = socket.recv_fds(place, _LENGTH.size, 3)
        if not head:
            return
        (left,) = _LENGTH.unpack(head)
        text = b""
        while len(text) < left:
            text += place.recv(left - len(text))
        pid = _fork()
        if not pid:
            place.close()
            _become(json.loads(text), fds)
        for fd in fds:
            os.close(fd)
        place.sendall(_LENGTH.pack(pid))


def _fork() -> int:
    python = ctypes.PyDLL(None, use_errno=True)
    number = _SYS_CLONE[platform.machine()]
    python.PyOS_BeforeFork()
    pid: int = python.syscall(number, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    return pid


def _become(asked: dict[str, Any], fds: list[int]) -> NoReturn:
    """Run the command with these standard streams, and end the process as it ends."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, max(fds) + 1)
    if asked["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    sys.argv = [asked["module"], *asked["words"]]
    if asked["module"] != PGTARE[2]:
        runpy.run_module(asked["module"], run_name="__main__")
    from pgtare.__main__ import main

    main()
    raise SystemExit(0)


if __name__ == "__main__":
    from pgtare.interrupt import compute_in_one_thread

    compute_in_one_thread()
    _serve(socket.socket(fileno=int(sys.argv[1])))
