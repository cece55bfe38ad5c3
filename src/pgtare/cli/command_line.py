"""The command as it is kept in results: as given, without the passwords."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

from pgtare.errors import UsageError
from pgtare.weighing.switches import named

HIDDEN = "(hidden)"
#: A connection string without any of these holds no secret.
_OF_SECRETS = ("@", "password", "secret", "key")


def command_line() -> list[str]:
    """One word an element. A connection string that holds a password loses it."""
    words = ["pgtare", *sys.argv[1:]]
    kept = words[:1]
    for before, word in itertools.pairwise(words):
        option, equals, value = word.partition("=")
        if before in _SHOWN:
            kept.append(_SHOWN[before](word))
        elif equals and option in _SHOWN:
            kept.append(f"{option}={_SHOWN[option](value)}")
        else:
            kept.append(word)
    return kept


def _without_password(dsn: str) -> str:
    if not any(word in dsn for word in _OF_SECRETS):
        return dsn
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    from pgtare.postgres.load.connection import UNSAFE

    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return HIDDEN
    # libpq takes a part of a password that holds @ or / for the host, the port or the database
    if "://" in dsn and any("@" in str(parts.get(name)) for name in ("host", "port", "dbname")):
        return HIDDEN
    secret = {name for name in parts if "password" in name or name in UNSAFE}
    if not secret:
        return dsn
    return make_conninfo(
        "", **{name: HIDDEN if name in secret else str(value) for name, value in parts.items()}
    )


def _named_without_password(server: str) -> str:
    """A server's name stays; what has no name may be all password."""
    try:
        name, dsn = named("--server", server, "")
    except UsageError:
        return HIDDEN
    return f"{name}: {_without_password(dsn)}"


def _named_without_commands(switch: str) -> str:
    """A switch's name stays; its commands may hold a password."""
    try:
        name, _ = named("--switch", switch, "")
    except UsageError:
        return HIDDEN
    return f"{name}: {HIDDEN}"


def _assigned_without_secret(reload: str) -> str:
    """The value of a setting that may hold a secret is left out."""
    from pgtare.postgres.private_settings import is_private

    setting, equals, _ = reload.partition("=")
    name = setting.rpartition(":")[2].strip()
    hidden = equals and is_private(name.lower(), is_text=True)
    return f"{setting}= {HIDDEN}" if hidden else reload


#: Options whose values may hold a secret, and how these are shown.
_SHOWN: dict[str, Callable[[str], str]] = {
    "--dsn": _without_password,
    "--server": _named_without_password,
    "--switch": _named_without_commands,
    "--reload": _assigned_without_secret,
}
