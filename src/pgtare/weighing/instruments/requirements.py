"""What a server offers, and what it lacks for an instrument to be weighed, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from pgtare.errors import MeasurementError
from pgtare.postgres import pooler
from pgtare.postgres.module_setup import available_extensions
from pgtare.postgres.settings import (
    library_name,
    library_names,
    listed_libraries,
    preload_on_command_line,
    preload_statement,
)
from pgtare.weighing.instruments.catalogue import near
from pgtare.weighing.instruments.model import Chosen, Entry


@dataclass(frozen=True)
class ServerFacts:
    """What a session sees of its server.

    version_num: as server_version_num (180006). preloaded: libraries of shared_preload_libraries,
    in order and with their paths; None if the setting may not be read. setting_names, extensions
    (of the connected database): lower case. contexts: how each setting can be changed, as
    pg_settings names it. session_preloaded: names of libraries of session_preload_libraries.
    available: extensions whose files are installed, lower case; None if that is not known.
    on_command_line: whether shared_preload_libraries is set there.
    """

    version_num: int
    preloaded: tuple[str, ...] | None
    setting_names: frozenset[str]
    extensions: frozenset[str]
    contexts: Mapping[str, str] = field(default_factory=dict)
    session_preloaded: tuple[str, ...] = ()
    available: frozenset[str] | None = None
    on_command_line: bool = False

    @property
    def major(self) -> int:
        """The major version (18)."""
        return self.version_num // 10000

    @property
    def start_only(self) -> frozenset[str]:
        """Settings that are fixed when the server starts, or when it was built."""
        fixed = ("postmaster", "internal")
        return frozenset(name for name, context in self.contexts.items() if context in fixed)

    def loaded(self, library: str) -> bool:
        """Whether the server has the library loaded in every new session.

        A setting named after the library shows it too, as the lists of libraries are hidden from
        users without privileges.
        """
        lists = (*map(library_name, self.preloaded or ()), *self.session_preloaded)
        return library in lists or any(n.startswith(f"{library}.") for n in self.setting_names)


@dataclass(frozen=True)
class Missing:
    """One thing the server lacks, and the line that mends it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


_SETTINGS = "SELECT lower(name), context, setting, source FROM pg_catalog.pg_settings"
_EXTENSIONS = "SELECT lower(extname::text) FROM pg_catalog.pg_extension"
#: What a session that exists may set, but obeys only when it begins, or may not even set.
_AT_LOGIN = frozenset({"session_preload_libraries", "local_preload_libraries"})
_CONTEXTS_AT_LOGIN = ("backend", "superuser-backend")
#: Libraries that come with PostgreSQL and make no extension.
_ALONE = frozenset({"auto_explain"})


def read_facts(conn: psycopg.Connection[Any]) -> ServerFacts:
    """Read the facts from an open session; needs no privileges.

    Raises MeasurementError if the server does not answer.
    """
    try:
        rows = pooler.rows(conn, _SETTINGS)
        extensions = pooler.rows(conn, _EXTENSIONS)
        available = available_extensions(conn)
    except psycopg.Error as ex:
        raise MeasurementError(f"cannot read the server's settings: {ex}") from ex
    found = _facts(conn.info.server_version, rows, [str(row[0]) for row in extensions])
    return replace(found, available=available)


def _facts(version_num: int, rows: list[TupleRow], extensions: list[str]) -> ServerFacts:
    setting = {name: value for name, _, value, _ in rows}
    shared = setting.get("shared_preload_libraries")
    return ServerFacts(
        version_num=version_num,
        preloaded=None if shared is None else tuple(listed_libraries(shared)),
        setting_names=frozenset(setting),
        extensions=frozenset(extensions),
        contexts={name: context for name, context, _, _ in rows},
        on_command_line=any(
            name == "shared_preload_libraries" and source == "command line"
            for name, _, _, source in rows
        ),
        session_preloaded=library_names(setting.get("session_preload_libraries") or ""),
    )


