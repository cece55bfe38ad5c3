"""Commands that a reader can paste: each ends only what it was written for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pgtare.observing.findings.model import ALTER_SYSTEM, Finding, Remedy
from pgtare.observing.findings.observation import SampledSession, moment

_GONE = "no row: it is gone already, or your role may not see it"
_SIGNAL = (
    "pg_signal_backend and pg_read_all_stats, or the same role; a superuser's session takes a "
    "superuser"
)
#: What goes on when queries of a standby hold up what it applies.
REPLAY_CANCELS = Remedy(
    does="wait: after max_standby_streaming_delay (never, if that is -1) the server cancels what "
    "uses the table on this standby; on the primary nothing waits"
)
#: What the server says of a vacuum that does not give way.
_WRAPAROUND = "(to prevent wraparound)"
#: Processes that no remedy may end.
_UNTOUCHED = (
    "autovacuum worker",
    "walsender",
    "startup",
    "walreceiver",
    "checkpointer",
    "walwriter",
)
#: Where a setting may come from besides configuration files.
_SOURCES = {
    "command line": "the command line that starts the server",
    "environment variable": "the environment of the server",
    "global": "ALTER ROLE ALL … SET",
    "database": "ALTER DATABASE … SET of this database",
    "user": "ALTER ROLE … SET of this role",
    "database user": "ALTER ROLE … IN DATABASE … SET of this role",
}
#: The schema that a table's name begins with, and the dot.
SCHEMA = re.compile(r'(?:"(?:[^"]|"")+"|[^".]+)\.')
#: What writes, so that a standby cannot do it.
_WRITES = re.compile(r"(ALTER (ROLE|DATABASE)|ANALYZE|CREATE|ROLLBACK PREPARED|VACUUM)\b")


def literal(text: str) -> str:
    """A string as SQL has it; what a terminal would change is written by its number."""
    return _escaped(text, "'")


def identifier(text: str) -> str:
    """A name as SQL has it, always in quotes."""
    return _escaped(text, '"')


def table(name: str) -> str:
    """A table's name for a command: with its schema, which `plain` leaves out."""
    return name if SCHEMA.match(name) else f"public.{name}"


def _escaped(text: str, quote: str) -> str:
    doubled = text.replace(quote, 2 * quote)
    if all(char == " " or (char.isprintable() and not char.isspace()) for char in text):
        # a backslash means nothing in a plain literal (standard_conforming_strings)
        return quote + doubled + quote
    coded = "".join(
        char
        if char == " " or (char.isprintable() and not char.isspace() and char != "\\")
        else f"\\+{ord(char):06X}"
        for char in doubled
    )
    return f"U&{quote}{coded}{quote}"


def set_at_once(name: str, value: str, comment: str = "") -> str:
    """The command that sets it without a restart."""
    return f"ALTER SYSTEM SET {name} = {value}; SELECT pg_reload_conf();{comment}"


def setting(setting_name: str, value: str, does: str, risk: str = "") -> Remedy:
    """A setting of the whole server."""
    return Remedy(
        command=set_at_once(setting_name, value), does=does, risk=risk, privilege=ALTER_SYSTEM
    )


def where_else(one: Finding, sources: Mapping[str, str]) -> Finding:
    """The finding, whose remedies name what ALTER SYSTEM does not override.

    sources: of settings that are not from a configuration file, as pg_settings names them.
    """
    sql = " ".join(each.command for each in one.remedy)
    said = [
        Remedy(
            does=f"{name} is set by {_SOURCES.get(source, source)}, which goes before ALTER "
            "SYSTEM: change it there"
        )
        for name, source in sources.items()
        if re.search(rf"\bALTER SYSTEM SET {re.escape(name)} ", sql)
    ]
    return one.model_copy(update={"remedy": [*said, *one.remedy]}) if said else one


def of_standby(one: Finding) -> Finding:
    """The finding, of a standby: it takes no writes."""
    fixes = [
        each.model_copy(update={"does": f"on the primary: {each.does}"})
        if _WRITES.match(each.command)
        else each
        for each in one.remedy
    ]
    return one.model_copy(update={"remedy": fixes})


def role_setting(role: str, setting_name: str, value: str, does: str, risk: str) -> Remedy:
    """A setting of a role, for its new sessions."""
    return Remedy(
        command=f"ALTER ROLE {identifier(role)} SET {setting_name} = {value};",
        does=does,
        risk=risk,
        privilege="the right to alter the role",
    )


def _time(us: int) -> str:
    return f"{moment(us / 1e6):%Y-%m-%d %H:%M:%S.%f}+00"


