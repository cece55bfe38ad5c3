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
    reached = _chosen.get(_place(dsn))
    return make_conninfo(dsn, **reached) if reached else dsn


def connect(open_session: Callable[[str], Session], dsn: str) -> Session:
    """Open a session, by the host that an earlier one went to if there is one.

    If that host no longer answers, or is no longer what `target_session_attrs` asks for, all hosts
    are tried. Which server was meant is said once on standard error, if the string does not say so.
    Raises what `open_session` does, and psycopg.ProgrammingError.
    """
    place = _place(dsn)
    target = one_host(dsn)
    try:
        session = open_session(target)
    except psycopg.OperationalError:
        if target == dsn:
            raise
        session = open_session(dsn)
    if _is_open(place):
        _note(place, session)
    return session


def _note(place: tuple[str, ...], session: psycopg.Connection[Any]) -> None:
    info = session.info
    reached = {"host": info.host, "hostaddr": info.hostaddr, "port": str(info.port)}
    if info.host.startswith("/"):
        reached.pop("hostaddr")
    with _lock:
        if _chosen.get(place) == reached:
            return
        _chosen[place] = reached
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
