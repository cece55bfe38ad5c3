"""What the tests of the server module share: a trial to run, and its observations."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
from psycopg.conninfo import make_conninfo

from pgtare.estimate.trial import observations
from pgtare.estimate.trial.design import Arm, Design, Runs, Slices
from pgtare.estimate.trial.observations import Observations
from pgtare.server.cluster import Cluster
from pgtare.server.own_session import connect
from pgtare.weighing.trials import Population, Trials

PATIENCE_SECONDS = 10.0
#: The block number that stands for "in no block", of a session's first unit.
NO_BLOCK = 0xFFFFFFFF
#: A setting that both servers have, which no client hears of, and its values arm by arm.
MARKER = "work_mem"
MARKED: tuple[dict[str, str], ...] = ({MARKER: "1111kB"}, {MARKER: "2222kB"})

Session = psycopg.Connection[tuple[Any, ...]]


class Running:
    """A trial that runs, and all that has been drained from it."""

    def __init__(self, trials: Trials, design: Design) -> None:
        self.trials = trials
        self.design = design
        self._drained: list[Observations] = []

    def drain(self) -> None:
        """Take what is there, to be looked at later."""
        self._drained.append(self.trials.drain())

    def drained(self) -> Observations:
        """All observations up to now, in the order in which each session made them."""
        self.drain()
        rows: Observations = np.concatenate(self._drained)
        return rows[np.lexsort((rows["unit"], rows["backend"]))]

    def observed(self, session: Session, count: int) -> Observations:
        """The `count` observations of one session: a record follows its answer a little later."""
        pid = session.info.backend_pid

        def mine() -> Observations:
            rows = self.drained()
            own: Observations = rows[rows["pid"] == pid]
            return own

        with contextlib.suppress(TimeoutError):
            wait_until(lambda: len(mine()) >= count)
        time.sleep(0.02)  # would show one too many
        rows = mine()
        assert len(rows) == count
        return rows


def design_of(
    arms: Sequence[Mapping[str, str]],
    inject_ns: Sequence[int] | None = None,
    block: Sequence[int] | None = None,
    seed: int = 20240607,
    slices: Slices | None = None,
    runs: Runs | None = None,
) -> Design:
    """A design whose arms have these settings."""
    delays = inject_ns or [0] * len(arms)
    return Design(
        tuple(
            Arm(f"arm{i}", "base" if i == 0 else "instrument", dict(settings), delays[i])
            for i, settings in enumerate(arms)
        ),
        tuple(block or range(len(arms))),
        seed,
        slices,
        runs,
    )


@contextlib.contextmanager
def trial(
    cluster: Cluster,
    arms: Sequence[Mapping[str, str]] = MARKED,
    *,
    inject_ns: Sequence[int] | None = None,
    block: Sequence[int] | None = None,
    seed: int = 20240607,
    slices: Slices | None = None,
    runs: Runs | None = None,
    seconds: float = 60.0,
    sessions: int = 64,
    cpu: bool = True,
    application: str = "*",
    role: str | None = None,
    participation: float = 1.0,
    database: str | None = "postgres",
    owner_does: str = "",
) -> Iterator[Running]:
    """A trial, stopped in the end; `owner_does` comes first, in the session that starts it."""
    design = design_of(arms, inject_ns, block, seed, slices, runs)
    population = Population(database, role, application, participation, sessions)
    with connect(cluster.dsn()) as owner:
        owner.execute(owner_does.encode())
        trials = Trials(owner)
        trials.start(design, population, seconds, cpu=cpu)
        try:
            yield Running(trials, design)
        finally:
            if not owner.closed and not owner.broken:
                trials.stop()


@contextlib.contextmanager
def session(cluster: Cluster, dbname: str = "postgres", **parameters: str) -> Iterator[Session]:
    """A session whose statements are one request and one transaction each."""
    with psycopg.connect(
        make_conninfo(cluster.dsn(dbname), **parameters), autocommit=True, prepare_threshold=None
    ) as connection:
        yield connection


def one(connection: Session, query: str, *args: object) -> Any:
    """The first value of the first row."""
    row = connection.execute(query.encode(), args or None).fetchone()
    assert row is not None
    return row[0]


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """TimeoutError if the condition does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.005)


def share(rows: Observations, flag: observations.UnitFlag) -> float:
    """Of the rows that carry the flag."""
    return float(np.mean((rows["flags"] & flag) != 0))


def flagged(rows: Observations, flag: observations.UnitFlag) -> list[bool]:
    """Row by row, whether it carries the flag."""
    return [bool(flags & flag) for flags in rows["flags"]]


CRASH_WORDS = ("terminated by signal", "PANIC", "TRAP: ", "was terminated", "crash of another")


def crashes(cluster: Cluster) -> list[str]:
    """Lines of the server log that tell of a process that died, or worse."""
    with open(cluster.log_path, errors="replace") as log:
        return [line for line in log if any(word in line for word in CRASH_WORDS)]


def state_of(connection: Session, name: str = MARKER) -> tuple[str, str]:
    """Value and source of a setting."""
    row = connection.execute(
        "SELECT current_setting(name), source FROM pg_settings WHERE name = %s", (name,)
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def message(kind: bytes, body: bytes = b"") -> bytes:
    """A message of PostgreSQL's protocol, version 3."""
    return kind + struct.pack("!i", len(body) + 4) + body


def query_message(sql: str) -> bytes:
    """A simple query."""
    return message(b"Q", sql.encode() + b"\0")


#: A parameterless statement of the extended protocol, in two halves.
PARSE_SELECT = message(b"P", b"\0SELECT 1\0" + struct.pack("!h", 0))
BIND_EXECUTE_SYNC = (
    message(b"B", b"\0\0" + struct.pack("!hhh", 0, 0, 0))
    + message(b"E", b"\0" + struct.pack("!i", 0))
    + message(b"S")
)


class Wire:
    """A session's socket, past libpq: what is sent at once arrives in one piece."""

    def __init__(self, connection: Session) -> None:
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._socket.setblocking(True)
        self._socket.settimeout(PATIENCE_SECONDS)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *messages: bytes) -> None:
        """Send all in one system call."""
        self._socket.sendall(b"".join(messages))

    def read_until_ready(self, times: int = 1) -> list[bytes]:
        """The kinds of all messages up to the last of so many ReadyForQuery."""
        kinds: list[bytes] = []
        data, at = b"", 0
        while times:
            while len(data) - at < 5 or len(data) - at <= int.from_bytes(data[at + 1 : at + 5]):
                piece = self._socket.recv(1 << 16)
                if not piece:
                    raise ConnectionError("the server closed the connection")
                data, at = data[at:] + piece, 0
            kinds.append(data[at : at + 1])
            times -= kinds[-1] == b"Z"
            at += 1 + int.from_bytes(data[at + 1 : at + 5])
        assert at == len(data)
        return kinds
