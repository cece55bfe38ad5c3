"""Where a store is: clickhouse://[USER@]HOST[:PORT][/DATABASE], and where its password comes from.

A password is never part of an address: addresses are in files, on command lines and in logs. The
file that holds it is.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pgtare.errors import UsageError
from pgtare.kit import option_values

#: The environment variable that a password may be in.
PASSWORD = "PGTARE_STORE_PASSWORD"  # noqa: S105 - its name
DATABASE = "pgtare"
EXAMPLE = "clickhouse://user@host:8443/pgtare"

_PLAIN_PORT, _TLS_PORT = 8123, 8443
#: Names that need no quotes in SQL.
_DATABASE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True)
class StoreAddress:
    """A store; without its password. ca_file: certificates to trust in place of the system's."""

    host: str
    port: int
    database: str = DATABASE
    user: str = "default"
    tls: bool = True
    ca_file: Path | None = None
    password_file: Path | None = None

    @property
    def url(self) -> str:
        """As it is printed, and given to other processes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        words = [f"tls={'on' if self.tls else 'off'}"]
        for name, path in (("ca", self.ca_file), ("password_file", self.password_file)):
            words += [f"{name}={quote(str(path))}"] if path else []
        user = quote(self.user, safe="")
        return f"clickhouse://{user}@{host}:{self.port}/{self.database}?{'&'.join(words)}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"

    def password(self) -> str:
        """From the file, else from the environment; empty if there is none. Raises UsageError."""
        if self.password_file is not None:
            return _first_line(self.password_file)
        return os.environ.get(PASSWORD, "")


def read(text: str, option: str = "--store") -> StoreAddress:
    """The address in a text. Raises UsageError; what it says has no secrets."""
    try:
        parts = urlsplit(text)
        port = parts.port
        words = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
    except ValueError as ex:
        raise UsageError(f"{option} is no address: write it as {EXAMPLE}") from ex
    if parts.scheme != "clickhouse" or not parts.hostname:
        raise UsageError(f"{option} is no address of a store: write it as {EXAMPLE}")
    if parts.password is not None or "password" in words:
        raise UsageError(
            f"{option} must not hold a password: put it into a file (?password_file=FILE) or into "
            f"the environment ({PASSWORD})"
        )
    if unknown := sorted(words.keys() - {"tls", "ca", "password_file"}):
        raise UsageError(f"{option}: {unknown[0]} is not known; there are tls, ca, password_file")
    database = parts.path.strip("/") or DATABASE
    if not _DATABASE.fullmatch(database):
        raise UsageError(f"{option}: the name of a database has letters, digits and _ only")
    host = parts.hostname
    tls = _tls(words.get("tls"), host, port, option)
    return StoreAddress(
        host,
        port or (_TLS_PORT if tls else _PLAIN_PORT),
        database,
        unquote(parts.username or "default"),
        tls,
        _path(words.get("ca")),
        _path(words.get("password_file")),
    )


def _tls(word: str | None, host: str, port: int | None, option: str) -> bool:
    """Whether TLS is used: unless it is said, everywhere but on this machine."""
    if word is None:
        return not option_values.is_loopback(host) or port == _TLS_PORT
    if word not in ("on", "off"):
        raise UsageError(f"{option}: tls is on or off")
    return word == "on"


def _path(word: str | None) -> Path | None:
    return Path(word) if word else None


def _first_line(path: Path) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o007:
                raise UsageError(f"{path} can be read by everybody: chmod 600 {path}")
            return file.readline().rstrip("\r\n")
    except OSError as ex:
        raise UsageError(f"{path} (the store's password) cannot be read: {ex.strerror}") from ex
    except UnicodeDecodeError as ex:
        raise UsageError(f"{path} (the store's password) is no UTF-8 text") from ex
