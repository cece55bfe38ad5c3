"""A setting of the server's configuration: whether it may be changed, changing it, putting it back.

ALTER SYSTEM and a reload. A reload puts everybody's pending edits into force and wakes every
session, so it is refused where there are such edits, or where somebody else writes the files.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import errors, sql

from pgtare.errors import MeasurementError, PgtareError, UsageError
from pgtare.postgres import own_session
from pgtare.postgres.own_session import first_line
from pgtare.postgres.private_settings import is_private
from pgtare.weighing.outside.session import without_own
from pgtare.weighing.switches import Switch
from pgtare.weighing.whole_server.setting_values import SettingNow, setting_now

#: How long the server may take until a session sees what was reloaded, in s.
_RELOAD_S = 10.0
#: Their values are lists of names, each quoted apart, as ALTER SYSTEM would not do it.
_LISTS = frozenset(
    {
        "createrole_self_grant",
        "local_preload_libraries",
        "restrict_nonsystem_relation_kind",
        "search_path",
        "session_preload_libraries",
        "shared_preload_libraries",
        "temp_tablespaces",
        "unix_socket_directories",
    }
)
#: These only observe, whatever their value. All others may lose data, end what others run, change
#: their plans or what their statements do, take memory, or write statements to the log.
_HARMLESS = frozenset(
    {
        "compute_query_id",
        "log_autovacuum_min_duration",
        "log_checkpoints",
        "log_lock_waits",
        "log_recovery_conflict_waits",
        "log_replication_commands",
        "track_cost_delay_timing",
        "track_functions",
        "track_io_timing",
        "track_wal_io_timing",
    }
)
#: And all of these.
_ONLY_COUNT = (
    "pg_qualstats.",
    "pg_stat_kcache.",
    "pg_stat_statements.",
    "pg_wait_sampling.",
    "wait_event_timing.",
)
#: Without pg_read_all_settings the files are not seen, and no edits of them.
_MAY = """
SELECT pg_catalog.has_parameter_privilege(%s, 'ALTER SYSTEM')
   AND pg_catalog.has_function_privilege('pg_catalog.pg_reload_conf()', 'EXECUTE')
   AND pg_catalog.pg_has_role('pg_read_all_settings', 'USAGE')
"""
_VALUE = "SELECT pg_catalog.current_setting(%s)"
#: As a number: a session may have any style of dates.
_LOADED = "SELECT extract(epoch FROM pg_catalog.pg_conf_load_time())::text"
_SYSTEM = "SELECT system_identifier::text FROM pg_catalog.pg_control_system()"
#: What tells a server from its copies and standbys: when its directory was made, or its files were
#: given another owner or other rights. Windows has the second of both times.
_MADE = """
SELECT extract(epoch FROM coalesce(change, creation))::bigint::text
FROM pg_catalog.pg_stat_file('PG_VERSION', true)
"""
#: And so does this, until its next restart, for roles that may not see the other.
_STARTED = "SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text"
_IDENTITY = f"SELECT ({_SYSTEM}) || '/' || ({_MADE})"
#: How long ago ALTER SYSTEM wrote, in s.
_WRITTEN = """
SELECT extract(epoch FROM pg_catalog.clock_timestamp() - modification)::float8
FROM pg_catalog.pg_stat_file('postgresql.auto.conf', true)
"""
#: So long it takes at most from the note that a setting is changed to the change, in s.
_CHANGE_S = 10.0
#: Where the files of a server are that is no standby, and when the first was written, if the role
#: may see that. Another owner changes neither.
_PLACE = """
SELECT setting || ' ' ||
       extract(epoch FROM (pg_catalog.pg_stat_file('PG_VERSION', true)).modification)::bigint
