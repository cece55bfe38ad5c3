"""What `pgtare store check` finds: version, tables, rights, clock, what was sent.

`pgtare agent check` asks for less, and whether the agent may insert.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pgtare.keeping.spool.tables import TABLES
from pgtare.keeping.store import pushed_rows, repair, store_schema
from pgtare.keeping.store.address import StoreAddress
from pgtare.keeping.store.connection import StoreConnection, StoreError, connect, quoted
from pgtare.keeping.store.pushed_rows import Push
from pgtare.keeping.store.repair import PartialCommits

#: The oldest version that has all that the schema uses.
OLDEST = (24, 3)
#: A clock that is further away is reported, s.
_CLOCK_S = 5.0
#: How long an agent's check waits for an answer, s.
_ANSWER_S = 10.0
_NUMBER = re.compile(r"(\d+)\.(\d+)")


@dataclass
class StoreCheck:
    """What was found in a store. clock_s: its clock minus this machine's.

    tables: how many are there and may be read. spools: the newest first. faults: what keeps the
    store from being used.
    """

    version: str
    server: str
    user: str
    clock_s: float
    tables: int = 0
    spools: list[Push] = field(default_factory=list)
    partial: list[PartialCommits] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_for_agent(address: StoreAddress) -> StoreCheck:
    """Ask a store, and whether its user may insert; inserts no row. Raises PgtareError."""
    with connect(address, _ANSWER_S) as connection:
        found = check(connection)
        refused = _refused_inserts(connection) if found.tables == len(TABLES) else []
    if refused:
        found.faults.append(
            f"{found.user} may not insert into {', '.join(refused)}: "
            f"GRANT {store_schema.AGENT} TO {found.user}"
        )
    return found


def _refused_inserts(connection: StoreConnection) -> list[str]:
    """Tables that refuse an insert; none of these has a row."""
    sql = f"INSERT INTO {connection.database}.{{}} (spool, seq) SELECT '', 0 WHERE 0"
    return _refusing(store_schema.FILLED, lambda name: connection.command(sql.format(name)))


def _refusing(tables: Iterable[str], ask: Callable[[str], object]) -> list[str]:
    refused = []
    for name in tables:
        try:
            ask(name)
        except StoreError:
            refused.append(name)
    return refused


def check(connection: StoreConnection) -> StoreCheck:
    """Ask a store. Raises StoreError if it does not answer."""
    began = time.time()
    version, server, user, now_us = connection.rows(
        "SELECT version(), hostName(), currentUser(), toUnixTimestamp64Micro(now64(6, 'UTC'))"
    )[0]
    clock_s = int(now_us) / 1e6 - (began + time.time()) / 2
    found = StoreCheck(str(version), str(server), str(user), clock_s)
    number = _NUMBER.match(found.version)
    if number is None or (int(number[1]), int(number[2])) < OLDEST:
        found.faults.append(
            f"ClickHouse {version} is too old: {OLDEST[0]}.{OLDEST[1]} or later is needed"
        )
    if abs(clock_s) > _CLOCK_S:
        found.notes.append(
            f"the store's clock is {clock_s:+.1f} s away from this machine's: rows are kept by the "
            "agents' clocks; set both by NTP"
        )
    found.tables = _tables(connection, found.faults)
    try:
        schema = store_schema.version(connection)
        wrong = store_schema.fault(schema)
        if wrong and (schema is not None or not found.faults):  # what is missing is said already
            found.faults.append(wrong)
    except StoreError as ex:
        found.faults.append(f"the version of the tables cannot be read: {ex}")
    if found.tables == len(TABLES):
        try:
            sent = pushed_rows.pushes(connection), repair.partial(connection)
            found.spools, found.partial = sent
        except StoreError as ex:
            found.faults.append(f"what was sent cannot be read: {ex}")
    if found.partial:
        found.notes.append(
            f"commits of {len(found.partial)} tables and days are partial and left out by the "
            "page: `pgtare store repair` deletes what there is, and the agent sends all of it again"
        )
    return found


def _tables(connection: StoreConnection, faults: list[str]) -> int:
    """How many tables there are that may be asked; what may be read is tried, not looked up."""
    listed = connection.rows(
        f"SELECT name FROM system.tables WHERE database = {quoted(connection.database)}"
    )
    names = {str(row[0]) for row in listed}
    missing = [name for name in TABLES if name not in names]
    if missing:
        faults.append(f"tables are missing: {', '.join(missing)}; run `pgtare store create`")
    sql = f"SELECT spool, seq, ts FROM {connection.database}.{{}} LIMIT 0"
    there = [name for name in TABLES if name in names]
    refused = _refusing(there, lambda name: connection.rows(sql.format(name)))
    if refused:
        faults.append(
            f"the user may not read {', '.join(refused)}: GRANT one of the roles that "
            "`pgtare store create --roles` makes"
        )
    return len(TABLES) - len(missing) - len(refused)
