"""The raw data of a fleet: PREFIX/servers/NAME/, as `pgtare weigh --out` leaves each of them.

`fleet.json` has the labels of the servers, and how far each is; it may be missing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import UsageError
from pgtare.kit import artefact
from pgtare.weighing.fleet.documents import FleetLeftOut
from pgtare.weighing.fleet.state import FLEET_FILE, WEIGHING, FleetServerState, FleetState
from pgtare.weighing.weigh import store

SERVERS = "servers"
_LAYOUT = "the raw data of a server are expected in PREFIX/servers/NAME/"


@dataclass(frozen=True)
class Listing:
    """The servers of a prefix, in the order of their names, and what cannot be read.

    records: the servers of `fleet.json` by name; none if there is no such file.
    """

    servers: tuple[str, ...]
    left_out: tuple[FleetLeftOut, ...]
    records: Mapping[str, FleetServerState]


def listing(prefix: Path) -> Listing:
    """Which servers there are. One whose files are not all there is left out.

    Raises UsageError if there is no directory of servers, or nothing in it, or if `fleet.json` is
    another document, and PgtareError if that is damaged.
    """
    records, found, left_out = _records(prefix), [], []
    for name in _names(prefix):
        if name.startswith("."):
            reason = "a directory that was being written when the weighing was cut off"
            left_out.append(FleetLeftOut(server=name, reason=reason))
            continue
        present = _files(prefix / SERVERS / name)
        missing = [file for file in store.FILES if file not in present]
        if missing:
            left_out.append(FleetLeftOut(server=name, reason=_incomplete(missing)))
        else:
            found.append(name)
    if not found and not left_out:
        raise UsageError(f"{prefix} holds no {WEIGHING.what}: {SERVERS}/ in it is empty; {_LAYOUT}")
    return Listing(tuple(found), tuple(left_out), records)


def _records(prefix: Path) -> dict[str, FleetServerState]:
    path = prefix / FLEET_FILE
    if not path.exists():
        return {}
    state = artefact.parsed(FleetState, WEIGHING.read(path), path)
    return {server.name: server for server in state.servers}


def without_data(
    records: Mapping[str, FleetServerState], known: Collection[str]
) -> list[FleetLeftOut]:
    """The servers of `fleet.json` that have no data. known: names of those that have some."""
    found = []
    for name in sorted(set(records) - set(known)):
        record = records[name]
        if record.state == "done":
            reason = "its data are not there"
        elif record.state == "lost" and record.transactions:
            reason = f"{record.words()}; none of its observations are kept"
        else:
            reason = record.words()
        found.append(FleetLeftOut(server=name, reason=reason))
    return found


def _names(prefix: Path) -> list[str]:
    """The directories in PREFIX/servers, in order."""
    servers = prefix / SERVERS
    try:
        return sorted(one.name for one in os.scandir(servers) if one.is_dir())
    except (FileNotFoundError, NotADirectoryError) as ex:
        if not prefix.exists():
            raise artefact.not_there(prefix, WEIGHING.what) from ex
        raise UsageError(
            f"{prefix} holds no {WEIGHING.what}: it has no directory {SERVERS}/; {_LAYOUT}"
        ) from ex
    except OSError as ex:
        raise artefact.unreadable(servers, ex) from ex


def _files(server: Path) -> list[str]:
    try:
        return os.listdir(server)
    except OSError as ex:
        raise artefact.unreadable(server, ex) from ex


def _incomplete(missing: Sequence[str]) -> str:
    listed = missing[0] if len(missing) == 1 else f"{', '.join(missing[:-1])} and {missing[-1]}"
    return (
        f"incomplete: {listed} {'is' if len(missing) == 1 else 'are'} missing; its weighing did "
        "not end, or not all of it was copied"
    )