FROM pg_catalog.pg_settings
WHERE name = 'data_directory' AND NOT pg_catalog.pg_is_in_recovery()
"""
_ENTRY = """
SELECT setting FROM pg_catalog.pg_file_settings
WHERE lower(name) = %s AND sourcefile = (
    SELECT setting || '/postgresql.auto.conf' FROM pg_catalog.pg_settings
    WHERE name = 'data_directory'
)
ORDER BY seqno DESC LIMIT 1
"""
#: Files that were changed after they were read: configuration, and who may connect. The server
#: knows their times to the second, so one that was changed within a second of that is missed.
_EDITED = """
WITH files AS (
    SELECT sourcefile AS file FROM pg_catalog.pg_file_settings
    UNION SELECT setting FROM pg_catalog.pg_settings
        WHERE name IN ('config_file', 'hba_file', 'ident_file') AND setting <> ''
    UNION SELECT setting || '/postgresql.auto.conf' FROM pg_catalog.pg_settings
        WHERE name = 'data_directory'
)
SELECT file FROM files, LATERAL pg_catalog.pg_stat_file(file, true) AS found
WHERE found.modification > pg_catalog.pg_conf_load_time() ORDER BY file
"""
#: Lines that are in force and not in the files, or the other way round.
_MOVED = """
WITH lines AS (
    SELECT DISTINCT ON (lower(name)) lower(name) AS name, sourcefile, sourceline, applied
    FROM pg_catalog.pg_file_settings WHERE error IS NULL ORDER BY lower(name), seqno DESC
)
SELECT DISTINCT coalesce(lines.sourcefile, force.sourcefile) AS file
FROM (SELECT lower(name) AS name, source, sourcefile, sourceline FROM pg_catalog.pg_settings
      WHERE context NOT IN ('postmaster', 'internal')) AS force
FULL JOIN lines USING (name)
WHERE (force.source = 'configuration file' AND lines.name IS NULL)
   OR (force.source = 'default' AND lines.applied)
   OR (force.source = 'configuration file'
       AND (force.sourcefile, force.sourceline) <> (lines.sourcefile, lines.sourceline))
ORDER BY file
"""
#: From this version on the server tells which files say who may connect.
_SHOWS_HBA_FILES = 160000
_HBA_EDITED = """
SELECT DISTINCT file_name
FROM (SELECT file_name FROM pg_catalog.pg_hba_file_rules
      UNION SELECT file_name FROM pg_catalog.pg_ident_file_mappings) AS files,
     LATERAL pg_catalog.pg_stat_file(file_name, true) AS found
WHERE found.modification > pg_catalog.pg_conf_load_time()
"""
#: Lines that keep the server from reading its files. Those that wait for a restart do not, also
#: where the line has gone.
_WRONG = """
SELECT coalesce(sourcefile || ' line ' || sourceline || ': ', '') || error
FROM pg_catalog.pg_file_settings
WHERE error <> 'setting could not be applied'
  AND error NOT LIKE 'parameter "%" cannot be changed without restarting the server'
ORDER BY seqno LIMIT 1
"""
#: Who else writes the configuration, by what every role sees of them.
_MANAGED = """
SELECT 'Patroni' FROM pg_catalog.pg_stat_activity WHERE application_name ILIKE 'patroni%'
UNION ALL SELECT 'its provider' FROM pg_catalog.pg_settings
    WHERE name LIKE ANY (ARRAY['rds.%', 'azure.%', 'cloudsql.%', 'alloydb.%'])
UNION ALL SELECT 'an operator (allow_alter_system is off)' FROM pg_catalog.pg_settings
    WHERE name = 'allow_alter_system' AND setting = 'off'
LIMIT 1
"""
#: And by its files. CloudNativePG writes what no server has as a setting.
_MANAGED_FILES = """
SELECT CASE WHEN name LIKE 'cnpg.%' THEN 'CloudNativePG' ELSE 'Patroni' END
FROM pg_catalog.pg_file_settings
WHERE name LIKE 'cnpg.%' OR sourcefile LIKE '%postgresql.base.conf'
LIMIT 1
"""
_OTHER_WAY = (
    "use its own commands: --switch '{name}: COMMAND ON | COMMAND OFF | {setting} = {value}', "
    "with windows of minutes (--window 2m)"
)
_RIGHTS = """--reload {name}: it needs a superuser, or these rights of its role ({why}):
GRANT ALTER SYSTEM ON PARAMETER {setting} TO {role};
GRANT SELECT ON pg_catalog.pg_file_settings TO {role};
GRANT EXECUTE ON FUNCTION pg_catalog.pg_reload_conf(), pg_catalog.pg_show_all_file_settings(),
  pg_catalog.pg_stat_file(text, boolean) TO {role};
