"""Find what still names or has loaded a server module, before its files are removed."""

from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from pgtare.errors import MeasurementError, UsageError
from pgtare.postgres import own_session, pooler
from pgtare.postgres.settings import library_names

PRELOAD_SETTINGS = (
    "shared_preload_libraries",
    "session_preload_libraries",
    "local_preload_libraries",
)
#: Databases that can be entered: a limit of -2 marks one whose DROP DATABASE was cut off.
DATABASES = "SELECT datname FROM pg_database WHERE datallowconn AND datconnlimit <> -2 ORDER BY 1"
#: Settings of roles and databases: role and database (NULL: all of them), name and value.
OF_ROLES = """
SELECT r.rolname, d.datname, split_part(c, '=', 1), substr(c, strpos(c, '=') + 1)
FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) c
LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
WHERE (r.oid IS NOT NULL OR s.setrole = 0) AND (d.oid IS NOT NULL OR s.setdatabase = 0)
ORDER BY 2 NULLS FIRST, 1 NULLS FIRST, 3
"""


def uses_on_server(dsn: str, module: str, pkglibdir: Path) -> list[str]:
    """What on the server behind `dsn` needs the module's files, in words.

    UsageError if the server cannot be asked, or belongs to another installation than `pkglibdir`.
    """
    try:
        with own_session.connect(dsn) as connection:
            _check_installation(connection, pkglibdir)
            uses = _settings_naming(connection, module)
            databases = pooler.rows(connection, DATABASES)
        for (database,) in databases:
            with own_session.connect(make_conninfo(dsn, dbname=database)) as other:
                if pooler.rows(other, "SELECT FROM pg_extension WHERE extname = %s", module):
                    uses.append(f"extension in database {database}")
    except (psycopg.Error, MeasurementError) as ex:
        reason = " ".join(str(ex).split())
        raise UsageError(
            f"cannot find out whether {module} is in use ({reason}): "
            f"give --dsn for a superuser, or use --force"
        ) from ex
    return uses


def loaded_by(library: Path) -> list[int]:
    """The processes that have a library mapped, as far as we may see, or one that it replaced.

    Such a server loads the new one when it starts again.
    """
    path = str(library.resolve())
    wanted = (f" {path}", f" {path} (deleted)")
    pids = []
    for pid in psutil.pids():
        try:
            # not psutil's memory_maps, which reads smaps: that takes long with large shared buffers
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        if any(line.endswith(wanted) for line in maps.splitlines()):
            pids.append(pid)
    return sorted(pids)


def names_library(value: str, module: str) -> bool:
    """Whether a list of libraries, as the preload settings hold it, names the module."""
    return module in library_names(value)


def _check_installation(
    connection: psycopg.Connection[tuple[object, ...]], pkglibdir: Path
) -> None:
    found = pooler.rows(connection, "SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'")
    theirs = str(found[0][0]) if found else ""
    if Path(theirs).resolve() != pkglibdir.resolve():
        raise UsageError(
            f"the server of --dsn loads its libraries from {theirs}, not from {pkglibdir}: "
            f"name the server which belongs to this --pg-config"
        )


def _settings_naming(connection: psycopg.Connection[tuple[object, ...]], module: str) -> list[str]:
    wanted = list(PRELOAD_SETTINGS)
    uses: dict[str, None] = {}  # a set that keeps its order
    in_files = pooler.rows(
        connection,
        "SELECT lower(name), setting, sourcefile FROM pg_file_settings WHERE lower(name) = ANY(%s)",
        wanted,
    )
    for name, value, file in in_files:
        if names_library(str(value), module):
            uses[f"{name} in {file}"] = None
    in_force = pooler.rows(
        connection, "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", wanted
    )
    for name, value in in_force:
        if names_library(str(value), module):
            uses[f"{name} as now in force"] = None
    for role, database, name, value in pooler.rows(connection, OF_ROLES):
        if name.lower() in wanted and names_library(value, module):
            where = f"{role or 'all roles'} in {database or 'all databases'}"
            uses[f"{name} set for {where}"] = None
    return list(uses)
