"""Arbitrary calls of every SQL function of the modules, by ordinary roles: the server goes on.

Four roles call at random: one without any right, one in pg_monitor, one that may execute every
function, and a superuser. Arguments are values that fit their names, or any that fit their types:
limits of numbers, NaN, empty and very long texts, arrays with NULLs, of two dimensions, or with
another lower bound. Rows are fetched to the end or not.
The exit status is 1 if a process of the server ends, if a function raises an internal error
(SQLSTATE XX…), or if a session does not go on afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from tests.servers import crashes, stopped_at_once, with_everything
from tests.versions.servers import installed

from bench.harness import say
from pgtare.postgres.cluster import Cluster
from pgtare.postgres.modules import PRELOAD_ORDER
from pgtare.postgres.settings import Value

TAKES = "ten minutes (--minutes, --seed, --version)"

SETTINGS: dict[str, Value] = {
    "fsync": False,
    "compute_query_id": True,
    "wait_event_timing.capture": "trace",
    "sql_trace.recorder": True,
    "sql_trace.recorder_memory": "8MB",
    "sql_trace.ring_memory": "64MB",
}
_NOBODY, _MONITOR, _GRANTED = "nobody_here", "monitor_here", "granted_here"
#: Every function of the modules: its name, the types and names of its arguments, how many of them
#: have defaults, and whether it gives rows.
_FUNCTIONS = """
SELECT n.nspname, p.proname, p.proargtypes::regtype[]::text[],
  coalesce(p.proargnames[1:p.pronargs], '{}'), p.pronargdefaults, p.proretset
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE p.prokind = 'f' AND concat(n.nspname, p.proname, p.probin) ~ %s ORDER BY 1, 2, 3
"""
_LONG = "ü" * 3_000
_TEXTS = ("", "a", "*", "%", "shop*", "x'); DROP TABLE t; --", "a\nb\t\x1b[31m", "ü" * 40, _LONG)
_NAMES = (
    "work_mem",
    "track_io_timing",
    "pgtare.enabled",
    "sql_trace.level",
    "DateStyle",
    "no.such",
)
_WHOLE = (0, 1, -1, 2, 7, 64, 65_535, 1 << 20)
#: Values by type. Of a type that is not here there is only NULL.
_OF_TYPE: dict[str, Sequence[Any]] = {
    "integer": (*_WHOLE, -(1 << 31), (1 << 31) - 1),
    "bigint": (*_WHOLE, -(1 << 63), (1 << 63) - 1),
    "oid": (0, 1, 10, 16_384, (1 << 32) - 1),
    "double precision": (0.0, -1.0, 1e-300, 0.5, 3.0, 1e308, "NaN", "Infinity", "-Infinity"),
    "boolean": (True, False),
    "text": (*_TEXTS, *_NAMES),
    "name": (*_TEXTS, *_NAMES),
}
#: Values that an argument of this name is meant for.
_OF_NAME: dict[str, Sequence[Any]] = {
    "settings": (["work_mem"], ["track_io_timing", "work_mem"], []),
    "values": (["64MB"], ["on", "64MB"], ["4MB", "64MB"], ["off", "4MB", "on", "64MB"]),
    "inject_ns": ([0, 0], [0, 500], [0], [0, 0, 1_000_000]),
    "block": ([0, 1], [0, 0, 1, 1], [1]),
    "slices": ([0, 1], [], [1, 1, 1]),
    "duration": (0.01, 0.5, 3.0),
    "seconds": (0.01, 1.0),
    "sessions": (2, 64),
    "participation": (0.0, 0.5, 1.0),
    "level": (0, 1, 4, 8, 12, 13),
    "capture": ("off", "stats", "trace", "default"),
}


@dataclass(frozen=True)
class Function:
    """One function of a module."""

    schema: str
    name: str
    types: Sequence[str]
    names: Sequence[str]
    defaults: int
    rows: bool


@dataclass
class Calls:
    """What was called so far, and what came of it."""

    chance: random.Random
    pids: list[int] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    answered: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def value(self, type_: str, name: str) -> Any:
        """One argument."""
        chance = self.chance
        if chance.random() < 0.1:
            return None
        if name.startswith("pid") and chance.random() < 0.7:
            return chance.sample(self.pids, 2) if type_.endswith("[]") else chance.choice(self.pids)
        if name in _OF_NAME and chance.random() < 0.7:
            return chance.choice(_OF_NAME[name])
        if not type_.endswith("[]"):
            return chance.choice(_OF_TYPE.get(type_, (None,)))
        if chance.random() < 0.1:
            return "[5:6]={1,2}"
        pool = [None, *_OF_TYPE.get(type_.removesuffix("[]"), ())]
        members = chance.choices(pool, k=chance.choice((0, 1, 2, 3, 9, 300)))
        if type_ == "text[]":
            members = [one if one is None else one[:100] for one in members]
        return chance.choice((members, [members, list(members)]))

    def call(self, function: Function) -> sql.Composed:
        """The call as SQL: rows to the end, or the first few; now and then undone by a block."""
        count = len(function.types) - self.chance.randint(0, function.defaults)
        values = [
            sql.SQL("{}::{}").format(sql.Literal(self.value(type_, name)), sql.SQL(type_))
            for type_, name in zip(function.types[:count], function.names[:count], strict=True)
        ]
        name = sql.Identifier(function.schema, function.name)
        called = sql.SQL("{}({})").format(name, sql.SQL(", ").join(values))
        forms: tuple[LiteralString, ...] = (
            "SELECT {}",
            "SELECT * FROM {} AS f",
            "SELECT * FROM {} AS f LIMIT 1",
        )
        if function.rows:
            forms += ("SELECT f FROM {} AS f, generate_series(1, 2)",)
        return sql.SQL(self.chance.choice(forms)).format(called)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="of the calls; a random one if not given")
    parser.add_argument("--version", type=int, choices=(15, 18), default=18)


def main(args: argparse.Namespace) -> int:
    """Call until the time is over or something is wrong."""
    seed = random.randrange(10**9) if args.seed is None else args.seed
    binaries = installed(args.version)
    with stopped_at_once(with_everything(binaries, SETTINGS)) as cluster:
        say(f"seed {seed}, PostgreSQL {args.version}")
        calls = attack(cluster, seed, seconds=60 * args.minutes)
    outcomes = ", ".join(f"{count:,} {name}" for name, count in calls.outcomes.most_common(12))
    say(f"{calls.outcomes.total():,} calls: {outcomes}")
    for line in calls.wrong:
        say(line)
    return int(bool(calls.wrong))


def attack(
    cluster: Cluster,
    seed: int,
    *,
    seconds: float = float("inf"),
    most: float = float("inf"),
    only: str = "",
) -> Calls:
    """Call for so long, or so often, or until something is wrong. only: this function."""
    calls = Calls(random.Random(seed))
    with cluster.connect() as admin:
        functions = [one for one in _prepare(admin) if one.name == only or not only]
    roles = (_NOBODY, _MONITOR, _GRANTED, None)
    sessions = {role: _session(cluster, role) for role in roles}
    calls.pids = [one.info.backend_pid for one in sessions.values()]
    calls.pids += [0, cluster.postmaster_pid]
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until and calls.outcomes.total() < most and not calls.wrong:
            role = calls.chance.choice(roles)
            _one(calls, sessions[role], role, calls.chance.choice(functions))
    finally:
        for session in sessions.values():
            session.close()
    calls.wrong += crashes(cluster)
    return calls


def _prepare(admin: psycopg.Connection[Any]) -> list[Function]:
    """Make the roles; what there is to call."""
    admin.execute(f"CREATE ROLE {_NOBODY} LOGIN".encode())
    admin.execute(f"CREATE ROLE {_MONITOR} LOGIN IN ROLE pg_monitor".encode())
    admin.execute(f"CREATE ROLE {_GRANTED} LOGIN".encode())
    rows = admin.execute(_FUNCTIONS, ("|".join(PRELOAD_ORDER),)).fetchall()
    functions = [Function(*row) for row in rows]
    for schema in {one.schema for one in functions}:
        granted = sql.SQL(
            "GRANT USAGE ON SCHEMA {0} TO {1}; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {0} TO {1}"
        )
        admin.execute(granted.format(sql.Identifier(schema), sql.Identifier(_GRANTED)))
    return functions


def _session(cluster: Cluster, role: str | None) -> psycopg.Connection[Any]:
    """A session of a role that waits for nothing long. None: of the superuser."""
    dsn = cluster.dsn(options="-c statement_timeout=1s -c lock_timeout=1s")
    return psycopg.connect(dsn, user=role, autocommit=True)


def _one(
    calls: Calls, session: psycopg.Connection[Any], role: str | None, function: Function
) -> None:
    """Call once, and see that the session goes on."""
    text = calls.call(function)
    undone = calls.chance.random() < 0.2
    try:
        with session.transaction(force_rollback=True) if undone else contextlib.nullcontext():
            session.execute(text)
    except psycopg.Error as ex:
        outcome = ex.sqlstate or type(ex).__name__
    else:
        outcome = "answers"
        calls.answered.add(function.name)
    calls.outcomes[outcome] += 1
    said = f"{role or 'superuser'}: {text.as_string(session)[:2000]}: {outcome}"
    if outcome.startswith("XX"):
        calls.wrong.append(said)
    try:
        session.execute("SELECT 1")
    except psycopg.Error as ex:
        calls.wrong.append(f"{said}; then the session fails: {ex}")