GRANT pg_read_all_settings TO {role};
GRANT pg_read_server_files TO {role};  -- if its files lie outside of the data directory"""
#: And these, as it shows which files say who may connect.
_RIGHTS_TO_HBA = """
GRANT SELECT ON pg_catalog.pg_hba_file_rules, pg_catalog.pg_ident_file_mappings TO {role};
GRANT EXECUTE ON FUNCTION pg_catalog.pg_hba_file_rules(), pg_catalog.pg_ident_file_mappings()
  TO {role};"""


class PutBack(NamedTuple):
    """What was done to put one thing back, in words, and whether it is as it was before."""

    text: str
    as_before: bool = True


@dataclass(frozen=True)
class Before:
    """A setting before anything was changed.

    entry: of postgresql.auto.conf, if it has one. server: what tells the server from others.
    place: where its files are, and since when; None: it is a standby, or the role may not see that.
    """

    entry: str | None
    value: str
    server: str
    place: str | None = None


def _value(conn: psycopg.Connection[Any], query: str, *parameters: str) -> Any:
    """The first column of the first row; None if there is none."""
    row = conn.execute(query.encode(), parameters or None).fetchone()
    return row[0] if row else None


def is_secret(name: str) -> bool:
    """Whether a setting's value may be one, and must not be kept in a result."""
    return is_private(name, is_text=not name.startswith(_ONLY_COUNT))


def shown(name: str, entry: str | None) -> str:
    """An entry in a sentence that may be kept in a result."""
    return "its default" if not entry else "another value" if is_secret(name) else entry


def look(
    conn: psycopg.Connection[Any], switch: Switch, allow: frozenset[str] = frozenset()
) -> Before:
    """What the setting is now. Raises UsageError if it must not, or cannot, be changed.

    allow: names of settings that are not known to be harmless, and are wanted all the same.
    """
    name, of = switch.setting, f"--reload {switch.name}"
    now = setting_now(conn, name, of)
    require_reload(now, of)
    _refuse_managed(conn, switch, _MANAGED)
    harmless = name in _HARMLESS or (name.startswith(_ONLY_COUNT) and not name.endswith(".save"))
    if not harmless and name not in allow:
        raise UsageError(
            f"{of}: {name} holds for all sessions of the server, and is not known only to count or "
            "to time: it may lose data, end what others run, change their plans or what their "
            f"statements do, take memory, or fill the log with them: add --allow {name} if you "
            "want it all the same"
        )
    require_value(now, switch.value, of)
    try:
        _refuse_managed(conn, switch, _MANAGED_FILES)
        refuse_pending(conn)
        entry, value = _entry(conn, name), current(conn, name)
        server, may = _value(conn, _IDENTITY), _value(conn, _MAY, name)
    except errors.InsufficientPrivilege as ex:
        raise UsageError(_rights(conn, switch, first_line(ex))) from ex
    if not may:
        raise UsageError(_rights(conn, switch, "one of them is missing"))
    if server is None:
        raise UsageError(
            f"--reload {switch.name}: the server cannot be told from its copies, so nothing is "
            "changed there"
        )
    if _stands(now, switch.value):
        raise UsageError(
            f"--reload {switch.name}: {name} is {value} already: there is nothing to weigh"
        )
    return Before(entry, value, str(server), _place(conn))


def _stands(now: SettingNow, value: str) -> bool:
    """Whether it has this value. A text is taken as it is written."""
    if now.kind == "string":
        return value == now.value
    return now.has(value) and now.is_value(value)


def require_reload(now: SettingNow, of: str) -> None:
    """Raise UsageError if a reload does not change a setting in sessions that are there."""
    if now.needs_restart:
        raise UsageError(
            f"{of}: {now.name} changes with a restart only: compare two servers (--server)"
        )
    if now.is_for_new_sessions or now.name in _LISTS:
        raise UsageError(f"{of}: {now.name} holds for new sessions: compare two servers (--server)")


def require_value(now: SettingNow, value: str, of: str) -> None:
    """Raise UsageError if a setting of words does not have this one."""
    if (allowed := now.allowed()) and not now.has(value):
        raise UsageError(f"{of}: {now.name} cannot be {value!r}; it can be {', '.join(allowed)}")


def _refuse_managed(conn: psycopg.Connection[Any], switch: Switch, query: str) -> None:
    """Raise UsageError if somebody else writes the configuration, or has forbidden to."""
    managed = _value(conn, query)
    if managed is not None:
        other = _OTHER_WAY.format(name=switch.name, setting=switch.setting, value=switch.value)
        raise UsageError(
            f"--reload {switch.name}: {managed} writes this server's configuration: {other}"
        )


