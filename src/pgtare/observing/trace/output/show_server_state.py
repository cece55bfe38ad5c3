"""What a server traces, as tables and sentences for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from pgtare.kit import numbers
from pgtare.kit.fitted_table import Fitted
from pgtare.kit.terminal_text import plain
from pgtare.observing.trace.capture.server_state import (
    ASKED,
    TracedSession,
    TraceSetting,
    TraceStatus,
)


def status_view(now: TraceStatus) -> RenderableType:
    """Sessions that are traced, and settings that will have others traced."""
    none = Text("no session is traced")
    parts: list[RenderableType] = [_sessions(now.sessions) if now.sessions else none]
    if now.kept:
        left = "not traced by its settings"
        listed = ", ".join(
            f"{s.pid} ({'asked to end' if s.reason == ASKED else left})" for s in now.kept
        )
        parts.append(Text(plain(f"no longer traced, with records to be read: {listed}")))
    if now.ended:
        parts.append(Text(f"ended, with records to be read: {now.ended}"))
    parts.append(_settings(now))
    return Group(*parts)


def _sessions(sessions: list[TracedSession]) -> RenderableType:
    table = Fitted(
        "session",
        "role",
        "database",
        "application",
        "level",
        "why",
        "since",
        "records",
        "lost",
        "waits",
        spare=("waits", "records", "database", "application", "role", "since"),
    )
    for s in sessions:
        table.add_row(
            str(s.pid),
            s.user,
            s.database,
            s.application,
            str(s.level),
            "asked" if s.reason == ASKED else s.reason,
            f"{s.started.astimezone():%Y-%m-%d %H:%M:%S}" if s.started else "",
            numbers.count(s.records),
            numbers.count(s.lost_records),
            "yes" if s.waits else "no",
        )
    return table


def _settings(now: TraceStatus) -> RenderableType:
    unseen = "" if now.configured else "; a level in the configuration file is a superuser's to see"
    if not now.settings:
        return Text(f"no setting has sessions to come traced{unseen}")
    table = Fitted("sessions to come", "setting", "value")
    for setting in now.settings:
        table.add_row(_whose(setting), setting.name, setting.value)
    return Group(table, Text(unseen.removeprefix("; "))) if unseen else table


def _whose(setting: TraceSetting) -> str:
    of = [f"role {setting.role}"] if setting.role else []
    of += [f"database {setting.database}"] if setting.database else []
    return ", ".join(of) or "all"
