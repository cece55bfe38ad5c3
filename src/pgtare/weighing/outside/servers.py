"""Servers as arms: the driver's sessions on each, and what tells the servers apart."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from pgtare.errors import MeasurementError, UsageError
from pgtare.estimate.trial.design import BATCHES, Arm, Design, block_layout
from pgtare.postgres import pooler
from pgtare.postgres.private_settings import is_private
from pgtare.weighing.instruments.proof_result import Proof
from pgtare.weighing.outside.loops import Seat
from pgtare.weighing.outside.session import SET_ALIKE, driven_session, end
from pgtare.weighing.outside.transactions import Source
from pgtare.weighing.outside.wire import Wire
from pgtare.weighing.weigh import outside_schema, schema
from pgtare.weighing.weigh.request import Request, ServerAddress
from pgtare.weighing.weigh.result import own_settings, system_identifier

#: Sessions are made anew this often in all at most, and no more often than this, in s. Two sessions
#: may differ for as long as they last: only more of them tell more.
EPOCHS, SHORTEST_EPOCH_S = 3_600, 1.0
#: Pauses before a server that has no room for sessions is asked again, in s.
_RETRIES_S = (0.5, 1.0, 2.0)
#: What differs between two servers by their places.
_OF_PLACE = frozenset(
    {
        "archive_command",
        "cluster_name",
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "in_hot_standby",
        "listen_addresses",
        "log_directory",
        "log_filename",
        "port",
        "primary_conninfo",
        "primary_slot_name",
        "restore_command",
        "server_version",
        "server_version_num",
        "session_authorization",
        "ssl_cert_file",
        "ssl_key_file",
        "unix_socket_directories",
    }
)
_SERVER = """
SELECT pg_catalog.current_setting('server_version'), pg_catalog.pg_is_in_recovery(),
       extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text
"""


def design_of(request: Request) -> Design:
    """The first server is the base, and its control: the same server in another session.

    Servers drift, each by itself, over seconds to minutes. So sessions count in batches.
    """
    first, *others = request.servers
    arms = (
        Arm(first.name, "base"),
        Arm("control", "control"),
        *(Arm(server.name, "instrument") for server in others),
    )
    return Design(
        arms,
        block_layout(len(arms)),
        request.seed,
        driven=True,
        grouping="sessions",
        batch_s=request.duration_s / BATCHES,
    )


def epoch_s(request: Request) -> float:
    """How long sessions are to last."""
    return max(request.duration_s / EPOCHS, SHORTEST_EPOCH_S)


def by_arm(servers: int) -> list[int]:
    """The number of each arm's server, of so many."""
    return [0, 0, *range(1, servers)]


@dataclass
class ServerSessions:
    """The driver's sessions, one an arm; close() ends them.

    controls: another session on each server. Raises UsageError if a server refuses a statement, and
    MeasurementError if it cannot be reached.
    """

    servers: Sequence[ServerAddress]
    controls: Sequence[psycopg.Connection[Any]]
    source: Source
    writes: bool
    rng: random.Random
    _open: list[tuple[int, psycopg.Connection[Any], Wire]] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def first(self) -> list[Seat]:
        """Sessions to begin with."""
        names = [self.servers[number].name for number in by_arm(len(self.servers))]
        return [Seat(wire, name) for wire, name in zip(self._wires(), names, strict=True)]

    def anew(self, seats: Sequence[Seat]) -> list[Seat]:
        """New sessions in the place of these. A server may be full for a moment."""
        pauses = iter(_RETRIES_S)
        while True:
            self.close()
            try:
                wires = self._wires()
            except MeasurementError:
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                time.sleep(pause_s)
            else:
                return [seat.renewed(wire) for seat, wire in zip(seats, wires, strict=True)]

    def close(self) -> None:
        """End all sessions, and what they still do."""
        opened, self._open = self._open, []
        for number, conn, wire in opened:
            if wire.pending:
                end(self.controls[number], conn)
        self._stack.close()

    def _wires(self) -> list[Wire]:
        arms = list(enumerate(by_arm(len(self.servers))))
        self.rng.shuffle(arms)  # no arm is always the first to connect
        found = {}
        for arm, number in arms:
            server = self.servers[number]
            opened = driven_session(server.dsn, self.controls[number], writes=self.writes)
            with at(server):
                conn = self._stack.enter_context(opened)
            found[arm] = Wire(conn, self.source.statements)
            self._open.append((number, conn, found[arm]))
            answers = found[arm].prepare()
            if answers.error:
                raise UsageError(
                    f"{server.name} refuses a statement of {self.source.name}: {answers.error}"
                )
        return [found[arm] for arm in sorted(found)]


@contextlib.contextmanager
def at(server: ServerAddress) -> Iterator[None]:
    """Errors name the server that they are of."""
    try:
        yield
    except (UsageError, MeasurementError) as ex:
        raise type(ex)(f"{server.name}: {ex}") from ex


@dataclass(frozen=True)
class FoundServer:
    """A server. started: with the identifier, what tells it from all others."""

    name: str
    version: str
    standby: bool
    system_identifier: str | None
    started: str
    settings: dict[str, str]

    def is_the_same(self, other: FoundServer) -> bool:
        """Whether it is the other server, under another name."""
        each = [(one.system_identifier, one.started, one.standby) for one in (self, other)]
        return each[0] == each[1]


def look(server: ServerAddress, control: psycopg.Connection[Any]) -> FoundServer:
    """What a server is."""
    ((version, standby, started),) = pooler.rows(control, _SERVER)
    identifier = system_identifier(control)
    settings = {
        str(name): str(value)
        for name, value, is_text, _ in own_settings(control)
        if name not in _OF_PLACE | SET_ALIKE and not is_private(str(name), is_text=is_text)
    }
    return FoundServer(server.name, str(version), standby, identifier, started, settings)


def infos(found: Sequence[FoundServer]) -> list[outside_schema.ServerInfo]:
    """The servers, with the settings in which they differ."""
    names = sorted({name for server in found for name in server.settings})
    differ = [name for name in names if len({server.settings.get(name) for server in found}) > 1]
    # what only some have comes last: it may be of another version, or hidden from the role
    differ.sort(key=lambda name: any(name not in server.settings for server in found))
    return [
        schema.filled(
            outside_schema.ServerInfo,
            server,
            settings={name: server.settings.get(name) for name in differ},
        )
        for server in found
    ]


def proofs(design: Design, found: Sequence[FoundServer], ran: Sequence[int]) -> list[Proof | None]:
    """The proof of each arm; None for the base. ran: transactions of each arm."""
    numbers = by_arm(len(found))
    proven: list[Proof | None] = []
    for arm, number, transactions in zip(design.arms, numbers, ran, strict=True):
        if arm.role == "base":
            proven.append(None)
        elif not transactions:
            proven.append(Proof(state="missing", evidence="the arm has no transactions"))
        elif arm.role == "control":
            proven.append(Proof(state="active", evidence="the same server in another session"))
        else:
            version = f"its sessions were on PostgreSQL {found[number].version}"
            proven.append(Proof(state="active", evidence=version))
    return proven