def _rights(conn: psycopg.Connection[Any], switch: Switch, why: str) -> str:
    role = sql.Identifier(conn.info.user).as_string(conn)
    setting = sql.Identifier(*switch.setting.split(".")).as_string(conn)
    text = _RIGHTS + (_RIGHTS_TO_HBA if conn.info.server_version >= _SHOWS_HBA_FILES else "")
    return text.format(name=switch.name, why=why, setting=setting, role=role)


def identity(conn: psycopg.Connection[Any]) -> str:
    """What tells the server from others, as far as the role may see it: for `is_same`.

    Its system identifier, when its directory was made, and when it was started.
    """
    found = []
    for query in (_SYSTEM, _MADE, _STARTED):
        value = None
        with contextlib.suppress(errors.InsufficientPrivilege):
            value = _value(conn, query)
        found.append("" if value is None else str(value))
    return "/".join(found)


def is_same(server: str, other: str) -> bool:
    """Whether two servers are surely one; both as `identity` says."""
    (system, *mine), (other_system, *others) = server.split("/"), other.split("/")
    pairs = zip(mine, others, strict=False)
    return system == other_system and any(one and one == its for one, its in pairs)


def has_same_start(server: str, other: str) -> bool:
    """Whether two servers that are the same as far as is seen are no copies of each other.

    A copy of the disk has the times of its files as well, but cannot have been started at once.
    """
    started, other_started = (one.split("/")[2:] for one in (server, other))
    return any(started) and started == other_started


def require_same(
    conn: psycopg.Connection[Any], before: Before, left: tuple[str, str] | None = None
) -> None:
    """Raise MeasurementError if this is another server than the one that was changed.

    left: a setting, and the entry that we left there. It tells the server from its copies if all
    files were given another owner or other rights, as some containers do when they start.
    """
    now = str(_value(conn, _IDENTITY))
    if now == before.server:
        return
    if (
        left is None
        or not is_copy(now, before.server)
        or before.place is None
        or before.place != _place(conn)
        or _entry(conn, left[0]) != left[1]
    ):
        raise MeasurementError("another server answers at this address than the one changed")


def is_copy(server: str, other: str) -> bool:
    """Whether two may be one, or copies of one, and it is not known which.

    Their system identifier is the same, or was not seen. One may have got another owner of its
    files, or was restarted and the role does not see more.
    """
    system, other_system = server.partition("/")[0], other.partition("/")[0]
    may_be = system == other_system or not system or not other_system
    return may_be and not is_same(server, other)


def told_apart(server: str, other: str) -> bool:
    """Whether it was seen of both when they were made, and that is not the same time."""
    (_, made, *_), (_, other_made, *_) = (f"{one}/".split("/") for one in (server, other))
    return bool(made and other_made and made != other_made)


def _place(conn: psycopg.Connection[Any]) -> str | None:
    place = _value(conn, _PLACE)
    return None if place is None else str(place)


def refuse_pending(conn: psycopg.Connection[Any]) -> None:
    """Raise UsageError if a reload would put somebody else's edits into force, or fail.

    MeasurementError if that cannot be seen.
    """
    edited = _edited(conn)
    if edited:
        raise UsageError(
            f"{', '.join(edited)} was changed since the server read it: a reload would put that "
            "into force; look at it, and reload yourself (SELECT pg_reload_conf())"
        )
    wrong = _value(conn, _WRONG)
    if wrong is not None:
        raise UsageError(f"the server cannot read its configuration: {wrong}")


def _edited(conn: psycopg.Connection[Any]) -> list[str]:
    """Files with edits that are not in force, as far as is seen. Raises MeasurementError.

    A session that was idle during somebody's reload reads the files when it is asked again, so it
    knows edits that the server does not. A new one knows what the server has read.
    """
    queries = [_EDITED, _MOVED]
    if conn.info.server_version >= _SHOWS_HBA_FILES:
        queries.append(_HBA_EDITED)
    with contextlib.closing(own_session.another(conn)) as new:
        found = [str(row[0]) for query in queries for row in new.execute(query.encode()).fetchall()]
    return list(dict.fromkeys(found))


