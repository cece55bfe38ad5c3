"""Tells in one sentence what a role must be granted before it may do what was asked."""

from __future__ import annotations

from collections.abc import Mapping

from pgtare.errors import UsageError
from pgtare.observing.trace.capture.server import Server

#: To see the sessions of others.
SEE = "pg_read_all_stats"


def set_level(server: Server) -> str:
    """The right to trace sessions of others, and to end that."""
    return f"EXECUTE ON FUNCTION {server.setter_name}(integer, {server.setter_takes})"


def others_hidden(server: Server) -> str:
    """What a role that sees only its own sessions has to know, or nothing."""
    ((user, sees),) = server.rows(
        f"SELECT quote_ident(current_user), pg_has_role('{SEE}', 'USAGE')"
    )
    return "" if sees else f"; you see only your own sessions: GRANT {SEE} TO {user}; shows others"


def demand(purpose: str, user: str, rights: Mapping[str, bool]) -> None:
    """Raise UsageError, with the GRANTs, if a right is missing; user: quoted."""
    missing = [f"GRANT {right} TO {user}" for right, has in rights.items() if not has]
    if missing:
        raise UsageError(f"to {purpose}, a superuser has to run: {'; '.join(missing)};")
