"""What `pgtare agent` would see of a server: connects once, looks once, changes nothing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pgtare.errors import MeasurementError, PgtareError
from pgtare.keeping.agent import reading
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.postgres.inventory import InventoryServer


@dataclass(frozen=True)
class ServerCheck:
    """What was found. waits, statements: exact, approximate, sampled or not at all.

    problem: why it cannot be watched; None if it can. notes: what is missing, with the remedy.
    """

    server: str
    version: str = ""
    role: str = ""
    waits: str = "none"
    statements: str = "none"
    problem: PgtareError | None = None
    notes: tuple[str, ...] = ()


def require_usable(server: InventoryServer) -> None:
    """Raise UsageError if this connection string will never do; one that is down may come up."""
    with contextlib.suppress(MeasurementError), ServerSession(server.dsn, lock=False):
        pass


def check_server(name: str, server: InventoryServer) -> ServerCheck:
    """Look at one server."""
    try:
        with ServerSession(server.dsn, lock=False) as session:
            offer = session.offer
            waits, statements = "sampled", "none"
            notes = list(offer.unseen)
            if offer.waits is not None:
                if reading.captures(reading.read(session, statements=True)):
                    waits, statements = "exact", "exact" if offer.sees_all else "approximate"
                else:
                    notes.append(reading.CAPTURE_OFF)
            watched = session.watched_by()
            if watched is not None:
                notes.append(f"an agent watches it now (its session is process {watched})")
            return ServerCheck(
                name, offer.version, offer.role, waits, statements, notes=tuple(notes)
            )
    except PgtareError as ex:
        return ServerCheck(name, problem=ex)