def _entry(conn: psycopg.Connection[Any], name: str) -> str | None:
    """What postgresql.auto.conf has for a setting."""
    entry = _value(conn, _ENTRY, name)
    return None if entry is None else str(entry)


def _refuse_foreign(conn: psycopg.Connection[Any], name: str, expected: str | None) -> None:
    """Raise MeasurementError if the entry is not what we left there."""
    entry = _entry(conn, name)
    if entry != expected:
        raise MeasurementError(
            f"somebody else has set {name} to {shown(name, entry)} meanwhile: it is left so"
        )


def change(
    conn: psycopg.Connection[Any], name: str, value: str | None, expected: str | None
) -> str:
    """Give a setting a value, or its entry up, and reload; what it is then.

    expected: the entry that we left there. Raises MeasurementError, UsageError if somebody else has
    edited the files meanwhile.
    """
    _refuse_foreign(conn, name, expected)
    refuse_pending(conn)
    # that took a while, and nothing can change an entry only if it is still the same
    _refuse_foreign(conn, name, expected)
    _alter(conn, name, value)
    reload(conn)
    return current(conn, name)


def current(conn: psycopg.Connection[Any], name: str) -> str:
    """What a setting is, whatever our session has for itself."""
    with without_own(conn, name):
        return str(_value(conn, _VALUE, name))


def stands(conn: psycopg.Connection[Any], name: str, ours: str) -> bool:
    """Whether postgresql.auto.conf has our value."""
    return _entry(conn, name) == ours


def put_back(conn: psycopg.Connection[Any], name: str, ours: str, before: Before) -> PutBack:
    """Undo a change if it still stands."""
    edited = []
    with contextlib.suppress(PgtareError, psycopg.Error):  # to put it back matters more
        edited = _edited(conn)
    entry = _entry(conn, name)
    also = f"; the reload has put into force what is new in {', '.join(edited)}" if edited else ""
    if entry == before.entry:
        if current(conn, name) == before.value:
            return PutBack(f"{name} is as it was")
        now = setting_now(conn, name, name)
        if edited and not (now.has(ours) and now.is_value(ours)):
            return PutBack(f"{name} has another value by now, which is left so")
        reload(conn)  # taken out of the file, and still in force
        return PutBack(f"{name} is as it was{also}")
    if entry != ours:
        said = f"{name} was left alone: somebody else has set it to {shown(name, entry)}"
        return PutBack(said, as_before=False)
    _alter(conn, name, before.entry)
    reload(conn)
    return PutBack(f"{name} was put back{also}")


def is_ours(conn: psycopg.Connection[Any], name: str, ours: str, changed_s: float) -> bool:
    """Whether our value does not stand, or is clearly from our change so many seconds ago.

    If the file was written later, somebody may have chosen that value.
    """
    if _entry(conn, name) != ours:
        return True
    with contextlib.suppress(errors.InsufficientPrivilege):
        written_s = _value(conn, _WRITTEN)
        return written_s is not None and abs(written_s - changed_s) <= _CHANGE_S
    return False


def statements(name: str, entry: str | None) -> str:
    """The SQL that puts an entry back, for a person to read and run."""
    shown = ".".join(f'"{part}"' if not part.isidentifier() else part for part in name.split("."))
    if entry is None:
        change_ = f"ALTER SYSTEM RESET {shown};"
    else:
        text = entry.replace("'", "''")
        change_ = f"ALTER SYSTEM SET {shown} = '{text}';"
    return f"{change_} SELECT pg_reload_conf();"


def reload(conn: psycopg.Connection[Any]) -> None:
    """Have the server read its files; until this session has. Raises MeasurementError."""
    before = _value(conn, _LOADED)
    conn.execute("SELECT pg_catalog.pg_reload_conf()")
    until = time.monotonic() + _RELOAD_S
    while _value(conn, _LOADED) == before:
        if time.monotonic() > until:
            raise MeasurementError(f"the server did not reload in {_RELOAD_S:.0f} s: see its log")
        time.sleep(0.05)


def _alter(conn: psycopg.Connection[Any], name: str, value: str | None) -> None:
    setting = sql.Identifier(*name.split("."))
    if value is None:
        conn.execute(sql.SQL("ALTER SYSTEM RESET {}").format(setting))
    else:
        text = sql.Literal(value)
        conn.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(setting, text))
