"""Which of several hosts is meant: the one that the first session of this process went to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

Session = TypeVar("Session", bound=psycopg.Connection[Any])

_PLACE = ("host", "hostaddr", "port")
#: By the place that a connection string names, the place that was reached.
_chosen: dict[tuple[str, ...], dict[str, str]] = {}
_lock = Lock()


def one_host(dsn: str) -> str:
    """A connection string with the host that an earlier session went to, if it names several.

    Raises psycopg.ProgrammingError if it cannot be read.
    """
    chosen = _chosen.get(_place(dsn))
    return make_conninfo(dsn, **chosen) if chosen else dsn


def connect(open_session: Callable[[str], Session], dsn: str, *, anew: bool = False) -> Session:
    """Open a session, by the host that an earlier one went to if there is one.

    If that host no longer answers, or is no longer what `target_session_attrs` asks for, all hosts
    are tried. Which server was meant is said once on standard error, if the string does not say so.
    anew: wherever the string leads now. Raises what `open_session` does, and
    psycopg.ProgrammingError.
    """
    place = _place(dsn)
    target = dsn if anew else one_host(dsn)
    try:
        session = open_session(target)
    except psycopg.OperationalError:
        if target == dsn:
            raise
        session = open_session(dsn)
    if _is_open(place):
        _note(place, session)
    return session


def reached(session: psycopg.Connection[Any]) -> dict[str, str]:
    """The place of the server that a session is on, as parameters of a connection string."""
    info = session.info
    place = {"host": info.host, "port": str(info.port)}
    return place if info.host.startswith("/") else {**place, "hostaddr": info.hostaddr}


def _note(place: tuple[str, ...], session: psycopg.Connection[Any]) -> None:
    info, found = session.info, reached(session)
    with _lock:
        if _chosen.get(place) == found:
            return
        _chosen[place] = found
    words = f"pgtare: connected to {info.host or info.hostaddr}, port {info.port}"
    print(words, file=sys.stderr, flush=True)


def _place(dsn: str) -> tuple[str, ...]:
    """What a connection string, and the environment behind it, says of the place."""
    parts = conninfo_to_dict(dsn)
    named = (str(parts.get(name) or os.environ.get(f"PG{name.upper()}", "")) for name in _PLACE)
    return (*named, str(parts.get("service") or os.environ.get("PGSERVICE", "")))


def _is_open(place: tuple[str, ...]) -> bool:
    """Whether the place does not say which server it is: several hosts, or a service's."""
    *hosts, service = place
    return any("," in each for each in hosts) or bool(service)
