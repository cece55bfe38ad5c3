"""The command as it is kept in results: as given, without the passwords."""

from __future__ import annotations

import itertools
import sys

HIDDEN = "(hidden)"


def command_line() -> list[str]:
    """One word an element. A connection string that holds a password loses it."""
    words = ["pgtare", *sys.argv[1:]]
    kept = words[:1]
    for before, word in itertools.pairwise(words):
        if before == "--dsn":
            kept.append(_without_password(word))
        elif word.startswith("--dsn="):
            kept.append("--dsn=" + _without_password(word.removeprefix("--dsn=")))
        else:
            kept.append(word)
    return kept


def _without_password(dsn: str) -> str:
    if "password" not in dsn and "@" not in dsn:
        return dsn
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return HIDDEN
    # libpq takes a part of a password that holds @ or / for the host, the port or the database
    if "://" in dsn and any("@" in str(parts.get(name)) for name in ("host", "port", "dbname")):
        return HIDDEN
    secret = {name for name in parts if "password" in name}
    if not secret:
        return dsn
    return make_conninfo(
        "", **{name: HIDDEN if name in secret else str(value) for name, value in parts.items()}
    )
