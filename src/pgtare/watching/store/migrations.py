"""The store's schema as migrations: SQL files that are applied in the order of their names, once.

On a cluster each table is a ReplicatedMergeTree on every shard, and a second database has a
Distributed table over each. That is untried: no cluster was at hand.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from pgtare.errors import UsageError
from pgtare.watching.store.connection import StoreConnection, StoreError, quoted

#: The table of migrations itself.
FIRST = "0001_migrations"
#: Added to the name of a database for its Distributed tables.
ALL = "_all"
_ENGINE = re.compile(r"\{engine (\w*MergeTree)(?:\((\w+)\))?\}")
_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS \{database\}\.(\w+)")
_CLUSTER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True)
class Migration:
    """A file of SQL. text: with {database}, {on_cluster} and {engine …} to be filled in."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Of its text, so that a file that was changed later is noticed."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self, database: str, cluster: str | None = None) -> Iterator[str]:
        """Its statements for a database."""
        for part in self.text.split(";\n"):
            statement = re.sub(r"(?m)^--.*\n?", "", part).strip()
            if not statement:
                continue
            table = _TABLE.search(statement)
            yield _filled(statement, database, cluster, table[1] if table else "")
            if cluster is not None and table is not None:
                name = table[1]
                yield (
                    f"CREATE TABLE IF NOT EXISTS {database}{ALL}.{name} ON CLUSTER '{cluster}' "
                    f"AS {database}.{name} "
                    f"ENGINE = Distributed('{cluster}', '{database}', '{name}')"
                )


def _filled(statement: str, database: str, cluster: str | None, table: str) -> str:
    def engine(found: re.Match[str]) -> str:
        if cluster is None:
            return f"{found[1]}({found[2] or ''})"
        # the server fills in {shard} and {replica}
        place = f"/clickhouse/tables/{{shard}}/{database}/{table}"
        version = f", {found[2]}" if found[2] else ""
        return f"Replicated{found[1]}('{place}', '{{replica}}'{version})"

    on_cluster = f" ON CLUSTER '{cluster}'" if cluster else ""
    text = statement.replace("{database}", database).replace("{on_cluster}", on_cluster)
    return _ENGINE.sub(engine, text)


@functools.cache
def migrations() -> tuple[Migration, ...]:
    """All of them, in order."""
    folder = resources.files("pgtare.watching.store") / "sql"
    names = sorted(each.name for each in folder.iterdir() if each.name.endswith(".sql"))
    return tuple(
        Migration(name[:-4], (folder / name).read_text(encoding="utf-8")) for name in names
    )


def first_statements(database: str, cluster: str | None) -> list[str]:
    """What comes before all migrations: the databases."""
    if cluster is None:
        return [f"CREATE DATABASE IF NOT EXISTS {database}"]
    check_cluster(cluster)
    names = (database, f"{database}{ALL}")
    return [f"CREATE DATABASE IF NOT EXISTS {name} ON CLUSTER '{cluster}'" for name in names]


def check_cluster(name: str) -> None:
    """Raise UsageError if this can be no name of a cluster."""
    if not _CLUSTER.fullmatch(name):
        raise UsageError(f"--cluster {name}: give the name of a cluster in system.clusters")


def applied(connection: StoreConnection) -> dict[str, str]:
    """Migrations that a store has: name and sha256; none if it has no table of them."""
    database = connection.database
    sql = (
        f"SELECT count() FROM system.tables WHERE database = {quoted(database)} "
        "AND name = 'migrations'"
    )
    if not connection.rows(sql)[0][0]:
        return {}
    return dict(connection.rows(f"SELECT name, sha256 FROM {database}.migrations"))


def faults(found: dict[str, str]) -> list[str]:
    """What is wrong with the migrations of a store, a sentence each."""
    known = {one.name: one.sha256 for one in migrations()}
    sentences = []
    if missing := [name for name in known if name not in found]:
        sentences.append(f"migrations are missing: {', '.join(missing)}; run `pgtare store create`")
    if newer := [name for name in found if name not in known]:
        sentences.append(
            f"it has migrations of a later version of pgtare: {', '.join(sorted(newer))}; update "
            "pgtare on this machine"
        )
    for name, digest in found.items():
        if name in known and known[name] != digest:
            sentences.append(f"migration {name} was applied with another text than this one")
    return sentences


def pending(found: dict[str, str]) -> list[Migration]:
    """Migrations that a store lacks. Raises UsageError if it is of a later pgtare."""
    known = {one.name for one in migrations()}
    if newer := sorted(found.keys() - known):
        raise UsageError(
            f"the store has migrations of a later version of pgtare ({newer[0]}): update pgtare"
        )
    return [one for one in migrations() if one.name not in found]


def apply(connection: StoreConnection, cluster: str | None = None) -> list[str]:
    """Apply what is missing; the names. Each can be applied again if it was interrupted."""
    database = connection.database
    for statement in first_statements(database, cluster):
        connection.command(statement)
    done = []
    for one in pending(applied(connection)):
        try:
            for statement in one.statements(database, cluster):
                connection.command(statement)
        except StoreError as ex:
            raise StoreError(f"migration {one.name} failed: {ex}") from ex
        connection.command(record(one, database))
        done.append(one.name)
    return done


def record(one: Migration, database: str) -> str:
    """The statement that notes a migration as applied."""
    return (
        f"INSERT INTO {database}.migrations (name, sha256) VALUES "
        f"({quoted(one.name)}, {quoted(one.sha256)})"
    )


def script(database: str, cluster: str | None, wanted: list[Migration]) -> Iterator[str]:
    """All statements that `apply` would run, with a comment before each migration."""
    yield from first_statements(database, cluster)
    for one in wanted:
        for number, statement in enumerate(one.statements(database, cluster)):
            yield f"-- {one.name}\n{statement}" if not number else statement
        yield record(one, database)
