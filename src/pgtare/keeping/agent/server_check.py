"""What `pgtare agent` would see of a server: connects once, looks once, changes nothing."""

from __future__ import annotations

import contextlib

from pgtare.errors import MeasurementError
from pgtare.keeping.agent import reading
from pgtare.keeping.agent.documents import ServerCheck
from pgtare.keeping.agent.server_session import ServerSession
from pgtare.postgres.inventory import InventoryServer


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
            notes.append(f"an agent watches it now (its session is process {watched})")
        return ServerCheck(
            server=name,
            version=offer.version,
            role=offer.role,
            waits=waits,
            statements=statements,
            notes=notes,
        )
