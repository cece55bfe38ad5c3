"""What `pgtare agent` would see of a server: connects once, looks once, changes nothing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from pgtare.errors import MeasurementError
from pgtare.keeping.agent import reading
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.postgres.inventory import InventoryServer


@dataclass(frozen=True)
class ServerCheck:
    """What an agent would see of a server. version and role are empty without a connection.

    waits: exact, sampled or none. statements: exact, approximate or none. problem: why it cannot
    be watched; None: it can. notes: what is missing, each with its remedy.
    """

    server: str
    version: str = ""
    role: str = ""
    waits: str = "none"
    statements: str = "none"
    problem: str | None = None
    notes: list[str] = field(default_factory=list)


def require_usable(server: InventoryServer) -> None:
    """Raise UsageError if this connection string will never do; one that is down may come up."""
    with contextlib.suppress(MeasurementError), ServerSession(server.dsn, lock=False):
        pass


def check_server(name: str, server: InventoryServer) -> ServerCheck:
    """Look at one server. Raises PgtareError if it cannot be watched."""
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
            notes.append(f"an agent watches it now (its session is process {watched.identity.pid})")
        return ServerCheck(
            server=name,
            version=offer.version,
            role=offer.role,
            waits=waits,
            statements=statements,
            notes=notes,
        )
