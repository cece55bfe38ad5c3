"""What `pgtare store` prints as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name


class StoreCreated(Document):
    """What was done, or with --dry-run would be done, to a store's schema."""

    schema_: Literal["pgtare.store.create/1"] = schema_name("pgtare.store.create/1")
    database: str = Field(description="the database")
    made: bool = Field(description="whether tables were made now; of --dry-run: false")
    statements: list[str] = Field(description="of --dry-run: the SQL; else empty")


class StoreSpool(Model):
    """What a store has of a spool."""

    spool: str = Field(description="UUID of the spool")
    seq: int = Field(description="it has all commits up to this one")
    age_s: float = Field(description="time since its rows came last, s")
    unsent_rows: int = Field(description="rows that the spool dropped before they were sent")


class StorePartial(Model):
    """Commits of one spool, table and day of which the store has some rows but not all."""

    spool: str = Field(description="UUID of the spool")
    table: str = Field(description="name of the table")
    day: str = Field(description="the UTC day of the rows")
    seqs: list[int] = Field(description="numbers of the commits")
    rows: int = Field(description="rows that are there")


class StoreChecked(Document):
    """What was found in a store."""

    schema_: Literal["pgtare.store.check/1"] = schema_name("pgtare.store.check/1")
    version: str = Field(description="version of ClickHouse")
    server: str = Field(description="name of the server that answered")
    user: str = Field(description="the user")
    roles: list[str] = Field(description="the user's roles in use")
    clock_s: float = Field(description="its clock minus this machine's, s")
    tables: int = Field(description="tables that are there and may be read")
    spools: list[StoreSpool] = Field(description="spools that were sent, the newest first")
    partial: list[StorePartial] = Field(description="what `pgtare store repair` would delete")
    faults: list[str] = Field(description="what keeps the store from being used")
    notes: list[str] = Field(description="what else should be known")


class PlannedTable(Model):
    """A table for all servers, when rows go as fast as they come."""

    table: str = Field(description="name of the table")
    rows_a_day: float = Field(description="rows a day of all servers")
    rate_from: str = Field(
        description="where the rate of rows is from: `measured`, `simulated` (measured on "
        "simulated rows) or `assumed`"
    )
    bytes_a_row: float = Field(description="bytes of a row on disk")
    bytes_from: str = Field(description="where that is from, likewise")
    kept_s: int = Field(description="age at which rows go, or for which it is planned, s")
    ttl: bool = Field(description="whether rows go at that age; else they stay")
    rows: int = Field(description="rows, computed")
    bytes: int = Field(description="size on disk, one replica, computed")
    parts: int = Field(description="parts, computed")


class StorePlanned(Document):
    """What a store needs for a number of servers."""

    schema_: Literal["pgtare.store.plan/1"] = schema_name("pgtare.store.plan/1")
    servers: int = Field(description="servers")
    tables: list[PlannedTable] = Field(description="the tables")
    rows: int = Field(description="rows of all tables, computed")
    bytes: int = Field(description="size of all tables on disk, one replica, computed")
    parts: int = Field(description="parts of all tables, computed")
    rows_a_second: float = Field(description="rows that come, a second, computed")
    inserts_a_minute: float = Field(description="inserts of all agents, a minute, computed")
    agents: int = Field(description="agents, if each watches 75 servers")
    shards: int = Field(description="shards, by room and by rows a second, computed")
    disk_bytes: int = Field(description="room for rows on a shard, as given, bytes")
    shard_rows_a_second: float = Field(description="rows a second that a shard takes, as given")


class StoreRepaired(Document):
    """What was partial in a store, and whether it was deleted."""

    schema_: Literal["pgtare.store.repair/1"] = schema_name("pgtare.store.repair/1")
    deleted: bool = Field(description="whether it was deleted; false: only listed")
    partial: list[StorePartial] = Field(description="what is, or was, there in part")
