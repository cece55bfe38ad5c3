"""Write PostgreSQL configuration files from Python values."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

from pgtare.errors import UsageError

Value = str | bool | int | float | None
"""The value of a setting; None takes it back to what it was without us."""

# The server's directory, sockets and files are the cluster's own business.
RESERVED = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "port",
        "unix_socket_directories",
        "unix_socket_permissions",
    }
)
_NAME = re.compile(r"[a-z_][a-z0-9_$]*(\.[a-z_][a-z0-9_$]*)*")


def checked(settings: Mapping[str, Value]) -> dict[str, Value]:
    """The settings with lower-case names; UsageError for what no server should be given."""
    result: dict[str, Value] = {}
    for name, value in settings.items():
        lower = name.lower()
        if _NAME.fullmatch(lower) is None:
            raise UsageError(f"{name!r} is not the name of a PostgreSQL setting")
        if lower in RESERVED:
            raise UsageError(f"{lower} is set by pgtare itself for a throwaway server")
        if isinstance(value, str) and re.search(r"[\0\r\n]", value):
            raise UsageError(f"the value of {lower} must be one line without a null byte")
        result[lower] = value
    return result


def render(settings: Mapping[str, Value]) -> str:
    """Lines of a configuration file."""
    return "".join(
        f"{name} = {_literal(value)}\n" for name, value in settings.items() if value is not None
    )


def library_list(libraries: Iterable[str]) -> str:
    """A value for shared_preload_libraries: names or absolute paths without ".so"."""
    return ", ".join(
        name if re.fullmatch(r"[A-Za-z0-9_]+", name) else '"' + name.replace('"', '""') + '"'
        for name in libraries
    )


def replace_file(path: Path, text: str, mode: int, group: int | None = None) -> None:
    """Replace a file as a whole, so that a server reading it sees the old or the new one."""
    aside = path.with_name(path.name + ".new")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        if group is not None:
            os.fchown(fd, -1, group)
        os.fchmod(fd, mode)
        file.write(text)
    aside.rename(path)


def _literal(value: str | bool | int | float) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        return str(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def preload_statement(libraries: Iterable[str]) -> str:
    """What makes the server load these libraries when it starts.

    Each name has quotes of its own: ALTER SYSTEM takes 'a, b' for one name, and a server that
    looks for such a library does not start.
    """
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in libraries)
    return f"ALTER SYSTEM SET shared_preload_libraries = {quoted};"


def preload_on_command_line(libraries: Iterable[str]) -> str:
    """What to do instead where the command that starts the server sets the list: that outranks it.

    libraries: those that the list lacks.
    """
    return f"add {', '.join(libraries)} to -c shared_preload_libraries of the server's command line"


def listed_libraries(setting: str) -> list[str]:
    """The libraries of a list, without quotes: a quoted path may have commas."""
    found: list[tuple[str, str]] = re.findall(r'"((?:[^"]|"")*)"|([^",]+)', setting)
    names = (quoted.replace('""', '"') or plain.strip() for quoted, plain in found)
    return [name for name in names if name]


def library_names(setting: str) -> tuple[str, ...]:
    """Plain names from a list of libraries, which may be quoted, have a path and end in .so."""
    return tuple(map(library_name, listed_libraries(setting)))


def library_name(library: str) -> str:
    """The plain name of one library."""
    return PurePath(library).name.removesuffix(".so")