def _which(one: SampledSession, *, statement: bool) -> str:
    """Which session it is, and transaction: behind a pooler it serves another client next."""
    parts = [f"pid = {one.pid}", f"backend_start = '{_time(one.started_us)}'"]
    if one.xact_us is not None:
        parts.append(f"xact_start = '{_time(one.xact_us)}'")
    elif one.state == "idle":
        parts.append("xact_start IS NULL")
    if not statement and one.state.startswith("idle"):
        parts.append(f"state = '{one.state}'")
    if statement and one.query_us is not None:
        parts.append(f"query_start = '{_time(one.query_us)}'")
    return " AND ".join(parts)


def _risk(one: SampledSession, risk: str) -> str:
    """With what is not known of a session that hides its transaction."""
    if one.state != "disabled":
        return risk
    return (
        f"{risk}; the session does not show its transaction (track_activities = off), so behind a "
        "pooler it may serve another client by then"
    )


def cancel(one: SampledSession, does: str) -> Remedy:
    """Cancel its statement, if it still runs that one."""
    return Remedy(
        command=f"SELECT pg_cancel_backend({one.pid}) FROM pg_stat_activity WHERE "
        f"{_which(one, statement=True)};",
        does=f"{does}; {_GONE}",
        risk=_risk(one, "its transaction is rolled back"),
        privilege=_SIGNAL,
    )


def terminate(one: SampledSession, does: str) -> Remedy:
    """End the session, if it is still in the same transaction."""
    return Remedy(
        command=f"SELECT pg_terminate_backend({one.pid}) FROM pg_stat_activity WHERE "
        f"{_which(one, statement=False)};",
        does=f"{does}; {_GONE}",
        risk=_risk(one, "its transaction is rolled back, and its connection is lost"),
        privilege=_SIGNAL,
    )


def end_those(which: str, does: str, risk: str) -> Remedy:
    """End all sessions that a condition on pg_stat_activity finds."""
    return Remedy(
        command=f"SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE {which};",
        does=does,
        risk=risk,
        privilege=_SIGNAL,
    )


def may_be_ended(one: SampledSession) -> bool:
    """Whether a remedy may end it, or what it does."""
    return one.backend_type not in _UNTOUCHED


def end(one: SampledSession) -> list[Remedy]:
    """What makes a session let go, the gentlest first."""
    if one.backend_type == "startup":
        return [REPLAY_CANCELS]
    if one.backend_type == "autovacuum worker":
        does = "let autovacuum finish: it gives way to others by itself"
        if _WRAPAROUND in one.text:
            does = "let autovacuum finish: it prevents wraparound, and must not be ended"
        return [Remedy(does=does)]
    if not may_be_ended(one):
        return [Remedy(does=f"let the {one.backend_type} finish: it must not be ended")]
    if one.state == "active":
        return [cancel(one, "cancels its statement"), terminate(one, "if that does not help")]
    return [terminate(one, "ends the session, and so its transaction and locks")]


def not_again(one: SampledSession) -> list[Remedy]:
    """What keeps other transactions of its role from staying open so long, if there is a way."""
    if not one.role or not may_be_ended(one):
        return []
    if one.state.startswith("idle"):
        return [idle_timeout(one.role)]
    if (one.query_age_s or 0.0) < (one.xact_age_s or 0.0) / 2:
        return []  # a transaction of many statements: none of them takes long
    return [
        role_setting(
            one.role,
            "statement_timeout",
            "'1h'",
            "so that it does not happen again: cancels what takes longer, of new sessions",
            "work of the role that takes longer fails",
        )
    ]


def idle_timeout(role: str) -> Remedy:
    """What ends sessions of a role that stay idle in transaction."""
    return role_setting(
        role,
        "idle_in_transaction_session_timeout",
        "'5min'",
        "so that it does not happen again: ends new sessions of the role that stay so",
        "an application that pauses longer within a transaction loses its connection",
    )


def rollback_prepared(gid: str, database: str | None, owner: str | None) -> Remedy:
    """End a prepared transaction. owner: None if it is not known."""
    return Remedy(
        command=f"ROLLBACK PREPARED {literal(gid)};",
        does=f"in database {database}; or COMMIT PREPARED of it, if that is what its "
        "transaction manager decided",
        risk="its coordinator may have committed elsewhere: ask it first",
        privilege=f"role {owner} or a superuser" if owner else "its owner or a superuser",
    )


def drop_slot(name: str, does: str = "if its consumer is gone for good") -> Remedy:
    """Give up a replication slot."""
    return Remedy(
        command=f"SELECT pg_drop_replication_slot({literal(name)});",
        does=does,
        risk="a consumer that comes back must copy everything anew",
        privilege="REPLICATION",
    )
