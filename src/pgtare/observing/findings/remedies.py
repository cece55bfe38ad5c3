"""Commands that a reader can paste: each ends only what it was written for."""

from __future__ import annotations

from pgtare.observing.findings.model import Remedy
from pgtare.observing.findings.observation import AwaitedLock, SampledSession, moment

_GONE = "no row: it is gone already"
_SIGNAL = "pg_signal_backend, or the same role; a superuser's session takes a superuser"
_PRIMARY = (
    "end what uses the table on this standby (pg_locks names it), or wait: after "
    "max_standby_streaming_delay the server cancels it; on the primary nothing waits"
)
#: Processes that no remedy may end.
_UNTOUCHED = ("walsender", "startup", "walreceiver", "checkpointer", "walwriter")


def literal(text: str) -> str:
    """A string as SQL has it; what a terminal would change is written by its number."""
    return _escaped(text, "'")


def identifier(text: str) -> str:
    """A name as SQL has it, always in quotes."""
    return _escaped(text, '"')


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


def name(setting: str, value: str) -> str:
    """The command that sets it without a restart."""
    return f"ALTER SYSTEM SET {setting} = {value}; SELECT pg_reload_conf();"


def setting(setting_name: str, value: str, does: str, risk: str = "") -> Remedy:
    """A setting of the whole server."""
    return Remedy(command=name(setting_name, value), does=does, risk=risk, privilege="ALTER SYSTEM")


def _time(us: int) -> str:
    return f"{moment(us / 1e6):%Y-%m-%d %H:%M:%S.%f}+00"


def _which(one: SampledSession, *, statement: bool) -> str:
    """Which session it is, and transaction: behind a pooler it serves another client next."""
    parts = [f"pid = {one.pid}", f"backend_start = '{_time(one.started_us)}'"]
    if one.xact_us is not None:
        parts.append(f"xact_start = '{_time(one.xact_us)}'")
    if not statement and one.state.startswith("idle in transaction"):
        parts.append(f"state = '{one.state}'")
    if statement and one.query_us is not None:
        parts.append(f"query_start = '{_time(one.query_us)}'")
    return " AND ".join(parts)


def cancel(one: SampledSession, does: str) -> Remedy:
    """Cancel its statement, if it still runs that one."""
    return Remedy(
        command=f"SELECT pg_cancel_backend({one.pid}) FROM pg_stat_activity WHERE "
        f"{_which(one, statement=True)};",
        does=f"{does}; {_GONE}",
        risk="its transaction is rolled back",
        privilege=_SIGNAL,
    )


def terminate(one: SampledSession, does: str) -> Remedy:
    """End the session, if it is still in the same transaction."""
    return Remedy(
        command=f"SELECT pg_terminate_backend({one.pid}) FROM pg_stat_activity WHERE "
        f"{_which(one, statement=False)};",
        does=f"{does}; {_GONE}",
        risk="its transaction is rolled back, and its connection is lost",
        privilege=_SIGNAL,
    )


def end(one: SampledSession) -> list[Remedy]:
    """What makes a session let go, the gentlest first."""
    if one.backend_type == "startup":
        return [Remedy(command="", does=_PRIMARY)]
    if one.backend_type in _UNTOUCHED:
        return [Remedy(command="", does=f"let the {one.backend_type} finish: it must not be ended")]
    if one.backend_type == "autovacuum worker":
        return [
            Remedy(
                command="",
                does="let autovacuum finish; it gives way by itself unless it prevents wraparound, "
                "and then it must not be ended",
            )
        ]
    if one.state == "active":
        return [cancel(one, "cancels its statement"), terminate(one, "if that does not help")]
    return [terminate(one, "ends the session, and so its transaction and locks")]


def rollback_prepared(lock: AwaitedLock) -> Remedy:
    """End a prepared transaction."""
    return Remedy(
        command=f"ROLLBACK PREPARED {literal(lock.gid or '')};",
        does=f"in database {lock.database}; or COMMIT PREPARED of it, if that is what its "
        "transaction manager decided",
        risk="its coordinator may have committed elsewhere: ask it first",
        privilege=f"role {lock.owner} or a superuser",
    )
