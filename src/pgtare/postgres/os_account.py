"""The account that throwaway servers run under: our own, or for root an unprivileged one."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgtare.errors import UsageError

CANDIDATES = ("pgtare", "postgres", "nobody")
USER_VARIABLE = "PGTARE_SERVER_USER"

# What server and client programs keep of the caller's environment. PG* variables would redirect
# them or change settings unseen, and root's environment is no business of the server's account.
KEPT_VARIABLES = ("PATH", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD")


@dataclass(frozen=True)
class Account:
    """A Unix account, and whether the process must switch to it (only root must and can)."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    switch: bool

    @property
    def run_as(self) -> dict[str, Any]:
        """Arguments for `subprocess` that run a program under this account."""
        if not self.switch:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": list(self.groups)}

    def give(self, path: Path) -> None:
        """Hand a file or directory that we have just made to the account."""
        if self.switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def barrier(self, path: Path) -> Path | None:
        """The first directory on the way to and including `path` that the account may not enter."""
        if not self.switch:
            return None
        resolved = path.resolve()
        for directory in [*reversed(resolved.parents), resolved]:
            info = directory.stat()
            if info.st_uid == self.uid:
                allowed = info.st_mode & stat.S_IXUSR
            elif info.st_gid in (self.gid, *self.groups):
                allowed = info.st_mode & stat.S_IXGRP
            else:
                allowed = info.st_mode & stat.S_IXOTH
            if not allowed:
                return directory
        return None


def server_account() -> Account:
    """The account for servers started by this process."""
    uid = os.geteuid()
    if uid != 0:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:  # containers often run under a number without an entry
            name = str(uid)
        return Account(name, uid, os.getegid(), (), switch=False)
    wanted = os.environ.get(USER_VARIABLE)
    for name in (wanted,) if wanted else CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid == 0:
            raise UsageError(
                f"PostgreSQL refuses to run as root: {USER_VARIABLE} must name another account"
            )
        groups = tuple(os.getgrouplist(name, entry.pw_gid))
        return Account(name, entry.pw_uid, entry.pw_gid, groups, switch=True)
    missing = f"no account {wanted!r}" if wanted else "no account postgres or nobody"
    raise UsageError(
        f"PostgreSQL refuses to run as root and there is {missing} to run it as: "
        f"create one (useradd --system pgtare), or start pgtare as an ordinary user"
    )


def environment() -> dict[str, str]:
    """The environment for programs of PostgreSQL that we start."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {"PATH": os.defpath, **kept, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "HOME": "/"}
