"""What `pgtare spool` prints as JSON."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pgtare.kit.document import Document, Model, schema_name


class ResultColumn(Model):
    """A column of an answer."""

    name: str = Field(description="name of the column")
    type: str = Field(description="its type, as DuckDB names it")


class SpoolRows(Document):
    """The answer to a query."""

    schema_: Literal["pgtare.spool.rows/1"] = schema_name("pgtare.spool.rows/1")
    columns: list[ResultColumn] = Field(description="the columns, in the order of the query")
    rows: list[dict[str, Any]] = Field(
        description=(
            "a value for each column by its name. Times are in UTC; `query_id`, `text_hash` and "
            "`epoch` are strings, as JSON readers round large numbers"
        )
    )
    notes: list[str] = Field(description="files that were left out because they are damaged")


class SpoolTable(Model):
    """A table of a spool."""

    name: str = Field(description="name of the table")
    segments: int = Field(description="files")
    rows: int = Field(description="rows")
    bytes: int = Field(description="size of its files, bytes")
    first: str | None = Field(description="earliest ts, UTC; null: no rows")
    last: str | None = Field(description="latest ts, UTC; null: no rows")
    rolled_up_to: str | None = Field(
        description="of a rolled-up table: the ts up to which its source is summed up, UTC"
    )
    dropped_rows: int = Field(
        description="rows dropped so far, because they were old or to make room"
    )
    dropped_bytes: int = Field(description="size of the files dropped so far, bytes")
    dropped_unsent_rows: int = Field(
        description="of the dropped rows, those that had not been sent to the agent's store"
    )


class SpoolGaps(Model):
    """Rows of `gaps` of one server and kind."""

    server: str = Field(description="name of the server; empty: not known")
    kind: str = Field(
        description="restart, reset, absence, lost, disk_full, dropped, busy or unexpected"
    )
    rows: int = Field(description="their number")
    last: str = Field(description="the latest ts, UTC")


class SpoolInfo(Document):
    """What a spool holds."""

    schema_: Literal["pgtare.spool.info/1"] = schema_name("pgtare.spool.info/1")
    directory: str = Field(description="the directory")
    uuid: str = Field(description="UUID of the spool")
    commits: int = Field(description="number of the newest commit")
    writer_pid: int | None = Field(description="the process that writes it; null: none does")
    bytes: int = Field(description="size of all its files, bytes")
    free_bytes: int = Field(description="room left on its disk, bytes")
    waiting_bytes: int = Field(
        description="size of replaced files that are kept for readers for some minutes, bytes"
    )
    tables: list[SpoolTable] = Field(description="the tables that have or had rows")
    gaps: list[SpoolGaps] = Field(description="what is missing")
    damaged: dict[str, str] = Field(description="files that were set aside, and why")
    notes: list[str] = Field(description="what was wrong while reading")
