"""Where pgtare keeps its files: directories that nobody else can have prepared or can change."""

import contextlib
import fcntl
import os
import pwd
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.postgres.os_account import server_account

DIRECTORY_VARIABLE = "PGTARE_DIR"
ROOT_DIRECTORY = Path("/var/lib/pgtare")

# make splits paths at blanks, and conninfo strings and lists of directories at commas.
#: What pgtare makes below its directory; whatever else is there is somebody's.
SHELVES = ("modules", "postgres", "probe", "restore", "servers")
#: Marks a directory whose shelves pgtare has made.
MARK = ".pgtare"
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+@=:~-]+")


def is_plain(path: Path) -> bool:
    """Whether a path survives make, conninfo strings and PostgreSQL's lists of directories."""
    return PLAIN_PATH.fullmatch(str(path)) is not None


def place(name: str, mode: int = 0o755) -> Path:
    """A directory of pgtare's own, made if need be, which the server's account can enter.

    Everything lives below one directory: $PGTARE_DIR; else /var/lib/pgtare for root, so that the
    server's account needs no way into root's home; else $XDG_CACHE_HOME/pgtare or ~/.cache/pgtare;
    or /var/tmp/pgtare-UID if that cannot be written, or make could not cope with its name.
    name: of SHELVES, or a test's own.
    """
    base = _base()
    directory = own_directory(base / name, mode)
    account = server_account()
    barrier = account.barrier(directory)
    if barrier is not None:
        raise UsageError(
            f"the server's account {account.name} may not enter {barrier}: "
            f"set {DIRECTORY_VARIABLE} to a directory which it can reach"
        )
    return directory


def private_place(name: str) -> Path:
    """A directory of pgtare's own that nobody else can enter, made if need be; as `place`."""
    return own_directory(_base() / name, 0o700)


def own_directory(path: Path, mode: int) -> Path:
    """Make `path` (and what is missing above it) or check that it is safely our own.

    One that is there already is not opened to anybody.
    Raises UsageError if the directory or one above it belongs to somebody else or can be
    changed by others: what we execute from it could be theirs.
    """
    existing = path.parent
    while not os.path.exists(existing):  # nor can those be seen that others have closed
        existing = existing.parent
    _check_ancestors(existing.resolve())
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            path.chmod(mode)  # whatever the umask is
        info = path.lstat()
    except OSError as ex:
        raise UsageError(
            f"cannot make the directory {path}: {ex.strerror}; "
            f"set {DIRECTORY_VARIABLE} to a directory which can be written"
        ) from ex
    if not stat.S_ISDIR(info.st_mode):
        raise UsageError(f"{path} is not a directory: remove it or set {DIRECTORY_VARIABLE}")
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"{path} was made by another user or can be written by others, so nothing in it can "
            f"be trusted: remove it or set {DIRECTORY_VARIABLE} to a directory of your own"
        )
    if stat.S_IMODE(info.st_mode) & ~mode:
        path.chmod(info.st_mode & mode)
    return path.parent.resolve() / path.name


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file (made if need be) in one of our own directories."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def made_once(shelf_name: str, name: str, make: Callable[[Path], Path]) -> Path:
    """What we keep under this name, on the shelf of that name; made if it is not there.

    make: gets an empty directory and returns what it made in it.
    """
    shelf = place(shelf_name)
    target = shelf / name
    if target.exists():  # it came there whole; others may be making something else
        return target
    with locked(shelf / ".lock"):
        if not target.exists():
            for left in shelf.glob(".build-*"):  # by a build that was killed; we hold the lock
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(prefix=".build-", dir=shelf) as work:
                make(Path(work)).rename(target)
    return target


def existing() -> Path | None:
    """The directory below which everything lives, if it has been made; UsageError as `place`."""
    base = _chosen()
    return own_directory(base, 0o755) if os.path.exists(base) and _is_ours(base) else None


def of_others() -> list[tuple[Path, str]]:
    """Directories as `existing`, of accounts that whoever calls us works with, and their names.

    That is root's; and for root, that of the account that became it by sudo.
    """
    place, name = ROOT_DIRECTORY, "root"
    if os.geteuid() == 0:
        try:
            account = pwd.getpwuid(int(os.environ["SUDO_UID"]))
        except (KeyError, ValueError):
            return []
        place, name = Path(account.pw_dir) / ".cache/pgtare", account.pw_name
    return [(place, name)] if _shelves(place) else []


def _base() -> Path:
    base = own_directory(_chosen(), 0o755)
    if os.path.exists(base / MARK):
        return base
    there = _shelves(base)
    if there and not _is_ours(base):  # looked at again: another process may have made both
        raise UsageError(
            f"{base} has {', '.join(there)}, which pgtare did not make: set {DIRECTORY_VARIABLE} "
            "to an empty directory"
        )
    with contextlib.suppress(OSError):  # what can only be read is read
        (base / MARK).touch(0o644)
    return base


def _shelves(base: Path) -> list[str]:
    return [shelf for shelf in SHELVES if os.path.lexists(base / shelf)]


def _is_ours(base: Path) -> bool:
    """Whether what is there is pgtare's: others have no reason to use the usual places."""
    return not os.environ.get(DIRECTORY_VARIABLE) or os.path.exists(base / MARK)


def _chosen() -> Path:
    asked = os.environ.get(DIRECTORY_VARIABLE)
    if asked:
        base = Path(asked).absolute()
        if not is_plain(base):
            raise UsageError(
                f"{DIRECTORY_VARIABLE}={asked} holds blanks or signs that make cannot handle: "
                f"choose a directory with a plain name"
            )
        return base
    if os.geteuid() == 0:
        preferred = ROOT_DIRECTORY
    else:
        cache = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification: relative paths are to be ignored.
        home = os.path.expanduser("~/.cache")  # relative for a number without an account
        preferred = Path(cache if cache.startswith("/") else home) / "pgtare"
    if preferred.is_absolute() and is_plain(preferred) and _can_make(preferred):
        return preferred
    return Path(f"/var/tmp/pgtare-{os.geteuid()}")  # noqa: S108


def _can_make(path: Path) -> bool:
    nearest = path
    while not os.path.exists(nearest):
        nearest = nearest.parent
    return os.path.isdir(nearest) and os.access(nearest, os.W_OK | os.X_OK)


def _check_ancestors(directory: Path) -> None:
    for ancestor in [directory, *directory.parents]:
        info = ancestor.stat()
        if info.st_uid not in (0, os.geteuid()):
            raise UsageError(
                f"{ancestor} belongs to another user, who could replace what is below it: "
                f"set {DIRECTORY_VARIABLE} to a directory of your own"
            )
        # A group that is the user's own is as good as the user; other groups are other people.
        group_writes = info.st_mode & stat.S_IWGRP and info.st_gid not in (0, os.getegid())
        others_write = info.st_mode & stat.S_IWOTH
        if (group_writes or others_write) and not info.st_mode & stat.S_ISVTX:
            raise UsageError(
                f"{ancestor} can be written by others, who could replace what is below it: "
                f"set {DIRECTORY_VARIABLE} to a directory of your own"
            )