def availability(item: Entry | Chosen, facts: ServerFacts) -> list[Missing]:
    """What the server lacks for this instrument or arm; empty if it can be weighed."""
    return list(_missing(item, facts))


def _missing(item: Entry | Chosen, facts: ServerFacts) -> Iterator[Missing]:
    entry = item if isinstance(item, Entry) else item.entry
    names = item.setting_names if isinstance(item, Entry) else frozenset(item.settings)
    if entry is not None:
        names |= entry.setting_names if isinstance(item, Entry) else frozenset(entry.base)
        names |= frozenset(entry.needs.settings)
        wrong_version = _version(entry, facts)
        if wrong_version is not None:
            yield wrong_version
            return
        unloaded = [lib for lib in entry.needs.preload if not facts.loaded(lib)]
        for library in unloaded:
            yield _preload(library, entry, facts)
        extension = entry.needs.extension
        if extension is not None and extension.lower() not in facts.extensions:
            yield Missing(f"extension {extension} is not in this database", _create(extension))
        names = frozenset(n for n in names if n.partition(".")[0] not in unloaded)
    yield from _settings(names, facts)


def _version(entry: Entry, facts: ServerFacts) -> Missing | None:
    low, high = entry.needs.min_version, entry.needs.max_version
    has = f"{entry.name} on PostgreSQL {facts.major}"
    if low is not None and facts.major < low:
        return Missing(has, f"needs PostgreSQL {low} or later")
    if high is not None and facts.major > high:
        return Missing(has, f"needs PostgreSQL {high} or earlier")
    return None


def _preload(library: str, entry: Entry, facts: ServerFacts) -> Missing:
    names = ("…",) if facts.preloaded is None else facts.preloaded
    if facts.on_command_line:
        remedy = f"{preload_on_command_line([library])} and restart"
    else:
        line = preload_statement((*names, library))
        remedy = f"add {library} to shared_preload_libraries ({line}) and restart"
    names_of_it = {library, entry.needs.extension}
    if facts.available is not None and not facts.available & names_of_it and library not in _ALONE:
        remedy = (
            f"its files do not seem to be installed: install them first, as a server does not "
            f"start if a library of that list is missing; then {remedy}"
        )
    if entry.needs.session_preload:
        remedy += f", or to session_preload_libraries and reconnect (new sessions load {library})"
    return Missing(f"{library} is not loaded", remedy)


def _create(extension: str) -> str:
    plain = extension.replace("_", "a").isalnum() and extension.islower()
    name = extension if plain else f'"{extension}"'
    return f"CREATE EXTENSION {name};"


def unknown_setting(name: str, facts: ServerFacts) -> Missing | None:
    """What to do if the server has no setting of this name (lower case); None if it has one."""
    if name in facts.setting_names:
        return None
    prefix, dot, _ = name.partition(".")
    known_prefix = any(other.startswith(f"{prefix}.") for other in facts.setting_names)
    remedy = (
        f"load the library that defines {prefix}.*"
        if dot and not known_prefix
        else "check the name"
    )
    suggestion = near(name, sorted(facts.setting_names))
    return Missing(f"this server has no setting {name}", remedy + suggestion)


def _settings(names: frozenset[str], facts: ServerFacts) -> Iterator[Missing]:
    for name in sorted(names):
        unknown = unknown_setting(name, facts)
        if unknown is not None:
            yield unknown
        elif name in _AT_LOGIN or facts.contexts.get(name) in _CONTEXTS_AT_LOGIN:
            yield Missing(
                f"{name} is fixed when a session begins",
                "compare sessions that begin with and without it (--server 'without: …' "
                f"--server \"with: … options='-c {name}=…'\")",
            )
        elif name in facts.start_only:
            yield Missing(
                f"{name} is fixed when the server starts",
                "no arm can switch it: compare two servers (--server 'without: …' --server 'with: "
                "…'), or whole runs (pgtare ladder)",
            )
