"""The directories of throwaway servers: claimed by a lock, swept when their owner is gone.

The owner of a server holds an flock on `owner.lock` in its directory for as long as it lives. The
kernel drops the lock however the owner ends, so a directory whose lock is free belongs to nobody:
the next start stops the server in it and removes it.

Under root the outer directory stays root's own, and only `data` and `socket` are handed to the
server's account: root never writes a file where that account could have put a link.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pgtare.postgres import processes, shared_memory
from pgtare.postgres.directories import is_plain, locked, place
from pgtare.postgres.os_account import Account

LOCK_NAME = "owner.lock"
SOCKET_PORT_DIGITS = 5
# sun_path holds 107 bytes and its end; PostgreSQL puts "/.s.PGSQL.PORT" behind the directory.
LONGEST_SOCKET_DIRECTORY = 107 - len("/.s.PGSQL.") - SOCKET_PORT_DIGITS
SWEEP_SECONDS = 20.0
_NAME_BYTES = 6
_NAME = re.compile(f"[0-9a-f]{{{2 * _NAME_BYTES}}}")


@dataclass
class Home:
    """The directory of one throwaway server, owned by this process while the lock is held."""

    path: Path
    lock_fd: int

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def shared_memory(self) -> Path:
        """What is known of the server's shared memory."""
        return self.path / "shared_memory.json"

    @property
    def socket_directory(self) -> Path:
        """Next to the data, or in /tmp if that name is too long or not plain enough."""
        next_to_data = self.path / "socket"
        if is_plain(next_to_data) and len(os.fsencode(next_to_data)) <= LONGEST_SOCKET_DIRECTORY:
            return next_to_data
        # The name follows from the directory's own, so that a sweep knows it too.
        return Path("/tmp") / f"pgtare-{self.path.name}"  # noqa: S108


def servers_directory() -> Path:
    return place("servers", 0o711)


def claim(account: Account) -> Home:
    """Make the directory for a new server, with empty `data` and socket directories."""
    base = servers_directory()
    # Under the common lock, as a sweep must not see the directory before its own lock is held.
    with locked(base / ".lock"):
        path = base / secrets.token_hex(_NAME_BYTES)
        path.mkdir(mode=0o711 if account.switch else 0o700)
        path.chmod(0o711 if account.switch else 0o700)
        lock_fd = _lock(path)
    if lock_fd is None:
        raise RuntimeError(f"a new directory was locked by another process: {path}")
    home = Home(path, lock_fd)
    try:
        for directory in (home.data, home.socket_directory):
            directory.mkdir(mode=0o700)
            account.give(directory)
    except BaseException:
        release(home)
        raise
    return home


def release(home: Home) -> None:
    """Give the directory up: remove it with all it holds."""
    try:
        _remove(home)
    finally:
        os.close(home.lock_fd)


def sweep() -> list[Path]:
    """Stop the servers and remove the directories of owners that are gone; returns their paths."""
    orphans: list[Home] = []
    with contextlib.ExitStack() as locks:
        for path, lock_fd in _tried():
            if lock_fd is not None:
                locks.callback(os.close, lock_fd)
                orphans.append(Home(path, lock_fd))
        for home in orphans:
            stop_leftovers(home)
            _remove(home)
    return [home.path for home in orphans]


def in_use() -> list[Path]:
    """Directories whose owners live."""
    found = []
    for path, lock_fd in _tried():
        if lock_fd is None:
            found.append(path)
        else:
            os.close(lock_fd)
    return found


def _tried() -> list[tuple[Path, int | None]]:
    """All directories of servers, with the locked descriptor, or None if the owner lives."""
    base = servers_directory()
    with locked(base / ".lock"):
        return [
            (path, _lock(path))
            for path in sorted(base.iterdir())
            if _NAME.fullmatch(path.name) and path.is_dir()
        ]


def stop_leftovers(home: Home) -> None:
    """Stop whatever server still runs in the directory."""
    postmaster = processes.hold_postmaster(home.data)
    if postmaster is not None:
        processes.stop_postmaster(postmaster, home.data, "immediate", SWEEP_SECONDS)
        postmaster.close()
    processes.kill_leftovers(home.data)
    shared_memory.free(home.shared_memory)


def _lock(path: Path) -> int | None:
    """The locked descriptor, or None if the owner lives."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path / LOCK_NAME, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _remove(home: Home) -> None:
    # The lock file goes last: without it a sweep would take the rest for nobody's.
    if home.socket_directory.parent != home.path:
        _remove_tree(home.socket_directory)
    if not home.path.is_dir():  # somebody else has removed it
        return
    for entry in home.path.iterdir():
        if entry.name == LOCK_NAME:
            continue
        if entry.is_dir() and not entry.is_symlink():
            _remove_tree(entry)
        else:
            entry.unlink(missing_ok=True)  # somebody else may be at it
    with locked(home.path.parent / ".lock"):
        _remove_tree(home.path)


def _remove_tree(path: Path) -> None:
    # A dying process may still create a file, so that rmdir finds the directory not empty.
    for _ in range(20):
        with contextlib.suppress(OSError):
            shutil.rmtree(path)
        if not path.exists():
            return
        time.sleep(0.1)
